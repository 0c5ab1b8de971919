"""Environments: which software a job may ask for by a constraint, and who may."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backfill.core.cluster import Job

# Slurm's constraints join names by & | [ ] ( ) * , and counts (sbatch(1), --constraint).
_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Environment:
    """One software environment: the feature that jobs ask for, and the master image behind it."""

    # The feature's name, as in sbatch --constraint.
    name: str
    # Which of libvirt.images it is.
    image: str = "default"
    # Who may ask for it; with neither users nor accounts everybody may.
    users: tuple[str, ...] = ()
    # Accounts whose members may.
    accounts: tuple[str, ...] = ()

    def refuses(self, job: Job) -> bool:
        """Whether the job's owner is none of those who may have it."""
        listed = self.users or self.accounts
        return bool(listed) and job.user not in self.users and job.account not in self.accounts


@dataclass(frozen=True, slots=True)
class Environments:
    """The catalogue: a job that asks for one that it may not have waits without an instance."""

    # One entry for each environment.
    entries: tuple[Environment, ...] = ()

    def admit(self, jobs: Iterable[Job], refused: dict[str, str]) -> Iterator[Job]:
        """The jobs that count; the others are put into `refused` by id, with the reason."""
        for job in jobs:
            why = self.refusal(job)
            if why:
                refused[job.id] = why
            else:
                yield job

    def refusal(self, job: Job) -> str:
        """Say why the job may not have what it asks for, or return an empty text."""
        wanted = set(_NAMES.findall(job.features))
        for entry in self.entries:
            if entry.name in wanted and entry.refuses(job):
                allowed = [*(f"user {name}" for name in entry.users),
                           *(f"account {name}" for name in entry.accounts)]  # fmt: skip
                return (
                    f"user {job.user} of account {job.account or '(none)'} may not have "
                    f"environment {entry.name}: it is for {', '.join(allowed)}"
                )
        return ""

    def image_of(self, name: str) -> str:
        """The master image of an environment; any other name is an image's own."""
        return next((entry.image for entry in self.entries if entry.name == name), name)
