"""Devices and company of a job's own machines in simulated time: lent before the job begins, gone with it."""

from __future__ import annotations

import pytest

from backfill.core.model.devices import Holding, VirtualFunction
from backfill.core.model.fleet import CloneMethod, InstanceSpec, Rung
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.core.policies.cloning import Choice, Cloning
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import BusyError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import ended, running
from tests.simulation.test_own_machines import WORD, begin, state

INSIDE = OwnMachines(enabled=True, inside=("batch",))


def theirs(run: Rehearsal, job: str) -> list[str]:
    return sorted(m.name for m in run.world.managed.values() if m.job == job)


def held(sim: SimulatedWorld, job: str) -> list[Holding]:
    return [h for h in sim.provider.holdings() if h.job == job]


def sizes(holding: Holding) -> list[int]:
    return [region.size_mb for region in holding.regions]


def made(run: Rehearsal) -> list[InstanceSpec]:
    """Every machine that was made."""
    return [decode(r.body).spec for r in run.journal.read() if r.body.get("t") == "CreateInstance"]


def all_gone(run: Rehearsal, sim: SimulatedWorld) -> bool:
    world = run.world
    return not (world.machines or world.fleets or world.managed or sim.provider.holdings())


def test_a_job_finds_its_regions_when_it_begins() -> None:
    """Several, of the sizes that it asks for, shared with its fellow beside it; gone when it ends."""
    sim, run = begin()
    word = f"{WORD}:cpus=1,mem=256,ivshmem=64+32,place=together"
    job = sim.submit("htc", 30.0, num_nodes=2, cpus=2, comment=word)
    before: list[bool] = []

    def begun() -> bool:
        if running(sim, job):
            return True
        before[:] = [all(h.plugged for h in held(sim, job)) and len(held(sim, job)) == 2]
        return False

    run.until(begun, 60)
    assert before == [True]
    first, second = held(sim, job)
    assert (sizes(first), first.regions) == ([64, 32], second.regions)
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 100)
    assert sim.audit() == []


@pytest.mark.parametrize(("place", "hosts"), [("together", 1), ("spread", 2)])
def test_machines_of_a_job_are_together_or_spread_as_it_asks(place: str, hosts: int) -> None:
    """Whatever the order of hosts in the policy would give."""
    sim, run = begin()
    job = sim.submit("htc", 20.0, num_nodes=2, cpus=2, comment=f"{WORD}:cpus=1,mem=256,place={place}")
    run.until(lambda: running(sim, job), 60)
    found = {run.world.managed[name].host for name in theirs(run, job)}
    assert len(found) == hosts
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 100)
    assert sim.audit() == []


def test_together_waits_until_one_host_has_room_for_all() -> None:
    """Both hosts have room for one each meanwhile: none is made there."""
    sim, run = begin(cpus=2)
    word = f"{WORD}:cpus=1,mem=256"
    others = [sim.submit("htc", 60.0, comment=f"{word},place=spread", num_nodes=2, cpus=2)]
    run.until(lambda: running(sim, *others), 60)
    job = sim.submit("htc", 20.0, num_nodes=2, cpus=2, comment=f"{word},place=together")
    run.run(20.0)
    assert theirs(run, job) == []
    run.until(lambda: running(sim, job), 200)
    assert len({run.world.managed[name].host for name in theirs(run, job)}) == 1
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 100)
    assert sim.audit() == []


def test_what_no_host_can_lend_is_told() -> None:
    """Functions that no card has, memory that no host has, more machines apart than there are hosts."""
    sim, run = begin()
    said = {
        "sriov=1": "1 virtual functions for each machine",
        "ivshmem=1048576": "can never be had",
        "place=spread": "each on another host, can never be had",
        "network=lan": "network lan, and there is none of that name",
    }
    jobs = {
        sim.submit("htc", 5.0, num_nodes=3, cpus=3, comment=f"{WORD}:cpus=1,mem=256,{word}"): text
        for word, text in said.items()
    }
    run.until(lambda: all(state(run, job) is MachinesState.GIVEN_BACK for job in jobs), 30)
    run.until(lambda: all(text in sim.slurm.admin_comment(job) for job, text in jobs.items()), 10)
    for job in jobs:
        sim.user_cancel(job)
    run.until(lambda: all_gone(run, sim), 30)


def test_virtual_functions_are_lent_where_there_are_enough() -> None:
    """The machine is on the host that has two; a second job waits until they are free again."""
    sim, run = begin()
    sim.provider.functions = [VirtualFunction("bm2", f"0000:3b:02.{i}") for i in range(3)]
    word = f"{WORD}:cpus=1,mem=256,sriov=2"
    first = sim.submit("htc", 30.0, comment=word)
    run.until(lambda: running(sim, first), 60)
    (holding,) = held(sim, first)
    assert (holding.host, len(holding.functions), holding.plugged) == ("bm2", 2, True)
    second = sim.submit("htc", 10.0, comment=word)
    run.run(15.0)
    assert theirs(run, second) == []
    run.until(lambda: ended(sim, first, second) and all_gone(run, sim), 200)
    assert sim.audit() == []


def test_a_machine_that_was_on_disk_has_its_regions_again() -> None:
    """They are taken out of its guest before its memory is written, and are there when its job goes on."""
    ladder = Ladder((RungRule(Rung.SUSPEND, within_s=30.0), RungRule(Rung.REQUEUE)))
    sim, run = begin(ladder=ladder)
    job = sim.submit("htc", 60.0, comment=f"{WORD}:cpus=2,mem=256,ivshmem=64")
    run.until(lambda: running(sim, job), 60)
    (name,) = theirs(run, job)
    host = run.world.managed[name].host
    high = sim.submit("batch", 20.0, required_nodes=(host,), exclusive=True)
    run.until(lambda: run.world.managed[name].phase is Phase.PARKED, 60)
    assert not held(sim, job)[0].plugged
    run.until(lambda: ended(sim, high) and running(sim, job), 100)
    run.until(lambda: held(sim, job)[0].plugged, 5)
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 200)
    assert sim.audit() == []


def test_machines_that_are_lent_nothing_are_given_back() -> None:
    """Their host refuses every time: the job is told so and does not begin without."""
    rule = OwnMachines(enabled=True, start_within_s=20.0, respawns=1)
    sim, run = begin(own_machines=rule)
    sim.faults.fail("hold", BusyError("vn1", "nothing is free"), times=-1)
    job = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,mem=256,ivshmem=64")
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 300)
    run.until(lambda: "vn1 has no" in sim.slurm.admin_comment(job), 5)
    assert not running(sim, job)
    sim.user_cancel(job)
    run.until(lambda: all_gone(run, sim), 30)


def test_an_instant_clone_has_no_more_slots_than_its_parent() -> None:
    """So one with devices is linked where the policy file has none."""
    sim, run = begin(cloning=Cloning(method=Choice.INSTANT))
    job = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,mem=256,ivshmem=64+64")
    run.until(lambda: running(sim, job), 120)
    assert [(spec.method, spec.slots) for spec in made(run)] == [(CloneMethod.LINKED, 2)]
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 100)


def test_machines_within_an_allocation_share_memory_before_their_job_knows_of_them() -> None:
    """Two on each node share what their job has there, one region for each program that runs at a time."""
    sim, run = begin(own_machines=INSIDE)
    word = f"{WORD}:per_node=2,cpus=2,ivshmem=64+64"
    job = sim.submit("batch", 60.0, num_nodes=2, cpus=8, exclusive=True, memory_mb=2048, comment=word)
    run.until(lambda: state(run, job) is MachinesState.ALLOCATED, 60)
    assert len(held(sim, job)) == 4
    assert all(h.plugged and sizes(h) == [64, 64] for h in held(sim, job))
    for host in ("bm1", "bm2"):
        there = {h.regions for h in held(sim, job) if h.host == host}
        assert len(there) == 1
    assert {spec.flavour.memory_mb for spec in made(run)} == {(2048 - 128) // 2}
    inner = [sim.submit("htc", 10.0, within=job, cpus=2) for _ in range(2)]
    run.until(lambda: ended(sim, *inner), 30)
    assert all(h.plugged for h in held(sim, job))
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 100)
    assert sim.audit() == []


def test_shared_memory_beyond_the_jobs_part_of_its_nodes_is_refused() -> None:
    """It counts as memory of the job there."""
    sim, run = begin(own_machines=INSIDE)
    word = f"{WORD}:mem=1024,ivshmem=256"
    job = sim.submit("batch", 20.0, num_nodes=1, cpus=4, exclusive=True, memory_mb=1024, comment=word)
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 30)
    run.until(lambda: "1280 MB" in sim.slurm.admin_comment(job), 5)
    run.until(lambda: ended(sim, job) and all_gone(run, sim), 60)
