"""Environments: which software a job may ask for by a constraint, and who may."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from backfill.core.model.cluster import Job
from backfill.core.model.keys import FILLED_IN, about, key
from backfill.core.model.refusals import Code, Reason, because

# Slurm's constraints join names by & | [ ] ( ) * , and counts (sbatch(1), --constraint).
_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Environment:
    """One software environment: the feature that jobs ask for, and the master image behind it."""

    name: str = field(metadata=about("The feature's name, as in sbatch --constraint."))
    image: str = key("default", "Which of libvirt.images or openstack.images it is.")
    users: tuple[str, ...] = key((), "Who may ask for it; with neither users nor accounts everybody may.")
    accounts: tuple[str, ...] = key((), "Accounts whose members may.")

    def refuses(self, user: str, account: str) -> bool:
        """Return True if the job's owner is none of those who may have it."""
        listed = self.users or self.accounts
        return bool(listed) and user not in self.users and account not in self.accounts


def whose(users: Iterable[str], accounts: Iterable[str]) -> str:
    """Name those who may."""
    return ", ".join(_allowed(users, accounts))


@dataclass(frozen=True, slots=True)
class ImageRule:
    """What holds for all instances of one master image. 0 and empty: nothing in particular."""

    name: str
    os_family: str = ""
    names: tuple[str, ...] = ()  # of the nodes that may be made of it
    most_cpus: int = 0
    most_memory_mb: int = 0
    method: str = ""
    creates_per_min: int = 0
    warm_parents: int = 0

    @property
    def says_something(self) -> bool:
        """Return True if there is anything that is not as it is for every image."""
        return self != ImageRule(self.name)


@dataclass(frozen=True, slots=True)
class Environments:
    """The catalogue: a job that asks for an environment it may not use waits without an instance."""

    entries: tuple[Environment, ...] = key(
        (), "One entry for each environment, beside those that libvirt.images name themselves."
    )
    # Read from the images.
    rules: tuple[ImageRule, ...] = field(default=(), metadata=FILLED_IN)
    # The names of all images; none where no host has any.
    images: tuple[str, ...] = field(default=(), metadata=FILLED_IN)
    # By image: the hosts that lack it. Without an entry every host has it.
    lacking: dict[str, frozenset[str]] = field(default_factory=dict, metadata=FILLED_IN)

    def admit(self, jobs: Iterable[Job], refused: dict[str, Reason]) -> Iterator[Job]:
        """Yield the jobs that count; the others are put into `refused` by id, with the reason."""
        for job in jobs:
            why = self.refusal(job)
            if why:
                refused[job.id] = why
            else:
                yield job

    def refusal(self, job: Job) -> Reason | None:
        """Return why the job may not have what it asks for, if it may not."""
        wanted = set(_NAMES.findall(job.features))
        for entry in self.entries:
            if entry.name in wanted and entry.refuses(job.user, job.account):
                return _for_others(entry, job)
        return None

    @property
    def private(self) -> tuple[str, ...]:
        """Images all of whose environments are for somebody: nobody else may be on their nodes."""
        named = dict.fromkeys(entry.image for entry in self.entries)
        return tuple(i for i in named if all(e.users or e.accounts for e in self.entries if e.image == i))

    def members(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Users and accounts that may have one of the image's environments."""
        entries = [entry for entry in self.entries if entry.image == image]
        users = dict.fromkeys(user for entry in entries for user in entry.users)
        accounts = dict.fromkeys(account for entry in entries for account in entry.accounts)
        return tuple(users), tuple(accounts)

    def owners(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Users and accounts for whom the image is; none of both: it is for everybody."""
        return self.members(image) if image in self.private else ((), ())

    def somewhere(self, image: str) -> str:
        """Return the image if not every host has it; else an empty text."""
        return image if image in self.lacking else ""

    def lacks(self, host: str, image: str) -> bool:
        """Return True if no instance of the image can be made on the host."""
        return host in self.lacking.get(image, ())

    @property
    def words(self) -> dict[str, str]:
        """The images by the words for them: their own names, and before these the environments'."""
        return {image: image for image in self.images} | {e.name: e.image for e in reversed(self.entries)}

    def keeps_out(self, image: str, job: Job) -> Reason | None:
        """Say why the job may not be on a node of this image; None: it may."""
        entries = [entry for entry in self.entries if entry.image == image]
        if not entries or not all(entry.refuses(job.user, job.account) for entry in entries):
            return None
        return _for_others(entries[0], job)

    def whose(self, entry: Environment) -> str:
        """End a sentence about somebody who may not have it."""
        return f"may not have environment {entry.name}: it is for {whose(entry.users, entry.accounts)}"

    @property
    def particular(self) -> bool:
        """Return True if jobs can ask for anything."""
        return bool(self.entries or self.rules)

    def asked(self, job: Job) -> str:
        """Return the master image that the job's constraint asks for; empty: any will do."""
        if not job.features:
            return ""
        wanted = set(_NAMES.findall(job.features))
        found = (entry.image for entry in self.entries if entry.name in wanted)
        families = (rule.name for rule in self.rules if rule.os_family in wanted)
        return next(found, "") or next(families, "")

    @property
    def features(self) -> tuple[str, ...]:
        """All that jobs can ask for."""
        names = [*(e.name for e in self.entries), *(r.os_family for r in self.rules)]
        return tuple(sorted({name for name in names if name}))

    def image_of(self, name: str) -> str:
        """Return the master image of an environment; any other name is an image's own."""
        return next((entry.image for entry in self.entries if entry.name == name), name)

    def features_of(self, image: str) -> tuple[str, ...]:
        """Return the features by which jobs find nodes of this image."""
        family = self.rule(image).os_family
        names = [entry.name for entry in self.entries if entry.image == image]
        return tuple(dict.fromkeys([*names, *filter(None, [family])]))

    def rule(self, image: str) -> ImageRule:
        """Return what holds for an image in particular."""
        return next((rule for rule in self.rules if rule.name == image), None) or _no_rule(image)

    def reserved(self, name: str, image: str) -> bool:
        """Return True if a node of this name is for other images than this."""
        own = self.rule(image).names
        if own:
            return name not in own
        return any(name in rule.names for rule in self.rules)

    def image_for(self, name: str) -> str:
        """Return the image for which a node's name is reserved, or an empty text."""
        return next((rule.name for rule in self.rules if name in rule.names), "")


@lru_cache
def _no_rule(image: str) -> ImageRule:
    """Return what holds for an image of which the policy file says nothing."""
    return ImageRule(image)


def _for_others(entry: Environment, job: Job) -> Reason:
    allowed = _allowed(entry.users, entry.accounts)
    account = job.account or "(none)"
    return because(Code.ENVIRONMENT, user=job.user, account=account, environment=entry.name, allowed=allowed)


def _allowed(users: Iterable[str], accounts: Iterable[str]) -> tuple[str, ...]:
    return (*(f"user {name}" for name in users), *(f"account {name}" for name in accounts))
