"""A job's own machines: what it asks for, and how far they are, until nothing of them is left.

It asks by a word in its texts, `backfill-vm:per_node=2,cpus=4,mem=2048`: job_submit.lua writes it into
AdminComment for the options of sbatch, and a job may bring it in its own comment. `backfill-vm` alone asks
for machines that are as the job is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from backfill.core.model.cluster import MachineRequest
from backfill.core.model.company import Company
from backfill.core.model.fleet import Flavour
from backfill.core.model.refusals import Code, Reason, because


class MachinesState(StrEnum):
    """How far a job's own machines are."""

    QUEUED = "queued"  # the job is held, and waits for its turn or for room
    SPAWNING = "spawning"  # they are being made
    SPAWNED = "spawned"  # they take this job and no other, which is let go
    ALLOCATED = "allocated"  # the job is on them
    RECLAIMED = "reclaimed"  # the job needs them no more: they go
    GIVEN_BACK = "given-back"  # nothing of them is left; the job stays held, and its owner knows why
    GONE = "gone"  # nothing of them is left; the record is dropped


# In these there are some, or some are being made, for a job that is not known to be over.
THERE = frozenset({MachinesState.SPAWNING, MachinesState.SPAWNED, MachinesState.ALLOCATED})

# From each state, the states that may follow. Absent pairs are programmer's errors.
_NEXT: dict[MachinesState, frozenset[MachinesState]] = {
    MachinesState.QUEUED: frozenset(
        {MachinesState.SPAWNING, MachinesState.RECLAIMED, MachinesState.GIVEN_BACK, MachinesState.GONE}
    ),
    MachinesState.SPAWNING: frozenset({MachinesState.SPAWNED, MachinesState.RECLAIMED}),
    MachinesState.SPAWNED: frozenset({MachinesState.ALLOCATED, MachinesState.RECLAIMED}),
    MachinesState.ALLOCATED: frozenset({MachinesState.RECLAIMED}),
    MachinesState.RECLAIMED: frozenset({MachinesState.QUEUED, MachinesState.GIVEN_BACK, MachinesState.GONE}),
    MachinesState.GIVEN_BACK: frozenset({MachinesState.GONE}),
    MachinesState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class JobMachines:
    """What one run of a job has as its own machines. Times in epoch seconds.

    `fleet`: the order that makes them; empty while there is none. `after`: what follows when they
    are reclaimed. `failures`: orders in a row that came to nothing through no fault of others.
    `inside`: the job has its nodes already, and these are on their hosts (core/reconcile/inside.py).
    """

    job: str
    restarts: int
    state: MachinesState
    since_s: float
    queued_s: float
    user: str
    size: int
    flavour: Flavour
    request: MachineRequest | None  # None: it could not be read
    image: str = ""  # empty: that of the policy file
    fleet: str = ""
    orders: int = 0  # so many were made for this run
    failures: int = 0
    after: MachinesState = MachinesState.GONE
    spawning_s: float | None = None  # when the first of the present ones was begun
    spawned_s: float | None = None  # when all of them took the job
    released_s: float | None = None  # when the job was let go
    began_s: float | None = None  # when Slurm began it there
    reason: str = ""
    inside: bool = False

    @property
    def what(self) -> str:
        """Return what it is to have, in words."""
        shape = str(self.flavour.resources)
        return f"a machine of {shape}" if self.size == 1 else f"{self.size} machines of {shape}"

    def use(self, now_s: float) -> tuple[float, float]:
        """Return their instance hours and core hours since the first one was begun: what a cloud charges."""
        hours = self.size * max(0.0, now_s - self.spawning_s) / 3600 if self.spawning_s is not None else 0.0
        return hours, hours * self.flavour.cpus

    @property
    def waits(self) -> bool:
        """Return True while others may be made before these."""
        return self.state is MachinesState.QUEUED

    def become(self, state: MachinesState, now_s: float, reason: str, **fields: object) -> JobMachines:
        """Return the record in its next state. AssertionError: no such state may follow."""
        if state is not self.state and state not in _NEXT[self.state]:
            raise AssertionError(f"the machines of job {self.job} may not go from {self.state} to {state}")
        since_s = self.since_s if state is self.state else float(now_s)
        made: JobMachines = replace(self, state=state, since_s=since_s, reason=reason, **fields)  # type: ignore[arg-type]
        return made


# --- what a job asks for --------------------------------------------------------------------------


WORD = "backfill-vm"
# What stands there instead, with the reason, when the job gets none.
NONE_THERE = "no machines on its nodes"
# Between blanks, or between a site's own separators.
_TOKEN = re.compile(rf"(?<![^\s;|]){WORD}(?::(?P<pairs>[^\s;|]*))?(?![^\s;|])")
_LARGEST_MB = 1 << 30
_MOST_REGIONS = 16
_NUMBER = re.compile(r"[0-9]{1,9}")
_SIZE = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[KMGTkmgt]?)[Bb]?")
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the word: the field behind it, how its value is read, and what it may be."""

    field: str
    read: Callable[[str], Any]
    shown: Callable[[Any], str]
    allowed: str


def _count(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if _NUMBER.fullmatch(text) else 0
        if not 1 <= number <= most:
            raise ValueError(text)
        return number

    return read


def _size_mb(text: str, usual: str = "M") -> int:
    found = _SIZE.fullmatch(text)
    size = int(int(found["number"]) * _UNITS[found["unit"].upper() or usual]) if found else 0
    if not 1 <= size <= _LARGEST_MB:
        raise ValueError(text)
    return size


def _disk_gb(text: str) -> float:
    return _size_mb(text, "G") / 1024


def _disk_text(size_gb: float) -> str:
    return f"{size_gb:.0f}" if size_gb == int(size_gb) else f"{size_gb * 1024:.0f}M"


def _yes(text: str) -> bool:
    if text != "1":
        raise ValueError(text)
    return True


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError(text)
    return text


def _company(text: str) -> Company:
    if not text:
        raise ValueError(text)
    return Company(text)


def _regions(text: str) -> tuple[int, ...]:
    sizes = tuple(_size_mb(part) for part in text.split("+"))
    if len(sizes) > _MOST_REGIONS or any(size & (size - 1) for size in sizes):
        raise ValueError(text)
    return sizes


def _names(text: str) -> tuple[str, ...]:
    return tuple(_name(part) for part in text.split("+"))


_SIZES = f"sizes that are powers of two such as 256+256 (MB), {_MOST_REGIONS} at most"
_NAMES = "a name of letters, digits and . _ -"
_KEYS = {
    "per_node": _Key("per_node", _count(64), str, "a number from 1 to 64"),
    "cpus": _Key("cpus", _count(4096), str, "a number from 1 to 4096"),
    "mem": _Key("memory_mb", _size_mb, str, "a size such as 2048 (MB) or 2G"),
    "disk": _Key("disk_gb", _disk_gb, _disk_text, "a size such as 20 (GB) or 500M"),
    "image": _Key("image", _name, str, _NAMES),
    "network": _Key("network", _name, str, _NAMES),
    "sriov": _Key("sriov", _count(64), str, "a number from 1 to 64"),
    "ivshmem": _Key("regions", _regions, lambda sizes: "+".join(map(str, sizes)), _SIZES),
    "place": _Key("company", _company, str, "together or spread"),
    "held": _Key("held", _yes, lambda held: "1", "1"),
    "at": _Key("at", _names, "+".join, "names of machines"),
    "run": _Key("run", _count(999_999_999), str, "a number from 1 on"),
}


def parse(text: str) -> MachineRequest | Reason | None:
    """Return what the word in a job's text asks for; why it cannot be read; None: it is not there."""
    if WORD not in text:
        return None  # the comments of ten thousand jobs
    found = list(_TOKEN.finditer(text))
    if not found:
        return None
    if len({token[0] for token in found}) > 1:
        return because(Code.MACHINES_TWICE, key=WORD)
    values: dict[str, Any] = {}
    for pair in filter(None, (found[0]["pairs"] or "").split(",")):
        name, _, value = pair.partition("=")
        key = _KEYS.get(name)
        if key is None:
            return because(Code.MACHINES_KEY, key=_told(name), keys=tuple(_KEYS))
        if key.field in values:
            return because(Code.MACHINES_TWICE, key=name)
        try:
            values[key.field] = key.read(value)
        except ValueError:
            return because(Code.MACHINES_VALUE, key=name, value=_told(value), allowed=key.allowed)
    return MachineRequest(**values)


def _told(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:40]


def asked(*texts: str) -> tuple[MachineRequest | None, Reason | None]:
    """Return what the first of these texts with the word asks for, or why that cannot be read.

    The most trusted text comes first: what the owner may change counts only where nobody else wrote,
    and says neither that we hold the job nor which machines it has.
    """
    for place, text in enumerate(texts):
        found = parse(text)
        if isinstance(found, MachineRequest):
            return (found if place == 0 else replace(found, at=(), run=0, held=False)), None
        if found is not None:
            return None, found
    return None, None


def render(request: MachineRequest) -> str:
    """Return the word in its one canonical form: `parse` gives back the same request."""
    plain = MachineRequest()
    values = ((name, key, getattr(request, key.field)) for name, key in _KEYS.items())
    pairs = [f"{n}={key.shown(v)}" for n, key, v in values if v != getattr(plain, key.field)]
    return f"{WORD}:{','.join(pairs)}" if pairs else WORD


def without_word(text: str) -> str:
    """Return the text without the word."""
    return _TOKEN.sub("", text).strip() if WORD in text else text


def word_of(text: str) -> str:
    """Return the word as it stands in the text; empty if it does not."""
    found = _TOKEN.search(text) if WORD in text else None
    return found[0] if found else ""


def with_word_of(theirs: str, text: str) -> str:
    """Return somebody else's text with the word of ours in the place of the one that it had."""
    return f"{without_word(theirs)} {word_of(text)}".strip()
