"""Simulated time: forwards only, the same history every time, and fast enough."""

from __future__ import annotations

import random
from functools import partial

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from tests.unit.simulated_cluster import add_node, cluster, spec


def test_time_does_not_go_back() -> None:
    """Stepping into the past is a programmer's error."""
    world = cluster()
    with pytest.raises(ValueError, match="cannot go back"):
        world.step_to(999.0)
    with pytest.raises(ValueError, match="no partition 'x'"):
        world.submit("x", 1.0)


def _undrain(world: SimulatedWorld, name: str) -> None:
    world.slurm.undrain(name)


def play(step_s: float) -> list[object]:
    """A busy hour with pauses, requeues and cancels, played in steps of `step_s`."""
    world = cluster(Manners(slurmd_timeout_s=120), hosts=4)
    dice = random.Random(5)
    for i in range(1, 5):
        add_node(world, f"v{i}")
        world.provider.create(spec(f"v{i}", f"n{i}"))
        world.at(1006.0, partial(_undrain, world, f"v{i}"))
    for _ in range(150):
        at_s = 1000.0 + dice.uniform(0.0, 3000.0)
        world.submit("low", dice.uniform(5.0, 300.0), at_s=at_s, cpus=dice.choice((1, 2)))
    for _ in range(20):
        name, at_s = dice.randint(1, 4), 1050.0 + dice.uniform(0.0, 3000.0)
        where = (f"n{name}", f"v{name}")
        world.at(at_s, lambda where=where: world.provider.pause(*where))  # type: ignore[misc]
        later_s = at_s + dice.uniform(10.0, 200.0)
        world.at(later_s, lambda where=where: world.provider.thaw(*where))  # type: ignore[misc]
    while world.now_s < 20_000.0:
        world.step_to(min(20_000.0, world.now_s + step_s))
    ends = [(j, world.job(str(j)).state, world.job(str(j)).restarts) for j in range(1, 151)]
    return [*ends, *world.tally, *world.violations]


def test_the_history_does_not_depend_on_the_steps() -> None:
    """Whoever looks, and however often, the same things happen at the same times."""
    assert play(19_000.0) == play(7.3)


def test_ten_thousand_jobs_end_once() -> None:
    """A large trace is played completely and exactly."""
    world = SimulatedWorld()
    world.add_partition("p")
    for i in range(50):
        world.add_host(f"n{i}", cpus=4)
    dice = random.Random(3)
    start_s = world.now_s
    needed = 0
    for _ in range(10_000):
        run_s = dice.randint(10, 600)
        needed += run_s
        wide = dice.choice((1, 1, 1, 2))
        at_s = start_s + dice.uniform(0.0, 7200.0)
        world.submit("p", run_s, at_s=at_s, cpus=dice.choice((1, 2, 4)) * wide, num_nodes=wide)
    while world.next_s is not None:
        world.step_to(world.next_s)
    assert all(world.job(str(i)).state is JobState.COMPLETED for i in range(1, 10_001))
    assert world.audit() == []
    assert world.job("1").restarts == 0
    seconds = sum(s.end_s - s.start_s for s in world.segments)
    assert seconds == pytest.approx(needed, rel=1e-9)


def test_step_costs_grow_with_memory() -> None:
    """Suspend, restore and migrate take time per MB; other calls a fixed time."""
    costs = StepCosts(pause_s=0.01, suspend_s=1.0, suspend_s_per_mb=0.01, slurm_call_s=0.5)
    assert costs.of("pause", 1000) == 0.01
    assert costs.of("suspend", 100) == pytest.approx(2.0)
    assert costs.of("undrain") == costs.undrain_s
    assert costs.of("resume_job") == 0.5
