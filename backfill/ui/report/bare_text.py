"""Sums a replay up: measures of all jobs as a text table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from backfill.core.model.measures import Distribution, JobMeasures, job_measures
from backfill.sim.replay.bare import ReplayResult

COLUMNS = ("mean", "median", "p90", "p99", "maximum")


def measure(result: ReplayResult) -> JobMeasures:
    """Measure the replayed jobs, in seconds."""
    trace, starts = result.trace, result.starts
    per_s = trace.ticks_per_s
    if per_s == 1:
        times = (trace.submit, starts, trace.run)
        return job_measures(*times, trace.processors, result.cluster.processors)
    submit, start, run = ([t / per_s for t in c] for c in (trace.submit, starts, trace.run))
    return job_measures(submit, start, run, trace.processors, result.cluster.processors)


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
