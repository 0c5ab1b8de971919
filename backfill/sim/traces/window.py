"""Cuts a period out of a trace, as `sacct -S -E` lists it: with what came before and reaches into it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from backfill.sim.traces.trace import EPOCHS_S, JobTrace, TraceBuilder, TraceError

BEFORE = "over before --from"
AFTER = "submitted after --to"
RAN_ALREADY = "ran already at --from: the rest of its time taken"
WAITED_ALREADY = "waited already at --from: submitted then"
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """From when until when, in seconds since 1970 or as the trace counts; None: as far as it goes."""

    from_s: int | None = None
    to_s: int | None = None
    zoned: bool = field(default=False, kw_only=True)  # one of them was given with an offset from UTC
    local: bool = field(default=False, kw_only=True)  # one of them was given as a date without one

    def __bool__(self) -> bool:
        return self.from_s is not None or self.to_s is not None


WHOLE = TraceWindow()


def cut(path: Path, trace: JobTrace, window: TraceWindow) -> JobTrace:
    """Return what the trace has within the window, which bounds what a replay of it observes.

    The trace must have been read with its starts; a job of unknown start is taken to have begun at
    once. TraceError where the trace does not know dates, or not of which zone they are.
    """
    _refuse_other_zone(path, trace, window)
    begin, bound = (_tick(path, trace, at_s) for at_s in (window.from_s, window.to_s))
    builder = TraceBuilder()
    builder.ticks_per_s, builder.unix_start_s = trace.ticks_per_s, trace.unix_start_s
    builder.wall, builder.offsets = trace.wall, trace.offsets
    builder.left_out.update(trace.left_out)
    builder.noted.update(trace.noted)
    assert trace.starts is not None
    for index, start in enumerate(trace.starts):
        submit, run, estimate = trace.submit[index], trace.run[index], trace.estimate[index]
        begun = submit if start < submit else start
        if bound is not None and submit >= bound:
            builder.left_out[AFTER] += 1
            continue
        if begin is not None and submit < begin:
            past = begin - begun
            if past >= run:
                builder.left_out[BEFORE] += 1
                continue
            # A tick later than what ran already, so that this has its room.
            submit = begin if past > 0 else begin + 1
            run, estimate = run - max(past, 0), estimate - max(past, 0)
            builder.noted[RAN_ALREADY if past > 0 else WAITED_ALREADY] += 1
        builder.add(trace.job_id[index], submit, run, trace.processors[index], estimate)
        if trace.labels is not None:
            builder.labels.append(trace.labels[index])
        if trace.details is not None:
            builder.details.append(trace.details[index])
    return replace(builder.build(), origin=begin, bound=bound)


def _refuse_other_zone(path: Path, trace: JobTrace, window: TraceWindow) -> None:
    if window.zoned and trace.wall:
        what = (
            "has local times of an unknown zone; give --from and --to as it has them, without Z or an offset"
        )
        raise TraceError(path, 0, f"{what}, or make the dump with SLURM_TIME_FORMAT=%s")
    if window.local and trace.offsets:
        what = "has times with an offset from UTC; give --from and --to with one too"
        raise TraceError(path, 0, f"{what}, as in 2024-01-10T08:00+02:00 or 2024-01-10T08:00Z")


def _tick(path: Path, trace: JobTrace, at_s: int | None) -> int | None:
    if at_s is None or not len(trace):
        return at_s
    if at_s >= EPOCHS_S > trace.submit[-1] / trace.ticks_per_s:
        if not trace.unix_start_s:
            raise TraceError(
                path, 0, "counts from an unknown day; give --from and --to as seconds of its own"
            )
        at_s -= trace.unix_start_s
    return at_s * trace.ticks_per_s


def dates_of(trace: JobTrace) -> TraceWindow | None:
    """Return the window to which a trace was cut, in seconds since 1970; None where that is not known."""
    if trace.epoch_s is None or (trace.origin is None and trace.bound is None):
        return None
    since_s = trace.epoch_s - trace.begin / trace.ticks_per_s
    dates = (
        None if tick is None else round(since_s + tick / trace.ticks_per_s)
        for tick in (trace.origin, trace.bound)
    )
    return TraceWindow(*dates)


def told_early(trace: JobTrace) -> tuple[str, ...]:
    """Say where few jobs came so long before the others that most of what is observed is idle time.

    Dumps of sacct list jobs that were submitted long before what they show. The few are a twentieth.
    """
    submit, day = trace.submit, _DAY_S * trace.ticks_per_s
    first, last = 0, submit[-1] if len(trace) else 0
    for index in range(1, len(trace) // 10 and max(1, len(trace) // 20) + 1):
        gap = submit[index] - submit[index - 1]
        if gap >= day and gap * 10 >= last - submit[index]:
            first = index
    if not first or trace.origin is not None:
        return ()
    days = (submit[first] - submit[0]) // day
    jobs = "1 job was" if first == 1 else f"{first} jobs were"
    return (
        f"{jobs} submitted up to {days} days before all others, so most of that time counts as idle; "
        f"bound what is observed by --from {_moment(trace, first)}",
    )


def _moment(trace: JobTrace, index: int) -> str:
    at_s = trace.submit[index] // trace.ticks_per_s
    if at_s < EPOCHS_S:
        return f"{at_s}"
    zone = "Z" if trace.offsets else ""
    return datetime.fromtimestamp(at_s, UTC).strftime(f"%Y-%m-%dT%H:%M:%S{zone}")
