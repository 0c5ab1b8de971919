"""When a replay begins: what the simulated clock shows then, and how the backlog's times lie beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import floor
from pathlib import Path

from backfill.core.policy import PolicySet
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.traces.trace import JobTrace, TraceError
from backfill.sim.traces.window import TraceWindow

# Clocks on earth show from 12 h less than UTC to 14 h more.
_ZONES_S = 14 * 3600.0


def clock_s(high: JobTrace, policies: Iterable[PolicySet]) -> tuple[float, tuple[str, ...]]:
    """Return what the clock shows when the trace begins, in whole seconds, and what people must know.

    Schedules of budgets go by it. A dump of sacct has local times: the budgets tell of which zone.
    """
    zones = [budget.zone for one in policies for budget in one.budgets.windows if budget.schedule]
    epoch_s = high.epoch_s
    if epoch_s is None:
        unknown = (
            "the trace does not say when it began, so the schedules of the policy's budgets fall anywhere in "
            "it; give it a header line `; UnixStartTime: SECONDS`, or seconds since 1970"
        )
        return START_S, ((unknown,) if zones else ())
    if not high.wall or not zones:
        return float(floor(epoch_s)), ()
    local = (
        f"the times of the trace are taken as local times of {zones[0].name}, the time_zone of the policy's "
        "budgets; for exact ones make the dump with SLURM_TIME_FORMAT=%s"
    )
    return float(floor(zones[0].moments(epoch_s)[0])), (local,)


def need_one_clock(path: Path, high: JobTrace, low: JobTrace) -> None:
    """TraceError for a backlog, of `path`, whose times tell their offset from UTC and the trace's are of an
    unknown zone, or the other way round. If they are of other days in any zone, the backlog is moved.
    """
    theirs, ours = _period_s(high), _period_s(low)
    mixed = (high.wall and low.offsets) or (high.offsets and low.wall)
    if not mixed or theirs is None or ours is None:
        return
    if ours[0] - _ZONES_S > theirs[1] or theirs[0] - _ZONES_S > ours[1]:
        return
    what = (
        "has local times of an unknown zone, and the trace tells its zone"
        if low.wall
        else "tells the zone of its times, and the trace has local times of an unknown one"
    )
    raise TraceError(path, 0, f"{what}; make both with SLURM_TIME_FORMAT=%s")


def meets(low: JobTrace, dates: TraceWindow) -> bool:
    """Return True if a backlog is of a time that includes some of these dates, with jobs then or without."""
    ours = _period_s(low)
    if ours is None:
        return False
    begins = dates.to_s is None or ours[0] <= dates.to_s
    return begins and (dates.from_s is None or dates.from_s <= ours[1])


def beside(high: JobTrace, low: JobTrace) -> tuple[JobTrace, tuple[str, ...]]:
    """Return the backlog with its times as they lie beside the trace's, and what people must know.

    One of another time, or without a known time, is moved to where the trace begins.
    """
    theirs, ours = _period_s(high), _period_s(low)
    if theirs is None or ours is None:
        moved_s = (high.begin / high.ticks_per_s) - (low.begin / low.ticks_per_s)
        if (theirs is None) != (ours is None):
            only = "trace" if ours is None else "backlog"
            note = f"only the {only} says when it was, so the backlog is taken to begin with the trace"
            return low, (note,)
    elif ours[0] <= theirs[1] and theirs[0] <= ours[1]:
        since_s = (low.begin / low.ticks_per_s) - (ours[0] - theirs[0])
        return replace(low, origin=round(since_s * low.ticks_per_s)), ()
    else:
        moved_s = theirs[0] - ours[0]
    moved = f"the backlog is moved by {moved_s / 3600:+.1f} h, to begin with the trace"
    return low, ((moved,) if moved_s else ())


def _period_s(trace: JobTrace) -> tuple[float, float] | None:
    """From when until when it was, in seconds since 1970; None: it does not say so, or has no jobs."""
    begin_s = trace.epoch_s if len(trace) else None
    return None if begin_s is None else (begin_s, begin_s + (trace.end - trace.begin) / trace.ticks_per_s)
