"""Shakes a trace: the same jobs a little earlier or later, a little shorter or longer.

Small changes of its input can change a scheduler's figures a lot, so that one run of one trace
proves little. Repeats with shaken input show which differences are more than that (Tsafrir,
Ouaknine and Feitelson, "Reducing performance evaluation sensitivity and variability by input
shaking", MASCOTS 2007).
"""

from __future__ import annotations

from dataclasses import replace

from backfill.sim.traces.draws import seeded
from backfill.sim.traces.trace import JobTrace, TraceBuilder

# A submission is moved by up to so many seconds, a run time by up to this share of it.
SUBMIT_S = 60.0
RUN_SHARE = 0.1


def shaken(trace: JobTrace, seed: int) -> JobTrace:
    """Return the trace with every submit and run time moved, evenly within the bounds, by this seed.

    A run time never exceeds its estimate if it did not before, and is at least one tick. The first
    job stays where it is, so that all repeats begin at one time.
    """
    draw = seeded(seed).random
    builder = TraceBuilder()
    first = trace.submit[0] if len(trace) else 0
    rows = zip(trace.job_id, trace.submit, trace.run, trace.processors, trace.estimate, strict=True)
    for index, (job_id, submit, run, processors, estimate) in enumerate(rows):
        move = round((2.0 * draw() - 1.0) * SUBMIT_S * trace.ticks_per_s) if index else 0
        length = round(run * (1.0 + (2.0 * draw() - 1.0) * RUN_SHARE))
        length = max(1, length if run == estimate else min(length, estimate))
        builder.add(
            job_id, max(first, submit + move), length, processors, length if run == estimate else estimate
        )
    builder.ticks_per_s = trace.ticks_per_s
    if trace.labels is not None:
        builder.labels = list(trace.labels)
    if trace.details is not None:
        builder.details = list(trace.details)
    builder.left_out.update(trace.left_out)
    return replace(
        builder.build(),
        noted=trace.noted,
        origin=trace.origin,
        bound=trace.bound,
        unix_start_s=trace.unix_start_s,
        wall=trace.wall,
    )
