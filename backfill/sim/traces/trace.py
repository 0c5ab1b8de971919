"""A trace in memory: jobs as columns of integers in queue order, and what was left out of it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import le
from pathlib import Path

MILLI = 1000
LARGEST = 2**42  # ticks, processors: a million times this still fits the columns
NO_RUN_TIME = "run time of 0 or less, or unknown"
NO_PROCESSORS = "no processors"
NO_SUBMIT_TIME = "no submit time"
TOO_LARGE = "more processors than the machine has"
# What begins later counts from 1970: no trace begins 15 years after a beginning of its own.
EPOCHS_S = 500_000_000


class TraceError(Exception):
    """Input that cannot be read: one sentence with the place and the remedy."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        place = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{place}: {problem}")


@dataclass(frozen=True, slots=True)
class JobDetails:
    """What a source tells of a job besides its times and size; empty or 0: nothing.

    `memory_mb` is what it was given on its node, or on all of its nodes together.
    """

    partition: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    memory_mb: int = 0


UNTOLD = JobDetails()


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Jobs in queue order, that is by (submit, job id); one entry per job in every column.

    `job_id` is a number that orders jobs of one submit time, and their name where there are no
    `labels` (the source's names, as of job arrays). `submit`, `run` and `estimate` count ticks,
    `ticks_per_s` of them to a second: 1, or 1000 for a trace with fractions of seconds, so that
    all arithmetic is exact. `run` is at least 1 tick, `estimate` at least `run`, `processors` at
    least 1. Five columns of 8 bytes: 40 bytes per job.
    """

    job_id: array[int]
    submit: array[int]
    run: array[int]
    estimate: array[int]
    processors: array[int]
    ticks_per_s: int = 1
    labels: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)
    origin: int | None = None  # the tick from which a replay counts; None: the first submission
    unix_start_s: int = (
        0  # what its second 0 is in seconds since 1970, where it counts from there; 0: unknown
    )
    bound: int | None = None  # the tick at which a replay ends what it observes; None: when all is done
    starts: array[int] | None = None  # when they began in fact, -1 unknown; None: nobody has asked
    wall: bool = False  # its seconds since 1970 are what clocks of an unknown time zone showed
    offsets: bool = False  # its source has times with an offset from UTC
    details: tuple[JobDetails, ...] | None = None  # None: the source tells nothing

    @property
    def begin(self) -> int:
        """The tick at which a replay of it begins."""
        return self.submit[0] if self.origin is None else self.origin

    @property
    def epoch_s(self) -> float | None:
        """When a replay of it begins, in seconds since 1970; None if it does not say so."""
        begin_s = self.begin / self.ticks_per_s
        if begin_s >= EPOCHS_S:
            return begin_s
        return begin_s + self.unix_start_s if self.unix_start_s else None

    @property
    def end(self) -> int:
        """The tick at which all would have ended if none had waited."""
        return max(map(int.__add__, self.submit, self.run))

    def __len__(self) -> int:
        return len(self.job_id)

    def name(self, index: int) -> str:
        """Return the job's name as its source wrote it."""
        return str(self.job_id[index]) if self.labels is None else self.labels[index]

    def told(self, index: int) -> JobDetails:
        """Return what its source tells of the job."""
        return UNTOLD if self.details is None else self.details[index]

    def fitting(self, processors: int) -> JobTrace:
        """Return the trace without the jobs that need more than this many processors."""
        if not len(self) or max(self.processors) <= processors:
            return self
        kept = [index for index, need in enumerate(self.processors) if need <= processors]
        left_out = Counter(self.left_out)
        left_out[TOO_LARGE] += len(self) - len(kept)
        return self.taken(kept, left_out)

    def taken(self, indices: Sequence[int], left_out: Mapping[str, int]) -> JobTrace:
        """Return a trace of these jobs, in this order, with this count of what was left out."""

        def take(column: array[int]) -> array[int]:
            return array(column.typecode, map(column.__getitem__, indices))

        return replace(
            self,
            job_id=take(self.job_id),
            submit=take(self.submit),
            run=take(self.run),
            estimate=take(self.estimate),
            processors=take(self.processors),
            starts=None if self.starts is None else take(self.starts),
            labels=None if self.labels is None else tuple(map(self.labels.__getitem__, indices)),
            details=None if self.details is None else tuple(map(self.details.__getitem__, indices)),
            left_out=left_out,
        )


class TraceBuilder:
    """Collects jobs one by one, in any order, and applies the rules for odd ones."""

    __slots__ = (
        "columns",
        "details",
        "labels",
        "left_out",
        "noted",
        "offsets",
        "starts",
        "ticks_per_s",
        "unix_start_s",
        "wall",
    )

    def __init__(self, *, starts: bool = False) -> None:
        """Begin with none; `starts`: keep when they began in fact."""
        self.starts = array("q") if starts else None
        self.columns: tuple[array[int], ...] = tuple(array("q") for _ in range(5))
        self.labels: list[str] = []
        self.details: list[JobDetails] = []
        self.left_out: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self.ticks_per_s = 1
        self.unix_start_s = 0
        self.wall = False
        self.offsets = False

    def add(
        self, job_id: int, submit: int, run: int, processors: int, estimate: int, start: int = -1
    ) -> bool:
        """Add one job, times in ticks; return whether it was kept.

        An estimate below the run time is raised to it; one of 0 or less counts as missing, and
        the run time stands in for it. OverflowError if a number is absurdly large.
        """
        if run <= 0:
            self.left_out[NO_RUN_TIME] += 1
            return False
        if processors <= 0:
            self.left_out[NO_PROCESSORS] += 1
            return False
        if estimate < run:
            reason = "no estimate: run time taken" if estimate <= 0 else "estimate below run time"
            self.noted[reason] += 1
            estimate = run
        if max(submit, -submit, estimate, processors) > LARGEST:
            raise OverflowError
        ids, submits, runs, estimates, sizes = self.columns
        ids.append(job_id)
        submits.append(submit)
        runs.append(run)
        estimates.append(estimate)
        sizes.append(processors)
        if self.starts is not None:
            self.starts.append(start)
        return True

    def ticks(self, seconds: Decimal) -> int:
        """Convert a time; the first fraction turns the whole trace to milliseconds."""
        if self.ticks_per_s == 1 and seconds != seconds.to_integral_value():
            ids, submits, runs, estimates, sizes = self.columns
            scaled = (array("q", (t * MILLI for t in c)) for c in (submits, runs, estimates))
            self.columns = (ids, *scaled, sizes)
            if self.starts is not None:
                self.starts = array("q", (t * MILLI if t >= 0 else t for t in self.starts))
            self.ticks_per_s = MILLI
        return round(seconds * self.ticks_per_s)

    def build(self) -> JobTrace:
        """Return the jobs in queue order; equal (submit, job id) stay in the order of adding."""
        labels = tuple(self.labels) if self.labels else None
        ids, submits, runs, estimates, sizes = self.columns
        trace = JobTrace(
            *(ids, submits, runs, estimates, sizes, self.ticks_per_s, labels, self.left_out, self.noted),
            starts=self.starts,
            unix_start_s=self.unix_start_s,
            wall=self.wall,
            offsets=self.offsets,
            details=tuple(self.details) if self.details else None,
        )
        if _in_order(ids, submits):
            return trace
        # Two stable sorts need one key per job in memory where tuples would need three objects.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        order.sort(key=submits.__getitem__)
        return trace.taken(order, self.left_out)


def _in_order(ids: array[int], submits: array[int]) -> bool:
    pairs = zip(submits, ids, strict=True)
    following = zip(submits, ids, strict=True)
    next(following, None)
    return all(map(le, pairs, following))


def fitted(path: Path, trace: JobTrace, processors: int) -> JobTrace:
    """Return the trace without what needs more processors; TraceError where nothing is left."""
    found = trace.fitting(processors)
    if len(found):
        return found
    why = describe_counts(found.left_out.items())
    raise TraceError(path, 0, f"has no job that can be replayed ({why}); check --cluster and the trace")


def describe_counts(counts: Iterable[tuple[str, int]]) -> str:
    """Return `3 jobs: no processors; 1 job: ...`, the most frequent reason first."""
    ranked = sorted(counts, key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{n} job{'s' if n != 1 else ''}: {reason}" for reason, n in ranked)
