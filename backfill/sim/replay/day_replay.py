"""Plays a day of a journal under a policy: the figures that it would have come to."""

from __future__ import annotations

from dataclasses import replace
from math import floor
from statistics import median

from backfill.core.policy import PolicySet
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.day import DayFigures, JournalDay
from backfill.sim.replay.fitting import depth_for, low_jobs, memory_for, node_names
from backfill.sim.replay.ledger import counts_of
from backfill.sim.replay.policy_replay import DaemonTerms, Run, Setting, run


def day_figures(
    day: JournalDay, policies: PolicySet, costs: ReplayCosts, terms: DaemonTerms | None = None
) -> DayFigures:
    """Play the work of a day under a policy. MisfitError, BrokenPromiseError: it cannot be."""
    return _figures(_played(day, policies, costs, terms), day)


def _played(day: JournalDay, policies: PolicySet, costs: ReplayCosts, terms: DaemonTerms | None) -> Run:
    start_s = _start_s(day)
    policies = replace(policies, hosts=tuple(host for host in policies.hosts if host in day.hosts))
    low = low_jobs(day.low, [policies])
    setting = Setting(
        day.cluster,
        day.high.fitting(day.cluster.processors),
        low if len(low) else None,
        node_names(policies, day.cluster),
        memory_for(policies, day.cluster),
        depth_for(policies, day.cluster),
        costs=costs,
        whole=True,
        start_s=start_s,
    )
    return run(setting, policies, start_s + (day.end_s - day.start_s), terms=terms)


def _start_s(day: JournalDay) -> float:
    """Return what the simulated clock shows at its beginning: a whole second, so that times are exact."""
    return float(floor(day.start_s))


def _figures(played: Run, day: JournalDay) -> DayFigures:
    harvest, end_s = played.harvest, _start_s(day) + (day.end_s - day.start_s)
    rooms = [tale.wait_s for tale in played.tales if tale.high and tale.start_s]
    return DayFigures(
        metal_core_h=harvest.high_core_s / 3600,
        worked_core_h=(harvest.goodput_core_s + harvest.badput_core_s) / 3600,
        lost_core_h=harvest.badput_core_s / 3600,
        low_completed=sum(t.completed and t.end_s <= end_s for t in played.tales if not t.high),
        evictions=sum(one.asked_s < end_s for one in played.ledger.evictions),
        room_median_s=median(rooms) if rooms else None,
        room_worst_s=max(rooms, default=None),
        steps=counts_of(played.ledger.steps),
    )
