"""Sums a replay up: measures of all jobs as a text table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from backfill.sim.replay.bare import ReplayResult
from backfill.sim.replay.measures import Distribution, JobMeasures, job_measures
from backfill.sim.traces.window import told_early

COLUMNS = ("mean", "median", "p90", "p99", "maximum")


def measure(result: ReplayResult) -> JobMeasures:
    """Measure the replayed jobs, in seconds."""
    trace, starts = result.trace, result.starts
    per_s = trace.ticks_per_s
    if per_s == 1:
        times = (trace.submit, starts, trace.run)
        found = job_measures(*times, trace.processors, result.cluster.processors)
    else:
        submit, start, run = ([t / per_s for t in c] for c in (trace.submit, starts, trace.run))
        found = job_measures(submit, start, run, trace.processors, result.cluster.processors)
    return found if trace.origin is None and trace.bound is None else _within(result, found)


def _within(result: ReplayResult, measures: JobMeasures) -> JobMeasures:
    """Let what was done, and the period, be those of the window."""
    trace, starts = result.trace, result.starts
    ends = [start + run for start, run in zip(starts, trace.run, strict=True)]
    last = max(ends) if trace.bound is None else trace.bound
    rows = zip(starts, ends, trace.processors, strict=True)
    core_s = sum(max(0, min(end, last) - start) * cores for start, end, cores in rows) / trace.ticks_per_s
    length_s = (last - trace.begin) / trace.ticks_per_s
    share = core_s / (result.cluster.processors * length_s) if length_s > 0 else 0.0
    return replace(measures, makespan_s=length_s, core_h=core_s / 3600, utilisation=share)


def as_json(result: ReplayResult, measures: JobMeasures) -> dict[str, object]:
    """Return plain values: what was replayed, what was left out and why, and the measures."""
    return {
        "cluster": f"{result.cluster.nodes}x{result.cluster.cpus}",
        "processors": result.cluster.processors,
        "scheduler": result.scheduler,
        "tie": result.tie,
        "reservations": result.reservations,
        "left_out": dict(result.trace.left_out),
        "noted": dict(result.trace.noted),
        "notes": list(told_early(result.trace)),
        **asdict(measures),
    }


def text_lines(result: ReplayResult, measures: JobMeasures) -> Iterator[str]:
    """Yield the lines of a table for a terminal."""
    cluster = result.cluster
    kept = f", {result.reservations} reservations" if result.reservations else ""
    yield (
        f"{measures.jobs} jobs on {cluster.nodes} x {cluster.cpus} processors,"
        f" {result.scheduler}, {result.tie}{kept}"
    )
    yield (
        f"makespan {measures.makespan_s:.0f} s, {measures.core_h:.1f} core hours,"
        f" utilisation {measures.utilisation:.1%}"
    )
    yield f"{'':32}" + "".join(f"{name:>14}" for name in COLUMNS)
    rows = {
        "wait (s)": measures.wait_s,
        "turnaround (s)": measures.turnaround_s,
        "bounded slowdown": measures.bounded_slowdown,
        "  per processor": measures.per_processor_bounded_slowdown,
    }
    for name, row in rows.items():
        yield f"{name:32}" + "".join(_cell(row, column) for column in COLUMNS)


def _cell(row: Distribution, column: str) -> str:
    return f"{float(getattr(row, column)):>14.2f}"
