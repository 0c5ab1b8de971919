"""Where vacating costs nothing, instances change nothing for bare metal, whatever its scheduler."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.bare import replay
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.policy_replay import reference, run
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.schedulers.machine import SCHEDULERS, TIES, Cluster, SchedulerName, Tie
from backfill.sim.traces.models import ModelJob
from tests.unit.harvest_inputs import KILL, PAUSE, policy, setting

FREE = ReplayCosts(steps=StepCosts(**{field.name: 0.0 for field in fields(StepCosts)}))
NODES = 4

highs = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 20), st.integers(1, NODES)),
    min_size=1,
    max_size=12,
).map(lambda rows: [ModelJob(s, r, p, r + over) for s, r, over, p in sorted(rows)])
lows = st.lists(st.tuples(st.integers(0, 60), st.integers(5, 400)), max_size=10).map(
    lambda rows: [ModelJob(s, r, 1) for s, r in sorted(rows)]
)


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(highs, lows, st.booleans(), st.integers(1, 2))
@settings(max_examples=15)
def test_high_priority_jobs_start_as_without_instances(
    scheduler: SchedulerName, tie: Tie, high: list[ModelJob], low: list[ModelJob], pause: bool, cpus: int
) -> None:
    """With pause and with requeue: each begins and ends at the same second on the same nodes."""
    cluster = Cluster(NODES, cpus)
    given_, rules = setting(high, cluster, policy(PAUSE if pause else KILL), low, FREE)
    given_ = replace(given_, scheduler=scheduler, tie=tie)
    alone = reference(given_, rules)
    with_them = run(given_, rules, alone.ledger.window.end_s)
    told = [
        [(tale.index, tale.start_s, tale.end_s, tale.hosts) for tale in one.tales if tale.high]
        for one in (alone, with_them)
    ]
    assert sorted(told[0]) == sorted(told[1])


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(highs)
@settings(max_examples=40)
def test_nodes_of_one_cpu_are_a_pool(scheduler: SchedulerName, tie: Tie, high: list[ModelJob]) -> None:
    """The run that others are compared with starts every job when the bare scheduler does."""
    given_, rules = setting(high, Cluster(NODES), policy())
    starts = reference(replace(given_, scheduler=scheduler, tie=tie), rules).high_starts()
    bare = replay(given_.high, Cluster(NODES), scheduler, tie)
    first = bare.trace.submit[0]
    assert [starts[i] - START_S for i in range(len(high))] == [s - first for s in bare.starts]
