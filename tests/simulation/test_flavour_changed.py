"""A policy file with a larger flavour: what was made before is judged by the shape that it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.changes import NodeManaged
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import Phase
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, ended, one_host, phases, play, policies, ready, running


def enlarged(run: Rehearsal) -> None:
    """From now on instances have two CPUs and twice the memory."""
    rules = replace(run.policies, instances=replace(TWELVE, flavour=Flavour(cpus=2, memory_mb=512)))
    run.policies = run.cycle.policies = rules


def at_work() -> tuple[SimulatedWorld, Rehearsal, str]:
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    return sim, run, low


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
def test_work_that_was_stopped_comes_back(stopped: bool, recorded: bool) -> None:
    """In an instance of the shape before, also where its record is too old to tell which that is."""
    sim, run, low = at_work()
    if not recorded:
        (node,) = run.world.managed.values()
        run.cycle.take([NodeManaged(replace(node, flavour=None))])
    if not stopped:
        enlarged(run)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 60)
    enlarged(run)
    run.until(lambda: ended(sim, high, low), 400)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_room_is_what_those_of_before_leave() -> None:
    """Two of one CPU leave two of four, which one of the new shape takes."""
    sim, run, _ = at_work()
    second = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, second), 60)
    assert ready(run) == 2
    enlarged(run)
    third = sim.submit("htc", 100.0, cpus=2)
    run.until(lambda: running(sim, third), 60)
    assert sim.audit() == []
