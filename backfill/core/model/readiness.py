"""What a node must have proven before it takes jobs, and what its guest's report proves."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

CLOCK, MUNGE, FILES, RESOURCES, ADDRESS, SALT, SLURMD, KEY = (
    "clock",
    "munge",
    "files",
    "resources",
    "address",
    "salt",
    "slurmd",
    "key",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One finding that needs no policy to be judged. `said`: the figure, or what is wrong.

    `name` is a check, with the part of it after a colon: `munge:to the guest`, `files:/home`.
    """

    name: str
    ok: bool
    said: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What one call into a guest found out, after its clock was set.

    `offset_s`: the controller's clock minus the guest's; None when it could not be measured.
    `bound_s`: how far that may be wrong. `source`: what it was measured against.
    """

    correction_s: float
    offset_s: float | None
    bound_s: float
    source: str
    cpus: int
    memory_mb: int
    addresses: tuple[str, ...]
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One judged point of the proof: `sentence` says what was found, `remedy` what to do."""

    name: str
    ok: bool
    sentence: str
    remedy: str = ""
    took_s: float = 0.0


class Registered(Protocol):
    """A node as slurmd has registered it with Slurm."""

    @property
    def slurmd_start_s(self) -> float:
        """Return when its slurmd began, epoch seconds; 0: it has not registered."""

    @property
    def cpus(self) -> int:
        """The number of CPUs that it told."""

    @property
    def memory_mb(self) -> int:
        """The memory that it told."""


_CONSOLE = "when it fails `backfill explain NODE` tells how its console ended"


_MORE = "give the flavour more, or promise less of it (memory_margin_mb)"


_REMEDIES = {
    CLOCK: "see that chronyd runs on the controller and that guests reach its UDP port 123",
    MUNGE: "see that munged runs on both sides, with the controller's key (surroundings.munge_key)",
    KEY: "see that /etc/slurm in the guest can be written, and that its disk has room",
    FILES: "see that the file server runs and exports the path to the guest's address",
    RESOURCES: _MORE,
    SLURMD: _MORE,
    ADDRESS: "look for a second machine with this address, and at the image's network set-up",
    SALT: "`backfill provision NODE` shows which state fails",
}


# What a guest cannot prove while a service of the site is out: its file server, its time, its munge.
OF_THE_SITE = frozenset({CLOCK, MUNGE, FILES, SALT})


_IMAGE = "image "  # among the names of streaks: no host has a blank in its own


def image_streak(image: str) -> str:
    """Return the name of an image's streak; empty: the usual image."""
    return _IMAGE + image


def is_image_streak(name: str) -> bool:
    """Return True if it is the name of an image's streak, and no host's."""
    return name.startswith(_IMAGE)


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row, with no success between them."""

    count: int
    last_s: float
    problem: str


@dataclass(frozen=True, slots=True)
class Stated:
    """What a node's states come to, as checksums (SHA-256, hex): of the list that its guest has.

    `seals`: path of a secret, a text, and the checksum of that text with the secret behind it.
    """

    listed: str
    seals: tuple[tuple[str, str, str], ...] = ()


def figure(text: str) -> float:
    """Read a number that a guest told. ValueError also for what cannot be reckoned with: inf, nan."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text} is no figure")
    return value


def kind_of(name: str) -> str:
    """Return the check's kind: `files` of `files:/home`."""
    return name.partition(":")[0]


def judge_report(
    report: GuestReport, address: str, cpus: int, memory_mb: int, clock_offset_s: float
) -> tuple[Check, ...]:
    """Hold a guest's report to what was promised: its CIDR address, CPUs, memory, and clock."""
    facts = [_check(f.name, f.ok, f.said, f.took_s) for f in report.facts]
    return (
        _clock(report, clock_offset_s),
        *facts,
        _resources(report, cpus, memory_mb),
        _address(report, address.split("/")[0]),
    )


# What a finding says when the check's usual remedy would lead astray.
_SPECIAL = {
    "not know the time itself": "give chronyd on the controller a source, or `local stratum 10`",
    "from the daemon's clock": "set libvirt.surroundings.time_server, since the guest's agent is "
    "too slow to measure by, or a longer clock_offset_s",
    "cannot be written: Permission denied": "build the image anew: its proof is an old one, which "
    "fails where the server squashes root",
    "the proving program does not tell": "build the image anew: its proof is an older one",
    "cannot be written: Read-only": "export it for writing, or mount it with `ro`",
    "cannot be written: No space": "make room on the file server",
}


def _check(name: str, ok: bool, sentence: str, took_s: float = 0.0) -> Check:
    special = (remedy for found, remedy in _SPECIAL.items() if found in sentence)
    remedy = "" if ok else next(special, _REMEDIES.get(kind_of(name), ""))
    return Check(name, ok, sentence, remedy, took_s)


def judge_registration(node: Registered, cpus: int, memory_mb: int) -> Check:
    """Hold what slurmd has told Slurm to what was promised."""
    if node.slurmd_start_s <= 0:
        return Check(SLURMD, False, "it has not registered with Slurm yet", _CONSOLE)
    if node.cpus >= cpus and node.memory_mb >= memory_mb:
        return _check(SLURMD, True, f"{node.cpus} CPUs and {node.memory_mb} MB")
    return _check(
        SLURMD,
        False,
        f"it registered with {node.cpus} CPUs and {node.memory_mb} MB instead of {cpus} and {memory_mb}",
    )


def _clock(report: GuestReport, limit_s: float) -> Check:
    if report.offset_s is None:
        return _check(CLOCK, False, f"its offset could not be measured: {report.source}")
    # The worst that is possible counts: an uncertain measurement proves less.
    worst_s = abs(report.offset_s) + report.bound_s
    told = f"{report.offset_s:+.4f} s (± {report.bound_s:.4f}) from {report.source}"
    if worst_s <= limit_s:
        return _check(CLOCK, True, told)
    return _check(CLOCK, False, f"{told}, and {limit_s:g} s is the limit")


def _resources(report: GuestReport, cpus: int, memory_mb: int) -> Check:
    told = f"{report.cpus} CPUs and {report.memory_mb} MB"
    if report.cpus >= cpus and report.memory_mb >= memory_mb:
        return _check(RESOURCES, True, told)
    return _check(RESOURCES, False, f"{told} instead of the promised {cpus} and {memory_mb}")


def _address(report: GuestReport, address: str) -> Check:
    others = [a for a in report.addresses if a != address and not a.startswith("127.")]
    if address in report.addresses:
        return _check(ADDRESS, True, address)
    return _check(ADDRESS, False, f"it has {', '.join(others) or 'no address'}, not {address}")
