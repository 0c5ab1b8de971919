"""Workload models of single-node work: Poisson arrivals, and HTC pilots with a backlog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backfill.sim.draws import choose, exponential, lognormal, seeded, uniform_int

HTC_LONGEST_S = 172_800
# (share, median seconds, deviation of the logarithm). Fitted by expectation maximisation to the
# 187,520 run times of the LCG grid log of 2005 (Parallel Workloads Archive; log by Hui Li):
# probes and failures, mixed short work, real work.
HTC_RUN_TIMES = ((0.477, 153.9, 0.441), (0.205, 378.4, 2.035), (0.318, 8570.0, 1.419))


class Job(NamedTuple):
    """One job of a model; an estimate of -1 means that its user gave none."""

    submit_s: int
    run_s: int
    processors: int
    estimate_s: int = -1


def poisson(
    seed: int,
    jobs: int,
    mean_gap_s: float,
    sizes: Sequence[int] = (2, 8),
    run_s: tuple[int, int] = (140, 350),
) -> list[Job]:
    """Draw jobs that arrive independently, of equally likely sizes and uniform run times."""
    rng = seeded(seed)
    drawn, now_s = [], 0.0
    for _ in range(jobs):
        now_s += exponential(rng, mean_gap_s)
        size = sizes[uniform_int(rng, 0, len(sizes) - 1)]
        drawn.append(Job(int(now_s), uniform_int(rng, *run_s), size))
    return drawn


def htc_pilot(
    seed: int,
    jobs: int,
    mean_gap_s: float,
    backlog: int = 0,
    sizes: Sequence[tuple[int, float]] = ((1, 1.0),),
    limit_s: int = HTC_LONGEST_S,
) -> list[Job]:
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
        drawn.append(Job(int(now_s), run_s, size, limit_s))
    return drawn


def offered_load(jobs: Sequence[Job], processors: int) -> float:
    """Return the work of the jobs over what the machine can do while they arrive."""
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    work = sum(job.run_s * job.processors for job in jobs)
    return work / (processors * span_s) if span_s else float("inf")


def scaled_to_load(jobs: Sequence[Job], processors: int, load: float) -> list[Job]:
    """Stretch or squeeze the arrivals so that the offered load becomes `load`."""
    if len(jobs) < 2 or jobs[-1].submit_s == jobs[0].submit_s:
        return list(jobs)
    factor = offered_load(jobs, processors) / load
    first_s = jobs[0].submit_s
    return [job._replace(submit_s=first_s + int((job.submit_s - first_s) * factor)) for job in jobs]


def with_estimates(jobs: Sequence[Job], seed: int, factor: float, step_s: int = 300) -> list[Job]:
    """Give each job an estimate of up to `factor` times its run time, rounded up to `step_s`.

    The f-model of Feitelson and Weil, IPPS 1998, with the round values that people write.
    """
    rng = seeded(seed)
    drawn = []
    for job in jobs:
        wanted = job.run_s * (1.0 + (factor - 1.0) * rng.random())
        drawn.append(job._replace(estimate_s=-(-int(wanted) // step_s) * step_s))
    return drawn
