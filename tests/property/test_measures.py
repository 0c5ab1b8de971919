"""Every measure of a replay is what comes out of a second, plainer reckoning."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.fleet import InstanceState
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.sim.replay.measures import Distribution, distribution, job_measures
from backfill.sim.replay.policy_replay import Run, reference, run
from backfill.sim.replay.trace_cluster import START_S, JobTale
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import ModelJob
from backfill.ui.report.figures import Summary, summary
from backfill.ui.report.gantt import Gantt
from tests.unit.harvest_inputs import KILL, PAUSE, policy, setting

NODES = 3
Stretch = tuple[float, float]

times = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 200), st.integers(1, 400), st.integers(1, 16)),
    min_size=1,
    max_size=40,
)
highs = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 90), st.integers(1, NODES)), min_size=1, max_size=8
).map(lambda rows: [ModelJob(s, r, p) for s, r, p in sorted(rows)])
lows = st.lists(st.integers(5, 300), min_size=1, max_size=8).map(
    lambda runs: [ModelJob(0, r, 1) for r in runs]
)


@given(times, st.integers(16, 64))
def test_measures_of_jobs(rows: list[tuple[int, int, int, int]], capacity: int) -> None:
    """Waits, turnarounds and both slowdowns in exact fractions; work counted second by second."""
    submit, wait, length, cpus = (list(column) for column in zip(*rows, strict=True))
    start = [s + w for s, w in zip(submit, wait, strict=True)]
    found = job_measures(submit, start, length, cpus, capacity)
    whole = [Fraction(w + r) for _, w, r, _ in rows]
    slow = [t / max(r, 10) for t, (_, _, r, _) in zip(whole, rows, strict=True)]
    each = [s / p for s, (_, _, _, p) in zip(slow, rows, strict=True)]
    _same(found.wait_s, [Fraction(w) for w in wait])
    _same(found.turnaround_s, whole)
    _same(found.bounded_slowdown, [max(one, Fraction(1)) for one in slow])
    _same(found.per_processor_bounded_slowdown, [max(one, Fraction(1)) for one in each])
    begin, end = min(submit), max(s + r for s, r in zip(start, length, strict=True))
    busy = sum(
        p
        for now in range(begin, end)
        for s, r, p in zip(start, length, cpus, strict=True)
        if s <= now < s + r
    )
    assert found.makespan_s == end - begin
    assert found.core_h == pytest.approx(busy / 3600)
    assert found.utilisation == pytest.approx(busy / (capacity * (end - begin)))


def _same(found: Distribution, values: list[Fraction]) -> None:
    assert found.count == len(values)
    assert found.mean == pytest.approx(float(sum(values) / len(values)))
    assert found.maximum == pytest.approx(float(max(values)))
    for name, percent in (("median", 50), ("p90", 90), ("p99", 99)):
        enough = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
        assert getattr(found, name) == pytest.approx(float(min(enough)))


@dataclass(slots=True)
class Witness(Gantt):
    """Writes down what it sees of jobs and instances, and adds nothing up."""

    attempts: list[tuple[int, list[Stretch]]] = field(default_factory=list)
    stays: dict[tuple[str, str], list[tuple[float, bool]]] = field(default_factory=dict)
    paused: int = 0

    def attempt(self, tale: JobTale, segments: list[Segment], name: str) -> None:  # type: ignore[override]  # a list here
        self.attempts.append((tale.index, [(s.start_s, s.end_s) for s in segments]))

    def change(self, world: World, change: ch.Change) -> None:
        match change:
            case ch.InstanceSeen(instance):
                key = (instance.host, instance.name)
            case ch.InstanceStopped() | ch.InstanceGone():
                key = (change.host, change.name)
            case _:
                return
        state = world.instances[key].state if key in world.instances else None
        known = self.stays.setdefault(key, [])
        runs = state is InstanceState.RUNNING
        if runs is not bool(known and known[-1][1]):
            known.append((change.seen_s, runs))
            self.paused += state is InstanceState.PAUSED

    def on_cpu(self) -> list[Stretch]:
        """When instances had their CPUs."""
        found = []
        for turns in self.stays.values():
            assert not turns[-1][1], "it is gone in the end"
            found += [(a, b) for (a, runs), (b, _) in pairwise(turns) if runs]
        return found


@pytest.mark.parametrize("pause", [True, False])
@given(highs, lows)
@settings(max_examples=15)
def test_books_of_a_replay(pause: bool, high: list[ModelJob], low: list[ModelJob]) -> None:
    """Goodput, badput, overhead, harvest, delays and evictions, from who ran when."""
    given_, rules = setting(high, Cluster(NODES), policy(PAUSE if pause else KILL), low)
    alone = reference(given_, rules)
    end_s, witness = alone.ledger.window.end_s, Witness()
    found = run(given_, rules, end_s, witness)
    told = summary(found, alone)

    def inside(stretches: list[Stretch]) -> float:
        return sum(max(0.0, min(b, end_s) - max(a, START_S)) for a, b in stretches)

    done = {tale.index for tale in found.tales if not tale.high and tale.completed}
    last = {index: number for number, (index, _) in enumerate(witness.attempts) if index in done}
    good = sum(inside(witness.attempts[number][1]) for number in last.values())
    bad = sum(
        inside(stretches)
        for number, (_, stretches) in enumerate(witness.attempts)
        if number not in last.values()
    )
    on_cpu, capacity = inside(witness.on_cpu()), NODES * (end_s - START_S)
    work = sum(inside([(t.start_s, t.end_s)]) * t.cpus for t in found.tales if t.high)
    harvest = told.harvest
    assert harvest.capacity_core_s == pytest.approx(capacity)
    assert harvest.high_core_s == pytest.approx(work)
    assert harvest.goodput_core_s == pytest.approx(good, abs=1e-6)
    assert harvest.badput_core_s == pytest.approx(bad, abs=1e-6)
    assert harvest.overhead_core_s == pytest.approx(on_cpu - good - bad, abs=1e-6)
    if capacity > work:
        assert harvest.harvested_fraction == pytest.approx(good / (capacity - work), abs=1e-6)
    if on_cpu:
        assert harvest.goodput_share == pytest.approx(good / on_cpu, abs=1e-6)
    assert harvest.lost_core_h == pytest.approx(bad / 3600, abs=1e-6)
    _evictions(told, witness, pause=pause)
    _delays(told, found, alone)


def _evictions(told: Summary, witness: Witness, *, pause: bool) -> None:
    if pause:  # decided at once, and over when the call is
        assert dict(told.evictions.by_rung) == ({"pause": witness.paused} if witness.paused else {})
        if witness.paused and not any(b - a < 0.01 for a, b in witness.on_cpu()):
            # Nobody was asked for while it was being made, which takes its time.
            assert told.evictions.vacate_s.maximum == pytest.approx(0.003)
    jobs = {index for index, _ in witness.attempts}
    assert told.low_attempts_lost == len(witness.attempts) - len(jobs)
    assert told.evictions.vacate_s.count == sum(told.evictions.by_rung.values())


def _delays(told: Summary, found: Run, alone: Run) -> None:
    before = {tale.index: tale.start_s for tale in alone.tales}
    later = [tale.start_s - before[tale.index] for tale in found.tales if tale.high]
    assert told.delay.unpaired == 0
    assert told.delay.delayed == sum(one > 0 for one in later)
    assert told.delay.delay_s == distribution(later)
    assert told.delay.delay_s.mean == pytest.approx(sum(later) / len(later))
    assert floor(told.delay.delay_s.maximum * 1e6) == floor(max(later) * 1e6)
