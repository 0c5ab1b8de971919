"""The workload model of Lublin and Feitelson: rigid parallel jobs with a daily cycle.

Lublin and Feitelson, "The workload on parallel supercomputers: modeling the characteristics of
rigid jobs", J. Parallel and Distributed Computing 63(11), 2003 (model and parameters of 1999).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import exp, log2
from random import Random

from backfill.sim.draws import gamma, gamma_cdf, seeded
from backfill.sim.workload import Job, scaled_to_load

SLOT_S = 1800
SLOTS_PER_DAY = 48
FIRST_SLOT = 11  # the model's day begins at half past five, when the fewest jobs arrive
LONGEST_LOG_RUN = 12.0  # exp(12) s: 45 h
LONGEST_LOG_GAP = 13.0  # exp(13) s: 5 days


@dataclass(frozen=True, slots=True)
class Kind:
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


ALL = Kind(
    *(0.244, 0.576, 0.8, 2.5, None, 0.86),
    *((4.2, 0.94), (312.0, 0.03), -0.0054, 0.78),
    *((10.2303 * 1.0225, 0.4871), (8.1737, 3.9631)),
)
BATCH = Kind(
    *(0.2927, 0.6686, 1.2, 2.0, None, 0.875),
    *((6.57, 0.823), (639.1, 0.0156), -0.003, 0.6986),
    *((6.0415 * 1.0519, 0.8531), (6.1271, 5.2740)),
)
INTERACTIVE = Kind(
    *(0.1541, 0.625, 1.0, 2.5, 5.5, 0.705),
    *((3.8351, 0.6605), (7.073, 0.6856), -0.0118, 0.9156),
    *((6.5510 * 0.9797, 0.6621), (8.9186, 3.6680)),
)


def lublin(
    seed: int, jobs: int, processors: int, load: float | None = None, kinds: Sequence[Kind] = (ALL,)
) -> list[Job]:
    """Draw `jobs` jobs for a machine of this size, in order of submission, without estimates.

    `load` stretches the arrivals so that the work offered is this share of the machine. Several
    kinds, as (BATCH, INTERACTIVE), arrive side by side.
    """
    # A stream per kind: what one kind draws does not shift the other.
    rngs = [seeded(seed * len(kinds) + position) for position in range(len(kinds))]
    streams = (_jobs(rng, kind, processors) for rng, kind in zip(rngs, kinds, strict=True))
    drawn = list(islice(merge(*streams, key=lambda job: job.submit_s), jobs))
    return drawn if load is None else scaled_to_load(drawn, processors, load)


def _jobs(rng: Random, kind: Kind, processors: int) -> Iterator[Job]:
    for submit_s in _arrivals(rng, kind):
        size = _size(rng, kind, processors)
        yield Job(int(submit_s), _run_s(rng, kind, size), size)


def _size(rng: Random, kind: Kind, processors: int) -> int:
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


def _run_s(rng: Random, kind: Kind, size: int) -> int:
    share = min(max(kind.slope * size + kind.level, 0.0), 1.0)
    short = rng.random() <= share
    while True:
        value = gamma(rng, *(kind.short if short else kind.long))
        if value <= LONGEST_LOG_RUN:
            return max(int(exp(value)), 1)


def _arrivals(rng: Random, kind: Kind) -> Iterator[float]:
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


def _pace(kind: Kind) -> list[float]:
    """Return how many of the day's jobs arrive in each half hour, from midnight, 1 on average."""
    shares = [0.0] * SLOTS_PER_DAY
    for slot in range(FIRST_SLOT, FIRST_SLOT + SLOTS_PER_DAY):
        share = gamma_cdf(slot + 0.5, *kind.day) - gamma_cdf(slot - 0.5, *kind.day)
        shares[(slot - 1) % SLOTS_PER_DAY] = share
    mean = sum(shares) / SLOTS_PER_DAY
    return [share / mean for share in shares]
