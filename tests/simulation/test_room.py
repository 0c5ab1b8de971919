"""Room on a host belongs to one: stopped work gets its own back, and never somebody else's."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.changes import HoldSet
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.scale import Scale
from tests.simulation.policy_cluster import (
    ended,
    one_host,
    phases,
    play,
    policies,
    ready,
    running,
    taken_once,
)


def test_nobody_takes_the_room_to_which_stopped_work_returns() -> None:
    """The host is free and settles; a new job waits although no instance uses a CPU there."""
    sim = one_host(1)
    rules = policies(hosts=("bm1",), comeback=Comeback(settle_s=30.0))
    run = play(sim, rules)
    low = taken_once(run, sim)
    other = sim.submit("htc", 50.0)
    run.run(20)
    assert {m.phase for m in run.world.managed.values()} == {Phase.PARKED}
    run.until(lambda: ended(sim, low, other), 900)
    assert sim.audit() == []


def test_work_returns_one_by_one_to_a_host_that_has_shrunk() -> None:
    """Both were at work there; now there is room for one, and the other waits and says why."""
    sim = one_host(2)
    run = play(sim, policies(hosts=("bm1",)))
    low = [sim.submit("htc", 100.0) for _ in range(2)]
    run.until(lambda: running(sim, *low), 60)
    high = sim.submit("batch", 30.0)
    run.until(lambda: len(phases(run, Phase.PARKED)) == 2, 30)
    sim.hosts["bm1"].capacity = replace(sim.hosts["bm1"].capacity, cpus=1)
    run.until(lambda: ended(sim, high), 60)
    run.run(20)
    assert len(phases(run, Phase.PARKED)) == ready(run) == 1
    assert any("an instance takes" in why(r) for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, *low), 900)
    assert sim.audit() == []


def test_idle_ones_make_way_for_stopped_work_also_if_they_are_kept_warm() -> None:
    """The host has shrunk while work stood still: the idle one that is left there has all of its room."""
    sim = one_host(2)
    run = play(sim, policies(hosts=("bm1",), scale=Scale(idle_s=20.0, warm=1)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    (name,) = sim.job(low).nodes
    run.cycle.take([HoldSet(name, run.now_s, on=True, reason="an admin looks into it")])
    run.until(lambda: run.world.managed[name].phase is Phase.PARKED, 60)
    run.until(lambda: ready(run) == 1, 60)
    sim.hosts["bm1"].capacity = replace(sim.hosts["bm1"].capacity, cpus=1)
    run.cycle.take([HoldSet(name, run.now_s, on=False, reason="")])
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []
