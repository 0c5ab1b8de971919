"""The simulated hypervisors: states, memory, and what the guest inside notices."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Checkpoint, InstanceState, Tag
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    NoCapacityError,
    NotFoundError,
    UnreachableError,
)
from tests.unit.simulated_cluster import add_node, busy, cluster, counts, node, spec


def test_create_is_idempotent_by_tag() -> None:
    """The same instance again is nothing; another generation under the name is in the way."""
    world = cluster()
    world.provider.create(spec())
    world.provider.create(spec())
    with pytest.raises(AlreadyThereError):
        world.provider.create(spec(generation=2))
    seen = world.provider.observe("n1").instances["v1"]
    assert (seen.state, seen.tag.generation, seen.rss_mb) == (InstanceState.RUNNING, 1, 1024)


def test_memory_is_counted_per_host_and_freed_by_suspend() -> None:
    """Four instances of 1 GB fill a host of 4 GB; a paused one keeps its memory."""
    world = cluster()
    for i in range(1, 5):
        world.provider.create(spec(f"v{i}"))
    with pytest.raises(NoCapacityError, match="0 MB are free"):
        world.provider.create(spec("v5"))
    world.provider.pause("n1", "v1")
    with pytest.raises(NoCapacityError):
        world.provider.create(spec("v5"))
    world.provider.suspend("n1", "v1")
    assert world.provider.observe("n1").instances["v1"].rss_mb == 0
    world.provider.create(spec("v5"))
    with pytest.raises(NoCapacityError):
        world.provider.restore("n1", "v1")
    world.provider.delete("n1", "v5")
    world.provider.restore("n1", "v1")


def test_pause_holds_the_job_and_thaw_lets_it_go_on() -> None:
    """No second is counted in between; repeated calls change nothing."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.provider.pause("n1", "v1")
    world.clock.advance(20.0)
    assert counts(world, job) == 10
    world.provider.thaw("n1", "v1")
    world.provider.thaw("n1", "v1")
    world.clock.advance(5.0)
    assert counts(world, job) == 15


def test_suspend_migrate_restore_carries_the_job_along() -> None:
    """The job goes on where it stopped, on the other host, in the same node."""
    world = cluster()
    job = busy(world)
    world.provider.suspend("n1", "v1")
    world.provider.suspend("n1", "v1")
    world.provider.migrate("n1", "v1", "n2")
    world.provider.migrate("n1", "v1", "n2")
    assert world.provider.read("n1", "v1") is None
    with pytest.raises(BusyError):
        world.provider.thaw("n2", "v1")
    world.provider.restore("n2", "v1")
    world.provider.restore("n2", "v1")
    assert world.instance("v1").state is InstanceState.PAUSED
    world.provider.thaw("n2", "v1")
    world.provider.wake("n2", "v1", world.now_s)
    world.clock.advance(100.0)
    assert world.job(job).state is JobState.COMPLETED
    assert {(s.host, s.node) for s in world.segments} == {("n1", "v1"), ("n2", "v1")}
    assert world.audit() == []


def test_a_running_instance_migrates_without_a_gap() -> None:
    """The job does not notice, and Slurm does not either."""
    world = cluster()
    job = busy(world)
    world.provider.migrate("n1", "v1", "n2")
    assert node(world, "v1").responding
    world.clock.advance(50.0)
    assert world.job(job).state is JobState.COMPLETED
    assert world.gaps() == []


def test_migration_needs_room_on_the_target() -> None:
    """The source keeps it."""
    world = cluster()
    world.provider.create(spec("v1"))
    for i in range(2, 6):
        world.provider.create(spec(f"v{i}", "n2"))
    with pytest.raises(NoCapacityError):
        world.provider.migrate("n1", "v1", "n2")
    assert world.instance("v1").host == "n1"


def test_a_pause_during_the_boot_delays_it() -> None:
    """The guest goes on booting where it stood still."""
    world = cluster()
    add_node(world, "v1")
    world.provider.create(spec())
    world.clock.advance(3.0)
    world.provider.pause("n1", "v1")
    world.clock.advance(60.0)
    world.provider.thaw("n1", "v1")
    world.clock.advance(1.9)
    assert not node(world, "v1").responding
    world.clock.advance(0.2)
    assert node(world, "v1").responding


def test_wake_corrects_the_clock_by_the_time_it_stood() -> None:
    """A pause of 8 s leaves the guest 8 s behind, once."""
    world = cluster()
    busy(world)
    world.provider.pause("n1", "v1")
    with pytest.raises(BusyError):
        world.provider.wake("n1", "v1", world.now_s)
    world.clock.advance(8.0)
    world.provider.thaw("n1", "v1")
    assert world.provider.wake("n1", "v1", world.now_s) == pytest.approx(8.0)
    assert world.provider.wake("n1", "v1", world.now_s) == 0.0


def test_a_guest_that_has_not_booted_cannot_be_woken() -> None:
    """No agent, no answer; its console tells a person why."""
    world = cluster()
    world.provider.create(spec())
    with pytest.raises(BusyError, match="not booted"):
        world.provider.wake("n1", "v1", world.now_s)
    assert "booting" in world.provider.console("n1", "v1")
    world.clock.advance(6.0)
    assert "login" in world.provider.console("n1", "v1")


def test_delete_ends_the_job_inside_and_may_be_repeated() -> None:
    """Nothing of it computes any more."""
    world = cluster()
    job = busy(world)
    world.provider.delete("n1", "v1")
    world.provider.delete("n1", "v1")
    world.clock.advance(100.0)
    assert counts(world, job) == 10
    assert world.provider.observe("n1").instances == {}


def test_a_crashed_instance_can_only_be_deleted() -> None:
    """Its memory is gone, and the job with it."""
    world = cluster()
    busy(world)
    world.crash_instance("v1")
    assert world.provider.observe("n1").instances["v1"].state is InstanceState.CRASHED
    for call in (world.provider.pause, world.provider.thaw, world.provider.suspend):
        with pytest.raises(BusyError):
            call("n1", "v1")
    world.provider.delete("n1", "v1")


def test_an_unreachable_host_is_an_answer_to_observe_and_an_error_to_calls() -> None:
    """What runs there goes on."""
    world = cluster()
    job = busy(world)
    world.cut_host("n1")
    seen = world.provider.observe("n1")
    assert (seen.host.reachable, seen.instances) == (False, {})
    assert seen.host.problem != ""
    for call in (world.provider.pause, world.provider.delete, world.provider.read):
        with pytest.raises(UnreachableError):
            call("n1", "v1")
    world.clock.advance(60.0)
    assert world.job(job).state is JobState.COMPLETED
    world.join_host("n1")
    assert world.provider.observe("n1").host.reachable


def test_a_failing_observation_is_an_unreachable_host() -> None:
    """A libvirt call that raises becomes an answer with its sentence."""
    world = cluster()
    world.faults.fail("observe_host", UnreachableError("n1", "keepalive lost"), subject="n1")
    assert "keepalive lost" in world.provider.observe("n1").host.problem
    assert world.provider.observe("n1").host.reachable


def test_unknown_names_are_not_found_and_foreign_instances_not_seen() -> None:
    """Only hosts of the provider, only instances with our tag."""
    world = cluster()
    for call in (world.provider.pause, world.provider.console):
        with pytest.raises(NotFoundError):
            call("n1", "v77")
    with pytest.raises(NotFoundError):
        world.provider.observe("n77")
    assert world.provider.hosts == ("n1", "n2")
    assert world.provider.read("n1", "v77") is None
    world.add_stranger(replace(spec("v8"), tag=Tag("other", "v8", 1)))
    assert world.provider.observe("n1").instances == {}
    assert world.provider.read("n1", "v8") is None
    world.provider.delete("n1", "v8")
    with pytest.raises(NotFoundError):
        world.provider.pause("n1", "v8")
    with pytest.raises(AlreadyThereError):
        world.provider.create(spec("v8"))


def test_checkpoints_are_listed_while_others_are_kept() -> None:
    """The defect: one that was kept while a list was made ended the caller, now and then."""
    world = cluster()
    world.provider.create(spec())
    world.provider.suspend("n1", "v1")
    for number in range(100):
        world.provider.keep("n1", Checkpoint(f"c{number}", "v1"), None)
    listed: list[int] = []

    def look() -> None:
        while len(listed) < 500:
            listed.append(len(world.provider.checkpoints()))

    reader = threading.Thread(target=look)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        while reader.is_alive():
            world.provider.keep("n1", Checkpoint("new", "v1"), None)
            world.provider.drop("new")
    finally:
        sys.setswitchinterval(interval_s)
    assert len(listed) == 500
    assert set(listed) <= {100, 101}
