"""Ordered failures and accidents in the simulated cluster."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import NoCapacityError, UnreachableError
from tests.unit.simulated_cluster import add_node, busy, cluster, node, spec


def test_a_call_fails_as_often_as_ordered() -> None:
    """Twice with the given error and no effect, then it works."""
    world = cluster()
    world.faults.fail("create", NoCapacityError("n1", "no room"), times=2, subject="v1")
    for _ in range(2):
        with pytest.raises(NoCapacityError, match="no room"):
            world.provider.create(spec())
    assert world.provider.read("n1", "v1") is None
    world.provider.create(spec())
    assert world.provider.read("n1", "v1") is not None


def test_a_call_may_act_and_still_fail() -> None:
    """The answer was lost: the instance is there, and the repetition is harmless."""
    world = cluster()
    world.faults.fail("create", UnreachableError("n1", "timed out"), acts=True)
    with pytest.raises(UnreachableError):
        world.provider.create(spec())
    assert world.provider.read("n1", "v1") is not None
    world.provider.create(spec())


def test_a_fault_for_one_subject_spares_the_others() -> None:
    """Only the ordered host, node or job is hit."""
    world = cluster()
    world.faults.fail("drain", UnreachableError("n1", "timed out"), subject="n1", times=-1)
    world.slurm.drain("n2", "backfill: x")
    for _ in range(3):
        with pytest.raises(UnreachableError):
            world.slurm.drain("n1", "backfill: x")
    world.faults.clear()
    world.slurm.drain("n1", "backfill: x")


def test_a_hanging_pause_does_nothing_and_says_how_long() -> None:
    """A runner asks for the time; the call itself ends as unreachable."""
    world = cluster()
    busy(world)
    world.faults.hang("pause", 30.0, subject="v1")
    assert world.faults.hang_s("pause", "n1", "v1") == 30.0
    with pytest.raises(UnreachableError, match="did not answer for 30 s"):
        world.provider.pause("n1", "v1")
    assert world.instance("v1").state == "running"
    assert world.faults.hang_s("pause", "n1", "v1") == 0.0
    world.provider.pause("n1", "v1")


def test_random_failures_come_from_the_seed() -> None:
    """The same seed fails the same calls."""

    def history(seed: int) -> list[bool]:
        world = SimulatedWorld(seed=seed)
        world.add_host("n1", node=False)
        world.faults.fail("read", UnreachableError("n1", "flaky"), times=-1, rate=0.5)
        failed = []
        for _ in range(40):
            try:
                world.provider.read("n1", "v1")
                failed.append(False)
            except UnreachableError:
                failed.append(True)
        return failed

    assert history(1) == history(1)
    assert history(1) != history(2)
    assert 5 < sum(history(1)) < 35


def test_a_guest_that_never_boots_never_registers() -> None:
    """The instance runs, the node does not respond; the next try may be fine."""
    world = cluster()
    add_node(world, "v1")
    world.faults.never_boots("v1", times=1)
    world.provider.create(spec())
    world.clock.advance(3600.0)
    assert world.instance("v1").state == "running"
    assert not node(world, "v1").responding
    world.provider.delete("n1", "v1")
    world.provider.create(spec(generation=2))
    world.clock.advance(6.0)
    assert node(world, "v1").responding


def test_a_host_without_power_loses_what_was_in_memory() -> None:
    """Running instances are OFF afterwards, suspended ones can be restored, its own job is lost."""
    world = cluster(Manners(slurmd_timeout_s=60))
    busy(world)
    kept = busy(world, name="v2", host="n1", run_s=100.0)
    world.slurm.suspend_job(kept)
    world.provider.suspend("n1", "v2")
    world.kill_host("n1")
    assert not world.provider.observe("n1").host.reachable
    world.clock.advance(30.0)
    world.power_host("n1", boot_s=10.0)
    states = {n: i.state for n, i in world.provider.observe("n1").instances.items()}
    assert states == {"v1": "off", "v2": "suspended"}
    world.clock.advance(11.0)
    assert node(world, "n1").responding
    world.provider.restore("n1", "v2")
    world.provider.thaw("n1", "v2")
    world.slurm.resume_job(kept)
    world.clock.advance(200.0)
    assert world.job(kept).state is JobState.COMPLETED
    assert world.job(kept).restarts == 0


def test_a_reading_may_lack_what_is_there() -> None:
    """Once, without a trace: the next reading has it all again, and single questions always had."""
    world = cluster()
    job = busy(world)
    for odd, nodes, jobs in ((Odd.NO_JOBS, True, False), (Odd.NO_NODES, False, True)):
        world.faults.misread(odd)
        assert world.slurm.read_jobs([job])
        seen = world.slurm.observe()
        assert (bool(seen.nodes), bool(seen.jobs)) == (nodes, jobs)
        seen = world.slurm.observe()
        assert all((seen.nodes, seen.jobs))


def test_slurmctld_may_not_know_its_jobs_for_a_while() -> None:
    """Whoever asks, until the order is ended."""
    world = cluster()
    job = busy(world)
    order = world.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
    for _ in range(3):
        assert world.slurm.observe().jobs == world.slurm.read_jobs([job]) == {}
        assert world.slurm.observe_nodes(["v1"]).jobs == {}
        assert set(world.slurm.read_nodes(["v1"])) == {"v1"}
    order.end()
    assert set(world.slurm.read_jobs([job])) == {job}


def test_half_a_reading_is_the_same_half_for_the_same_seed() -> None:
    """Some are missing, some are not."""

    def seen() -> list[set[str]]:
        world = cluster(hosts=20)
        world.faults.misread(Odd.HALF, times=2)
        return [set(world.slurm.observe().nodes) for _ in range(3)]

    first, second, whole = seen()
    assert [first, second, whole] == seen()
    assert [len(s) == 20 for s in (first, second, whole)] == [False, False, True]
    assert min(len(first), len(second)) > 0
    assert first != second


def test_a_host_may_be_read_without_its_instances() -> None:
    """Of one host, once; the instance itself answers."""
    world = cluster()
    busy(world)
    world.faults.misread(Odd.NO_INSTANCES, subject="n1")
    assert world.provider.observe("n2").instances == {}
    assert world.provider.observe("n1").instances == {}
    assert set(world.provider.observe("n1").instances) == {"v1"}


def test_an_order_can_be_ended() -> None:
    """What failed for ever works again."""
    world = cluster()
    busy(world)
    order = world.faults.fail("pause", UnreachableError("v1", "no answer"), times=-1)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            world.provider.pause("n1", "v1")
    order.end()
    world.provider.pause("n1", "v1")


def test_no_guest_proves_itself_without_the_file_server() -> None:
    """Until it is back."""
    world = cluster()
    busy(world)

    def proven() -> bool:
        report, _ = world.provider.prove("n1", "v1", world.now_s, "c", False)
        return all(fact.ok for fact in report.facts)

    assert proven()
    world.stop_file_server()
    assert not proven()
    world.start_file_server()
    assert proven()
