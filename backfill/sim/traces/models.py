"""Workload models: Poisson arrivals, HTC pilots with a backlog, rigid parallel jobs with a daily cycle.

The last is that of Lublin and Feitelson, "The workload on parallel supercomputers: modeling the
characteristics of rigid jobs", J. Parallel and Distributed Computing 63(11), 2003 (model and
parameters of 1999).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import exp, log2
from random import Random
from typing import NamedTuple

from backfill.sim.traces.draws import choose, exponential, gamma, gamma_cdf, lognormal, seeded, uniform_int

POISSON_SIZES = (2, 8)
HTC_LONGEST_S = 172_800
# (share, median seconds, deviation of the logarithm). Fitted by expectation maximisation to the
# 187,520 run times of the LCG grid log of 2005 (Parallel Workloads Archive; log by Hui Li):
# probes and failures, mixed short work, real work.
HTC_RUN_TIMES = ((0.477, 153.9, 0.441), (0.205, 378.4, 2.035), (0.318, 8570.0, 1.419))


class ModelJob(NamedTuple):
    """One job of a model; an estimate of -1 means that its user gave none."""

    submit_s: int
    run_s: int
    processors: int
    estimate_s: int = -1


def poisson(
    seed: int,
    jobs: int,
    mean_gap_s: float,
    sizes: Sequence[int] = POISSON_SIZES,
    run_s: tuple[int, int] = (140, 350),
) -> list[ModelJob]:
    """Draw jobs that arrive independently, of equally likely sizes and uniform run times."""
    rng = seeded(seed)
    drawn, now_s = [], 0.0
    for _ in range(jobs):
        now_s += exponential(rng, mean_gap_s)
        size = sizes[uniform_int(rng, 0, len(sizes) - 1)]
        drawn.append(ModelJob(int(now_s), uniform_int(rng, *run_s), size))
    return drawn


def htc_pilot(
    seed: int,
    jobs: int,
    mean_gap_s: float,
    backlog: int = 0,
    sizes: Sequence[tuple[int, float]] = ((1, 1.0),),
    limit_s: int = HTC_LONGEST_S,
) -> list[ModelJob]:
    """Draw the work of a grid site as pilots bring it: mostly short, with a long tail.

    `backlog` of the jobs wait at time 0, the others arrive independently. `sizes` are pairs of
    processors and their share. Every job asks for `limit_s`, and none runs longer.
    """
    rng = seeded(seed)
    drawn, now_s = [], 0.0
    for number in range(jobs):
        if number >= backlog:
            now_s += exponential(rng, mean_gap_s)
        _, median_s, deviation = HTC_RUN_TIMES[choose(rng, [part[0] for part in HTC_RUN_TIMES])]
        run_s = min(max(int(lognormal(rng, median_s, deviation)), 1), limit_s)
        size = sizes[choose(rng, [share for _, share in sizes])][0]
        drawn.append(ModelJob(int(now_s), run_s, size, limit_s))
    return drawn


def offered_load(jobs: Sequence[ModelJob], processors: int) -> float:
    """Return the work of the jobs over what the machine can do while they arrive."""
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    work = sum(job.run_s * job.processors for job in jobs)
    return work / (processors * span_s) if span_s else float("inf")


def scaled_to_load(jobs: Sequence[ModelJob], processors: int, load: float) -> list[ModelJob]:
    """Stretch or squeeze the arrivals so that the offered load becomes `load`."""
    if len(jobs) < 2 or jobs[-1].submit_s == jobs[0].submit_s:
        return list(jobs)
    factor = offered_load(jobs, processors) / load
    first_s = jobs[0].submit_s
    return [job._replace(submit_s=first_s + int((job.submit_s - first_s) * factor)) for job in jobs]


def with_estimates(jobs: Sequence[ModelJob], seed: int, factor: float, step_s: int = 300) -> list[ModelJob]:
    """Give each job an estimate of up to `factor` times its run time, rounded up to `step_s`.

    The f-model of Feitelson and Weil, IPPS 1998, with the round values that people write.
    """
    rng = seeded(seed)
    drawn = []
    for job in jobs:
        wanted = job.run_s * (1.0 + (factor - 1.0) * rng.random())
        drawn.append(job._replace(estimate_s=-(-int(wanted) // step_s) * step_s))
    return drawn


SLOT_S = 1800
SLOTS_PER_DAY = 48
FIRST_SLOT = 11  # the model's day begins at half past five, when the fewest jobs arrive
LONGEST_LOG_RUN = 12.0  # exp(12) s: 45 h
LONGEST_LOG_GAP = 13.0  # exp(13) s: 5 days


@dataclass(frozen=True, slots=True)
class JobKind:
    """Parameters of one kind of job.

    Sizes: share of serial jobs, share of powers of two, and a two-stage uniform distribution of
    log2(size) from `low` over `high - bend` (reached with `first`) to `high`, the log2 of the
    largest size; `high` None: the machine. Run times: logarithms from one of two gammas, the
    first with probability `slope x size + level`. Gaps: logarithms from a gamma in the rush hours,
    stretched by the share of the day's jobs that arrive in each half hour, which is a gamma too.
    Each gamma is (shape, scale).
    """

    serial: float
    power_of_two: float
    low: float
    bend: float
    high: float | None
    first: float
    short: tuple[float, float]
    long: tuple[float, float]
    slope: float
    level: float
    gap: tuple[float, float]
    day: tuple[float, float]


ALL = JobKind(
    *(0.244, 0.576, 0.8, 2.5, None, 0.86),
    *((4.2, 0.94), (312.0, 0.03), -0.0054, 0.78),
    *((10.2303 * 1.0225, 0.4871), (8.1737, 3.9631)),
)
BATCH = JobKind(
    *(0.2927, 0.6686, 1.2, 2.0, None, 0.875),
    *((6.57, 0.823), (639.1, 0.0156), -0.003, 0.6986),
    *((6.0415 * 1.0519, 0.8531), (6.1271, 5.2740)),
)
INTERACTIVE = JobKind(
    *(0.1541, 0.625, 1.0, 2.5, 5.5, 0.705),
    *((3.8351, 0.6605), (7.073, 0.6856), -0.0118, 0.9156),
    *((6.5510 * 0.9797, 0.6621), (8.9186, 3.6680)),
)


def lublin(
    seed: int, jobs: int, processors: int, load: float | None = None, kinds: Sequence[JobKind] = (ALL,)
) -> list[ModelJob]:
    """Draw `jobs` jobs for a machine of this size, in order of submission, without estimates.

    `load` stretches the arrivals so that the work offered is this share of the machine. Several
    kinds, as (BATCH, INTERACTIVE), arrive side by side.
    """
    # A stream per kind: what one kind draws does not shift the other.
    rngs = [seeded(seed * len(kinds) + position) for position in range(len(kinds))]
    streams = (_jobs(rng, kind, processors) for rng, kind in zip(rngs, kinds, strict=True))
    drawn = list(islice(merge(*streams, key=lambda job: job.submit_s), jobs))
    return drawn if load is None else scaled_to_load(drawn, processors, load)


def _jobs(rng: Random, kind: JobKind, processors: int) -> Iterator[ModelJob]:
    for submit_s in _arrivals(rng, kind):
        size = _size(rng, kind, processors)
        yield ModelJob(int(submit_s), _run_s(rng, kind, size), size)


def _size(rng: Random, kind: JobKind, processors: int) -> int:
    draw = rng.random()
    largest = log2(processors)
    high = largest if kind.high is None else min(kind.high, largest)
    if draw <= kind.serial or high <= kind.low:
        return 1
    middle = max(high - kind.bend, kind.low)
    low, top = (kind.low, middle) if rng.random() <= kind.first else (middle, high)
    exponent = low + (top - low) * rng.random()
    if draw <= kind.serial + kind.power_of_two:
        exponent = int(exponent + 0.5)
    return min(int(2**exponent + 0.5), processors)


def _run_s(rng: Random, kind: JobKind, size: int) -> int:
    share = min(max(kind.slope * size + kind.level, 0.0), 1.0)
    short = rng.random() <= share
    while True:
        value = gamma(rng, *(kind.short if short else kind.long))
        if value <= LONGEST_LOG_RUN:
            return max(int(exp(value)), 1)


def _arrivals(rng: Random, kind: JobKind) -> Iterator[float]:
    """Yield arrival times: rush-hour gaps on a clock that runs slower when fewer jobs arrive."""
    pace = _pace(kind)
    slot, credit = 0, 0.0
    while True:
        value = gamma(rng, *kind.gap)
        if value > LONGEST_LOG_GAP:
            continue
        credit += exp(value) / SLOT_S
        while credit > pace[slot % SLOTS_PER_DAY]:
            credit -= pace[slot % SLOTS_PER_DAY]
            slot += 1
        yield SLOT_S * (slot + credit / pace[slot % SLOTS_PER_DAY])


def _pace(kind: JobKind) -> list[float]:
    """Return how many of the day's jobs arrive in each half hour, from midnight, 1 on average."""
    shares = [0.0] * SLOTS_PER_DAY
    for slot in range(FIRST_SLOT, FIRST_SLOT + SLOTS_PER_DAY):
        share = gamma_cdf(slot + 0.5, *kind.day) - gamma_cdf(slot - 0.5, *kind.day)
        shares[(slot - 1) % SLOTS_PER_DAY] = share
    mean = sum(shares) / SLOTS_PER_DAY
    return [share / mean for share in shares]
