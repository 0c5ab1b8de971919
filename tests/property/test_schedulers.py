"""One family of schedulers: processors, nodes of one CPU and the fast pool decide alike."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.sim.replay.bare import replay
from backfill.sim.replay.ledger import Ledger, Window
from backfill.sim.replay.reference import BareReplay
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.schedulers import family
from backfill.sim.schedulers.machine import SCHEDULERS, TIES, Cluster, SchedulerName, Tie
from backfill.sim.schedulers.rooms import RoomPool
from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.trace import JobTrace
from tests.unit.harvest_inputs import trace_of

PROCESSORS = 6
MODES = [(scheduler, tie) for scheduler in SCHEDULERS for tie in TIES]

traces = st.lists(
    st.tuples(st.integers(0, 25), st.integers(1, 9), st.integers(0, 9), st.integers(1, PROCESSORS)),
    min_size=1,
    max_size=25,
).map(lambda rows: trace_of(ModelJob(s, r, p, r + over) for s, r, over, p in sorted(rows)))


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@given(trace=traces)
def test_nodes_of_one_cpu_decide_as_processors_do(
    trace: JobTrace, scheduler: SchedulerName, tie: Tie
) -> None:
    """Every job starts at the same instant, whether its processors are counted or told apart."""
    names = tuple(f"n{i}" for i in range(PROCESSORS))
    ledger = Ledger(Window(START_S, inf), 1, 1)
    nodes = BareReplay(trace, names, 1, ledger, (), scheduler, tie)
    nodes.run()
    counted = replay(trace, Cluster(PROCESSORS), scheduler, tie).starts
    assert [tale.start_s - START_S for tale in nodes.tales] == [at - trace.submit[0] for at in counted]


@pytest.mark.parametrize(("scheduler", "tie"), [mode for mode in MODES if mode[0] != "conservative"])
@given(trace=traces)
def test_the_fast_pool_decides_as_the_family_does(
    trace: JobTrace, scheduler: SchedulerName, tie: Tie
) -> None:
    """What is there for speed alone starts every job when the common implementation does."""
    fast = replay(trace, Cluster(PROCESSORS), scheduler, tie).starts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "backfill.sim.replay.bare.scheduler_on",
            lambda name, trace, machine, kept: family.OnMachine(
                family.scheduler_in(name, RoomPool(PROCESSORS)), trace, machine
            ),
        )
        assert replay(trace, Cluster(PROCESSORS), scheduler, tie).starts == fast
