"""A replay with policies as a table, as JSON, and its jobs as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from backfill.sim.replay.bare import ROWS_PER_CHUNK, quoted
from backfill.sim.replay.policy_replay import Run, Setting
from backfill.sim.replay.trace_cluster import JobTale
from backfill.ui.report.comparison import difference, differences, shown_count
from backfill.ui.report.figures import FIGURES, Figure, Summary, figures_by_cause, plain
from backfill.ui.report.gantt import Gantt

# The first five columns are those of a replay without instances.
CSV_COLUMNS = (
    "job_id",
    "submit",
    "start",
    "end",
    "processors",
    "class",
    "policy",
    "completed",
    "restarts",
    "lost_s",
    "start_delay_s",
    "last_host",
)
_MOST_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class Played:
    """One policy with what came of it; `repeats`: of every seed, this one first."""

    name: str
    run: Run
    summary: Summary
    repeats: tuple[Summary, ...] = ()
    gantt: Gantt | None = None

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """Of every seed."""
        return self.repeats or (self.summary,)


def text_lines(setting: Setting, played: Sequence[Played]) -> Iterator[str]:
    """Yield the lines for a terminal: a column for each policy, then what differs."""
    cluster, first = setting.cluster, played[0].summary
    low = 0 if setting.low is None else len(setting.low)
    yield (
        f"{first.high_jobs} high-priority jobs on {cluster.nodes} x {cluster.cpus} processors, "
        f"{low} low-priority jobs for instances, {told_time(first.window_s)} observed, "
        f"{setting.scheduler}, {setting.tie}"
    )
    if told := told_repeats(setting, played):
        yield told
    yield f"{'':46}" + "".join(f"{one.name[-22:]:>24}" for one in played)
    for figure in FIGURES:
        yield _means(figure, played)
    summaries = [summary for one in played for summary in one.summaries]
    for rung in sorted({rung for summary in summaries for rung in summary.evictions.by_rung}):
        counts = ([summary.evictions.by_rung.get(rung, 0) for summary in one.summaries] for one in played)
        yield f"{'preemptions by ' + rung:46}" + "".join(f"{shown_count(each):>24}" for each in counts)
    for figure in figures_by_cause(summaries):
        yield _means(figure, played)
    for step in first.steps:
        counts = ([summary.steps[step] for summary in one.summaries] for one in played)
        yield f"{step:46}" + "".join(f"{shown_count(each):>24}" for each in counts)
    for one in played:
        yield from _refusals(one)
    if len(played) == 2:
        yield ""
        yield from told_differences(played)


def told_repeats(setting: Setting, played: Sequence[Played]) -> str:
    """Say that figures are means, and what is of one run alone; empty where there is only one run."""
    count = len(played[0].summaries)
    if count == 1:
        return ""
    return (
        f"figures are means of {count} seeds; single jobs, refusals and timelines are of seed {setting.seed}"
    )


def _means(figure: Figure, played: Sequence[Played]) -> str:
    values = "".join(f"{figure.shown(figure.mean(one.summaries)):>24}" for one in played)
    return f"{figure.title:46}{values}"


def _refusals(one: Played) -> Iterator[str]:
    found = list(one.summary.refusals.items())
    if found:
        yield f"most often refused by {one.name}, with an example each:"
    for text, count in found[:_MOST_REFUSALS]:
        yield f"  {count:>6} x {' '.join(text.split())}"


def as_json(setting: Setting, played: Sequence[Played]) -> dict[str, object]:
    """Plain values: the input, the figures of each policy, and the differences of two."""
    found: dict[str, object] = {
        "cluster": f"{setting.cluster.nodes}x{setting.cluster.cpus}",
        "processors": setting.cluster.processors,
        "scheduler": setting.scheduler,
        "tie": setting.tie,
        "high_jobs": len(setting.high),
        "low_jobs": 0 if setting.low is None else len(setting.low),
        "left_out": dict(setting.high.left_out),
        "noted": dict(setting.high.noted),
        "backlog_left_out": {} if setting.low is None else dict(setting.low.left_out),
        "backlog_noted": {} if setting.low is None else dict(setting.low.noted),
        "notes": list(setting.notes),
        "seed": setting.seed,
        "window_s": played[0].summary.window_s,
        "policies": {one.name: plain(one.summary) for one in played},
        "means": {one.name: {f.key: f.mean(one.summaries) for f in FIGURES} for one in played},
    }
    if len(played) == 2:
        found["differences"] = list(told_differences(played))
        found["intervals"] = _intervals(played)
    return found


def told_differences(played: Sequence[Played]) -> Iterator[str]:
    """Yield a sentence for each difference of the second policy from the first."""
    one, other = played
    return differences(one.name, one.summaries, other.name, other.summaries)


def _intervals(played: Sequence[Played]) -> dict[str, object]:
    """By figure, the paired difference and half of its 95 % interval (null for one seed)."""
    one, other = played
    found = {f.key: difference(f, one.summaries, other.summaries) for f in FIGURES}
    return {
        key: {"mean": i.mean if i.count else None, "half": i.half if i.count > 1 else None, "seeds": i.count}
        for key, i in found.items()
    }


def csv_chunks(setting: Setting, played: Sequence[Played]) -> Iterator[str]:
    """Yield the jobs of every run, in the trace's own time; empty where a job never got there."""
    yield ",".join(CSV_COLUMNS) + "\n"
    rows = (_row(setting, one.name, tale) for one in played for tale in one.run.tales)
    while chunk := "".join(islice(rows, ROWS_PER_CHUNK)):
        yield chunk


def _row(setting: Setting, policy: str, tale: JobTale) -> str:
    trace = setting.high if tale.high else setting.low
    assert trace is not None
    fields = (
        quoted(trace.name(tale.index)),
        time_text(setting, tale.submit_s),
        time_text(setting, tale.start_s),
        time_text(setting, tale.end_s),
        str(tale.cpus),
        "high" if tale.high else "low",
        quoted(policy),
        str(int(tale.completed)),
        str(tale.restarts),
        f"{tale.lost_s:.3f}",
        f"{tale.wait_s:.3f}",
        tale.host,
    )
    return ",".join(fields) + "\n"


def told_time(seconds: float) -> str:
    """Write a length of time for people: `57 s`, `2 h 5 min`, `4 d 8 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def time_text(setting: Setting, at_s: float) -> str:
    """Write a simulated time as the trace of high-priority jobs would have written it."""
    if at_s < 0:
        return ""
    trace = setting.high
    shown = at_s - setting.start_s + trace.begin / trace.ticks_per_s
    return f"{shown:.3f}".rstrip("0").rstrip(".")
