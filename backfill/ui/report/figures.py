"""The figures of a replay with policies: what each is called, how it is shown, which way is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean

from backfill.core.model.sentences import goal, why
from backfill.sim.replay.ledger import counts_of
from backfill.sim.replay.measures import (
    CORE_S_PER_CORE_H,
    Distribution,
    EvictionMeasures,
    Harvest,
    JobMeasures,
    PairedDelay,
    distribution,
    eviction_measures,
    job_measures,
    paired_delay,
)
from backfill.sim.replay.policy_replay import Run
from backfill.sim.replay.trace_cluster import JobTale

_NOTHING = job_measures((), (), (), (), 0)


@dataclass(frozen=True, slots=True)
class Summary:
    """All measures of one run, those of the reference beside it where they are compared."""

    window_s: float
    harvest: Harvest
    evictions: EvictionMeasures
    delay: PairedDelay
    own_delay_s: Distribution  # from Slurm's allocation to the script's first command
    high_jobs: int
    low_completed: int
    low_unfit: int  # no instance can carry them
    low_attempts_lost: int
    withdrawn: int
    saving_core_s: float
    paused_h: float
    steps: Mapping[str, int]
    refusals: Mapping[str, int]
    badput_core_s: Mapping[str, float]  # by why it was lost
    # Of jobs that came to their end. A low-priority job waits whenever it does not compute.
    high: JobMeasures = _NOTHING
    low: JobMeasures = _NOTHING

    @property
    def useful(self) -> float:
        """Share of the machine that did work which counted."""
        harvest = self.harvest
        return (harvest.high_core_s + harvest.goodput_core_s) / harvest.capacity_core_s


def summary(run: Run, reference: Run) -> Summary:
    """Measure a run; `reference` is the same work without instances."""
    ledger, window = run.ledger, run.ledger.window
    high = [tale for tale in run.tales if tale.high]
    low = [tale for tale in run.tales if not tale.high]
    examples = {kind: f"{goal(one)}: {why(one)}" for kind, one in run.examples.items()}
    refusals = {examples[kind]: count for kind, count in run.refusals.items()}
    return Summary(
        window_s=window.end_s - window.start_s,
        harvest=run.harvest,
        evictions=eviction_measures(ledger.evictions),
        delay=paired_delay(reference.high_starts(), run.high_starts()),
        own_delay_s=distribution(tale.wait_s for tale in high),
        high_jobs=len(high),
        low_completed=sum(tale.completed and tale.end_s <= window.end_s for tale in low),
        low_unfit=run.unfit,
        low_attempts_lost=sum(tale.restarts for tale in low),
        withdrawn=run.withdrawn,
        saving_core_s=ledger.saving_core_s,
        paused_h=ledger.paused_s / 3600,
        steps=counts_of(ledger.steps),
        badput_core_s=dict(sorted(ledger.lost_by.items())),
        refusals=dict(sorted(refusals.items(), key=lambda item: (-item[1], item[0]))),
        high=_of_jobs(high, run.capacity),
        low=_of_jobs(low, run.capacity),
    )


def _of_jobs(tales: Iterable[JobTale], capacity: int) -> JobMeasures:
    """Measures of the completed ones; the run time is what was computed in the last attempt."""
    done = [tale for tale in tales if tale.completed]
    return job_measures(
        [tale.submit_s for tale in done],
        [tale.end_s - tale.run_s for tale in done],
        [tale.run_s for tale in done],
        [tale.cpus for tale in done],
        capacity,
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `unit` is "%" for shares; `better`: 1 more is, -1 less is, 0 neither.

    `of` returns None where there is nothing that it could be of.
    """

    key: str
    title: str
    unit: str
    better: int
    of: Callable[[Summary], float | None]

    def mean(self, summaries: Iterable[Summary]) -> float | None:
        """Return the mean over those that have it."""
        values = [value for one in summaries if (value := self.of(one)) is not None]
        return fmean(values) if values else None

    def shown(self, value: float | None) -> str:
        """Write the value for people, with its unit."""
        if value is None:
            return "-"
        unit = "" if self.unit == "x" else self.unit
        return f"{self._digits(value)} {unit}".rstrip()

    def change(self, by: float, within: float | None = None) -> str:
        """Write a difference of two values for people, with its sign, and how sure it is."""
        places = len(self._digits(by).partition(".")[2])
        scale = 100.0 if self.unit == "%" else 1.0
        texts = [f"{scale * by:+.{places}f}"]
        if within is not None:
            texts.append(f"{scale * within:.{places}f}")
        if scale * abs(by) >= 0.001 and not texts[0].strip("+-0."):
            texts = [f"{scale * by:+.2g}", *([] if within is None else [f"{scale * within:.2g}"])]
        unit = {"%": "points", "x": ""}.get(self.unit, self.unit)
        return f"{' ± '.join(texts)} {unit}".rstrip()

    def _digits(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.1f}"
        if self.unit == "":
            return f"{value:.0f}"
        if self.unit == "x":
            return f"{value:.2f}"
        if self.unit == "s" and abs(value) < 10:
            return f"{value:.3f}"
        return f"{value:.1f}"


def _if_any(of: Distribution, value: float) -> float | None:
    return value if of.count else None


def _used(harvest: Harvest) -> bool:
    """Return True if instances took anything at all."""
    return harvest.goodput_core_s + harvest.badput_core_s + harvest.overhead_core_s > 0.0


def _core_h(core_s: float) -> float:
    return core_s / CORE_S_PER_CORE_H


FIGURES = (
    Figure(
        "high_utilisation",
        "high-priority work, share of machine",
        "%",
        0,
        lambda s: s.harvest.high_utilisation,
    ),
    Figure("useful_utilisation", "useful work, share of machine", "%", 1, lambda s: s.useful),
    Figure("total_utilisation", "all work, share of machine", "%", 0, lambda s: s.harvest.total_utilisation),
    Figure(
        "harvested_fraction", "harvested share of idle time", "%", 1, lambda s: s.harvest.harvested_fraction
    ),
    Figure(
        "goodput_share",
        "goodput, share of what instances used",
        "%",
        1,
        lambda s: s.harvest.goodput_share if _used(s.harvest) else None,
    ),
    Figure("goodput_core_h", "goodput", "core h", 1, lambda s: _core_h(s.harvest.goodput_core_s)),
    Figure("badput_core_h", "badput (lost work)", "core h", -1, lambda s: s.harvest.lost_core_h),
    Figure(
        "overhead_core_h",
        "overhead (boot, return, idle)",
        "core h",
        -1,
        lambda s: _core_h(s.harvest.overhead_core_s),
    ),
    Figure("low_completed", "low-priority jobs completed", "", 1, lambda s: s.low_completed),
    Figure("low_unfit", "low-priority jobs that fit no instance", "", -1, lambda s: s.low_unfit),
    Figure("low_attempts_lost", "low-priority jobs started anew", "", -1, lambda s: s.low_attempts_lost),
    Figure("preemptions", "instances pushed aside", "", 0, lambda s: s.evictions.vacate_s.count),
    Figure(
        "vacate_median_s",
        "room given back, median",
        "s",
        -1,
        lambda s: _if_any(s.evictions.vacate_s, s.evictions.vacate_s.median),
    ),
    Figure(
        "vacate_p99_s",
        "room given back, p99",
        "s",
        -1,
        lambda s: _if_any(s.evictions.vacate_s, s.evictions.vacate_s.p99),
    ),
    Figure(
        "vacate_max_s",
        "room given back, slowest",
        "s",
        -1,
        lambda s: _if_any(s.evictions.vacate_s, s.evictions.vacate_s.maximum),
    ),
    Figure(
        "own_delay_mean_s",
        "high job: allocation to first command, mean",
        "s",
        -1,
        lambda s: _if_any(s.own_delay_s, s.own_delay_s.mean),
    ),
    Figure(
        "own_delay_p99_s",
        "high job: allocation to first command, p99",
        "s",
        -1,
        lambda s: _if_any(s.own_delay_s, s.own_delay_s.p99),
    ),
    Figure(
        "own_delay_max_s",
        "high job: allocation to first command, max",
        "s",
        -1,
        lambda s: _if_any(s.own_delay_s, s.own_delay_s.maximum),
    ),
    Figure(
        "high_wait_mean_s",
        "high job: wait, mean",
        "s",
        -1,
        lambda s: _if_any(s.high.wait_s, s.high.wait_s.mean),
    ),
    Figure(
        "high_turnaround_mean_s",
        "high job: turnaround, mean",
        "s",
        -1,
        lambda s: _if_any(s.high.turnaround_s, s.high.turnaround_s.mean),
    ),
    Figure(
        "high_slowdown_mean",
        "high job: bounded slowdown, mean",
        "x",
        -1,
        lambda s: _if_any(s.high.bounded_slowdown, s.high.bounded_slowdown.mean),
    ),
    Figure(
        "high_pp_slowdown_mean",
        "high job: the same per processor, mean",
        "x",
        -1,
        lambda s: _if_any(s.high.per_processor_bounded_slowdown, s.high.per_processor_bounded_slowdown.mean),
    ),
    Figure("makespan_s", "makespan of high-priority jobs", "s", -1, lambda s: s.high.makespan_s),
    Figure(
        "low_turnaround_mean_s",
        "low job that ended: turnaround, mean",
        "s",
        0,
        lambda s: _if_any(s.low.turnaround_s, s.low.turnaround_s.mean),
    ),
    Figure(
        "low_slowdown_mean",
        "low job that ended: bounded slowdown, mean",
        "x",
        0,
        lambda s: _if_any(s.low.bounded_slowdown, s.low.bounded_slowdown.mean),
    ),
    Figure(
        "delay_mean_s",
        "high job: later than without instances, mean",
        "s",
        -1,
        lambda s: _if_any(s.delay.delay_s, s.delay.delay_s.mean),
    ),
    Figure(
        "delay_p99_s",
        "high job: later than without instances, p99",
        "s",
        -1,
        lambda s: _if_any(s.delay.delay_s, s.delay.delay_s.p99),
    ),
    Figure(
        "delay_max_s",
        "high job: later than without instances, max",
        "s",
        -1,
        lambda s: _if_any(s.delay.delay_s, s.delay.delay_s.maximum),
    ),
)


def figures_by_cause(summaries: Iterable[Summary]) -> list[Figure]:
    """Return a row for each cause for which work was lost in any of them."""
    causes = sorted({cause for summary in summaries for cause in summary.badput_core_s})
    return [
        Figure(f"badput_core_h_{cause}", f"badput by {cause}", "core h", -1, partial(_lost_core_h, cause))
        for cause in causes
    ]


def _lost_core_h(cause: str, summary: Summary) -> float:
    return _core_h(summary.badput_core_s.get(cause, 0.0))


def plain(summary: Summary) -> dict[str, object]:
    """Everything as plain values: the figures by key, then what they are made of."""
    return {
        **{figure.key: figure.of(summary) for figure in FIGURES},
        "preemptions_by_rung": dict(summary.evictions.by_rung),
        "vacate_s": _spread(summary.evictions.vacate_s),
        "own_delay_s": _spread(summary.own_delay_s),
        "delay_s": _spread(summary.delay.delay_s),
        "delayed": summary.delay.delayed,
        "unpaired": summary.delay.unpaired,
        "high_jobs": summary.high_jobs,
        "withdrawn": summary.withdrawn,
        "saving_core_h": _core_h(summary.saving_core_s),
        "paused_instance_h": summary.paused_h,
        "steps": dict(summary.steps),
        "refusals": dict(summary.refusals),
        "badput_core_h_by_cause": {why: _core_h(lost) for why, lost in summary.badput_core_s.items()},
    }


def _spread(found: Distribution) -> dict[str, float | None]:
    return {key: value if key == "count" else _if_any(found, value) for key, value in asdict(found).items()}
