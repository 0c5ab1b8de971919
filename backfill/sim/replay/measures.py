"""Measures in the field's terms: of jobs on a machine, of harvested work, of evictions.

Times are seconds, work is core seconds (cores x seconds) unless the name says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

TAU_S = 10.0


CORE_S_PER_CORE_H = 3600.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a set of values looks like; all zero if it is empty."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class JobMeasures:
    """How a set of jobs fared; `utilisation` is their share of the machine over `makespan_s`.

    The makespan runs from the first submission to the last end.
    """

    jobs: int
    wait_s: Distribution
    turnaround_s: Distribution
    bounded_slowdown: Distribution
    per_processor_bounded_slowdown: Distribution
    makespan_s: float
    core_h: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Harvest:
    """Where a cluster's core seconds went during an observation.

    `high_core_s` went to the jobs that the cluster is for. Of what instances used: goodput is
    work of jobs that was kept to their end or to a checkpoint, badput is work that was lost, and
    overhead is room held without work (boot, suspend, restore, migration, memory of the paused).
    """

    capacity_core_s: float
    high_core_s: float
    goodput_core_s: float
    badput_core_s: float
    overhead_core_s: float

    @property
    def idle_core_s(self) -> float:
        """Return what instances could use at most."""
        return self.capacity_core_s - self.high_core_s

    @property
    def high_utilisation(self) -> float:
        return _share(self.high_core_s, self.capacity_core_s)

    @property
    def total_utilisation(self) -> float:
        """Share of the capacity that did work that counted or was at least attempted."""
        used = self.high_core_s + self.goodput_core_s + self.badput_core_s
        return _share(used, self.capacity_core_s)

    @property
    def harvested_fraction(self) -> float:
        """Share of the otherwise idle core seconds that became goodput."""
        return _share(self.goodput_core_s, self.idle_core_s)

    @property
    def goodput_share(self) -> float:
        """Share of what instances used that became goodput."""
        used = self.goodput_core_s + self.badput_core_s + self.overhead_core_s
        return _share(self.goodput_core_s, used)

    @property
    def lost_core_h(self) -> float:
        return self.badput_core_s / CORE_S_PER_CORE_H


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction: the rung that ended it, when it was asked for, when its room was free."""

    rung: str
    asked_s: float
    vacated_s: float


@dataclass(frozen=True, slots=True)
class EvictionMeasures:
    """`by_rung` counts preemptions; `vacate_s` is the time from asking to free room."""

    by_rung: Mapping[str, int]
    vacate_s: Distribution


@dataclass(frozen=True, slots=True)
class PairedDelay:
    """Delay of jobs against the same jobs in a reference run on the same seed.

    `delay_s` takes an earlier start as a negative delay. `unpaired` jobs started in one run only.
    """

    delay_s: Distribution
    delayed: int
    unpaired: int


def bounded_slowdown(wait_s: float, run_s: float, tau_s: float = TAU_S) -> float:
    """Return turnaround over run time, where run times below `tau_s` count as `tau_s`.

    Never below 1. Feitelson et al., "Theory and Practice in Parallel Job Scheduling", JSSPP 1997.
    """
    return max(1.0, (wait_s + run_s) / max(run_s, tau_s))


def per_processor_bounded_slowdown(
    wait_s: float, run_s: float, processors: int, tau_s: float = TAU_S
) -> float:
    """Return the bounded slowdown per processor, never below 1.

    Zotkin and Keleher, "Job-Length Estimation and Performance in Backfilling Schedulers", 1999.
    """
    return max(1.0, (wait_s + run_s) / (processors * max(run_s, tau_s)))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest rank: the smallest value that at least `percent` % do not exceed.

    `ordered` is ascending and not empty.
    """
    return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]


def distribution(values: Iterable[float]) -> Distribution:
    """Describe values of any order; the percentiles are nearest ranks."""
    ordered = sorted(values)
    if not ordered:
        return Distribution(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Distribution(
        len(ordered),
        sum(ordered) / len(ordered),
        percentile(ordered, 50),
        percentile(ordered, 90),
        percentile(ordered, 99),
        ordered[-1],
    )


def job_measures(
    submit_s: Sequence[float],
    start_s: Sequence[float],
    run_s: Sequence[float],
    processors: Sequence[int],
    capacity: int,
    tau_s: float = TAU_S,
) -> JobMeasures:
    """Measure jobs that ran to their end; four columns of one entry per job."""
    waits = [start - submit for start, submit in zip(start_s, submit_s, strict=True)]
    jobs = list(zip(waits, run_s, processors, strict=True))
    ends = (start + run for start, run in zip(start_s, run_s, strict=True))
    makespan_s = max(ends, default=0) - min(submit_s, default=0)
    core_s = sum(run * cores for _, run, cores in jobs)
    return JobMeasures(
        jobs=len(jobs),
        wait_s=distribution(waits),
        turnaround_s=distribution(wait + run for wait, run, _ in jobs),
        bounded_slowdown=distribution(bounded_slowdown(wait, run, tau_s) for wait, run, _ in jobs),
        per_processor_bounded_slowdown=distribution(
            per_processor_bounded_slowdown(wait, run, cores, tau_s) for wait, run, cores in jobs
        ),
        makespan_s=makespan_s,
        core_h=core_s / CORE_S_PER_CORE_H,
        utilisation=_share(core_s, capacity * makespan_s),
    )


def eviction_measures(evictions: Iterable[Eviction]) -> EvictionMeasures:
    """Count evictions by rung and measure how long their room took to get free."""
    done = list(evictions)
    return EvictionMeasures(
        by_rung=dict(sorted(Counter(one.rung for one in done).items())),
        vacate_s=distribution(one.vacated_s - one.asked_s for one in done),
    )


def paired_delay(
    reference_start_s: Mapping[Hashable, float], start_s: Mapping[Hashable, float]
) -> PairedDelay:
    """Compare starts by job, key by key, with those of a run without instances."""
    both = reference_start_s.keys() & start_s.keys()
    delays = [start_s[job] - reference_start_s[job] for job in both]
    return PairedDelay(
        delay_s=distribution(delays),
        delayed=sum(delay > 0 for delay in delays),
        unpaired=len(reference_start_s.keys() ^ start_s.keys()),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
