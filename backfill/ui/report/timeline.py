"""A stretch of time as the journal alone tells it: who was where when, and what took how long.

The same for a simulated run, a run on the lab and a production daemon. Times are epoch seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from backfill.engine.payload_book import PayloadSums
from backfill.ui.report.own_starts import OwnStart


class StretchKind(StrEnum):
    """Kinds of stretches of time: one kind has one colour everywhere."""

    METAL = "metal"  # a job on a host's own node
    WORKING = "working"  # a job on an instance, an instance with a job
    IDLE = "idle"
    BOOTING = "booting"
    EVICTING = "evicting"
    PAUSED = "paused"  # stands still, memory kept
    ON_DISK = "on-disk"  # stands still, memory on disk
    MOVING = "moving"
    RETURNING = "returning"
    DRAINING = "draining"
    REMOVING = "removing"
    WAITING = "waiting"
    FAILED = "failed"
    GIVEN_UP = "given-up"


# Kinds in words, in the order of a legend.
MEANINGS: Mapping[StretchKind, str] = {
    StretchKind.METAL: "job on bare metal",
    StretchKind.WORKING: "at work on an instance",
    StretchKind.IDLE: "ready, no job",
    StretchKind.BOOTING: "booting",
    StretchKind.EVICTING: "evicting",
    StretchKind.PAUSED: "stands still in memory",
    StretchKind.ON_DISK: "stands still on disk",
    StretchKind.MOVING: "moving",
    StretchKind.RETURNING: "returning",
    StretchKind.DRAINING: "draining",
    StretchKind.REMOVING: "removing",
    StretchKind.WAITING: "job waits",
    StretchKind.FAILED: "failed",
    StretchKind.GIVEN_UP: "given up",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time. `label` is short, `text` a sentence; `lane` counts from 0 in its row."""

    start_s: float
    end_s: float
    kind: StretchKind
    label: str = ""
    text: str = ""
    hosts: tuple[str, ...] = ()
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One host, instance or job. `end`: how a job ended, empty while it has not."""

    name: str
    spans: tuple[Stretch, ...]
    label: str = ""
    lanes: int = 1
    end: str = ""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """Slurm gave hosts of ours to a job; `answered_s` 0: its hook was never answered."""

    job: str
    hosts: tuple[str, ...]
    at_s: float
    answered_s: float = 0.0
    ok: bool = False
    evicted: bool = False  # an instance had to be pushed aside for it


@dataclass(frozen=True, slots=True)
class Step:
    """One call to the outside. `end_s` 0: no end was seen; `problem` is empty on success."""

    name: str
    start_s: float
    end_s: float = 0.0
    problem: str = ""

    @property
    def took_s(self) -> float:
        """Return how long it took; 0 where no end was seen."""
        return max(0.0, self.end_s - self.start_s) if self.end_s else 0.0


@dataclass(frozen=True, slots=True)
class Boot:
    """From the decision to make an instance until it took jobs. A time of 0 was not reached.

    `marks`: what the guest itself told of its start, as (step, seconds since its kernel began).
    """

    node: str
    generation: int
    host: str
    decided_s: float
    steps: tuple[Step, ...] = ()
    registered_s: float = 0.0
    ready_s: float = 0.0
    submitted_s: float = 0.0  # when its first job was submitted
    first_job_s: float = 0.0  # when its first job started
    end: str = ""  # why it came to nothing
    marks: tuple[tuple[str, float], ...] = ()

    def step(self, name: str) -> Step | None:
        """Return the last try of the call with this name."""
        return next((s for s in reversed(self.steps) if s.name == name), None)


@dataclass(frozen=True, slots=True)
class EvictionMark:
    """From the moment a host was wanted until its work went on, or did not. 0: not reached."""

    node: str
    generation: int
    host: str
    reason: str
    wanted_s: float
    began_s: float
    jobs: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    stopped_s: float = 0.0  # the room was free
    parked_s: float = 0.0  # Slurm's picture agreed
    moving_s: float = 0.0
    returning_s: float = 0.0
    back_s: float = 0.0
    back_host: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the story; `main` ones are enough to follow it."""

    at_s: float
    subject: str
    text: str
    main: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that a picture or a report of a stretch of time needs."""

    start_s: float
    end_s: float
    hosts: tuple[Row, ...] = ()
    instances: tuple[Row, ...] = ()
    jobs: tuple[Row, ...] = ()
    claims: tuple[ClaimSeen, ...] = ()
    boots: tuple[Boot, ...] = ()
    evictions: tuple[EvictionMark, ...] = ()
    own: tuple[OwnStart, ...] = ()
    events: tuple[Event, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of jobs, by id
    payload_days: Mapping[str, PayloadSums] = field(default_factory=dict)  # by date, the latest first
    payload_pilots: Mapping[str, PayloadSums] = field(default_factory=dict)  # by the id of a pilot's job

    @property
    def length_s(self) -> float:
        """Seconds from beginning to end, never quite 0."""
        return max(self.end_s - self.start_s, 0.001)

    def named(self, text: str) -> str:
        """Put the names of jobs behind their numbers."""
        return _JOB.sub(lambda m: self._with_name(m.group(0), m.group(1)), text)

    def _with_name(self, whole: str, job_id: str) -> str:
        name = self.names.get(job_id, "")
        return f"{whole} ({name})" if name else whole


_JOB = re.compile(r"\bjob (\d+(?:[_+]\d+)?)\b(?! \()")


def natural(name: str) -> tuple[object, ...]:
    """Make a key to sort names with numbers by: vn2 before vn10."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in parts)


def in_lanes(items: Sequence[Sequence[Stretch]], first: int = 0) -> tuple[list[list[Stretch]], int]:
    """Give each item (spans of one thing) a lane in which nothing else is at that time.

    Returns the items with their lanes, and the number of lanes up to the last one used.
    """
    free_s: list[float] = []
    placed = []
    for spans in sorted(items, key=lambda s: s[0].start_s):
        start_s, end_s = spans[0].start_s, max(s.end_s for s in spans)
        lane = next((i for i, f in enumerate(free_s) if f <= start_s + 1e-9), len(free_s))
        free_s[lane : lane + 1] = [end_s]
        placed.append([_in_lane(span, first + lane) for span in spans])
    return placed, first + len(free_s)


def _in_lane(span: Stretch, lane: int) -> Stretch:
    return Stretch(span.start_s, span.end_s, span.kind, span.label, span.text, span.hosts, lane)


def runs_of(spans: Iterable[Stretch], host: str) -> list[list[Stretch]]:
    """Group the spans on `host` into stays without a break."""
    stays: list[list[Stretch]] = []
    for span in spans:
        if host not in span.hosts:
            continue
        if stays and stays[-1][-1].end_s >= span.start_s - 1e-9:
            stays[-1].append(span)
        else:
            stays.append([span])
    return stays
