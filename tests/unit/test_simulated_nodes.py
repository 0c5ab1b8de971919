"""The simulated slurmctld's nodes: new, drained, silent, down and back."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import JobState, NodeBase
from backfill.drivers.simulated.slurm.books import Manners
from backfill.ports.errors import AlreadyThereError, NotFoundError, RefusedError
from backfill.ports.workload import NodeSpec
from tests.unit.simulated_cluster import add_node, busy, cluster, join, node, spec

# --- nodes -------------------------------------------------------------------------------------


def test_a_new_node_waits_for_its_slurmd_and_for_us() -> None:
    """It is known, drained by us and not responding; registration makes it respond."""
    world = cluster()
    add_node(world, "v1")
    add_node(world, "v1")
    assert node(world, "v1").drained_by_us
    assert not node(world, "v1").responding
    world.provider.create(spec())
    world.clock.advance(4.9)
    assert node(world, "v1").slurmd_start_s == 0.0
    world.clock.advance(0.2)
    assert node(world, "v1").responding
    assert node(world, "v1").slurmd_start_s == 1005.0
    assert node(world, "v1").partitions == ("low",)


def test_the_slurmd_may_come_before_its_node() -> None:
    """An instance that booted first registers as soon as the node is made."""
    world = cluster()
    world.provider.create(spec())
    world.clock.advance(10.0)
    add_node(world, "v1")
    assert node(world, "v1").responding


def test_other_peoples_nodes_cannot_be_taken() -> None:
    """A node of slurm.conf, or one with another shape, is AlreadyThereError; delete is refused."""
    world = cluster()
    with pytest.raises(AlreadyThereError):
        world.slurm.create_node(NodeSpec("n1", "10.0.0.1", 2, 4096, ()))
    add_node(world, "v1")
    with pytest.raises(AlreadyThereError):
        world.slurm.create_node(NodeSpec("v1", "10.0.0.77", 2, 976, ("virtual",)))
    with pytest.raises(RefusedError):
        world.slurm.delete_node("n1")
    world.slurm.delete_node("v77")


def test_an_admins_drain_is_never_touched() -> None:
    """Neither drained over nor lifted; ours is lifted and may be renewed."""
    world = cluster()
    world.admin_drain("n1", "bad disk")
    with pytest.raises(RefusedError):
        world.slurm.drain("n1", "backfill: evicted")
    with pytest.raises(RefusedError):
        world.slurm.undrain("n1")
    world.slurm.drain("n2", "backfill: a")
    world.slurm.drain("n2", "backfill: b")
    assert node(world, "n2").reason == "backfill: b"
    world.slurm.undrain("n2")
    world.slurm.undrain("n2")
    assert not node(world, "n2").drained


def test_a_drain_without_our_prefix_is_refused() -> None:
    """Our drains must be known by their reason."""
    with pytest.raises(RefusedError, match="backfill:"):
        cluster().slurm.drain("n1", "because")


def test_unknown_nodes_and_jobs_are_not_found() -> None:
    """Calls about what Slurm does not know say so."""
    slurm = cluster().slurm
    for call in (slurm.undrain, slurm.suspend_job, slurm.requeue_job):
        with pytest.raises(NotFoundError):
            call("77")
    with pytest.raises(NotFoundError):
        slurm.drain("77", "backfill: x")


# --- silence -----------------------------------------------------------------------------------


def test_without_slurmd_timeout_a_paused_job_survives() -> None:
    """SlurmdTimeout=0: only NOT_RESPONDING after the ping, and all is well after a wake."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.clock.advance(29.0)
    assert node(world, "v1").responding
    world.clock.advance(3600.0)
    assert not node(world, "v1").responding
    assert world.job(job).state is JobState.RUNNING
    world.provider.thaw("n1", "v1")
    assert not node(world, "v1").responding
    world.provider.wake("n1", "v1", world.now_s)
    assert node(world, "v1").responding
    world.clock.advance(60.0)
    assert world.job(job).state is JobState.COMPLETED
    assert world.job(job).restarts == 0


def test_without_a_wake_the_next_ping_clears_not_responding() -> None:
    """slurmctld finds the node again by itself, but late."""
    world = cluster()
    busy(world)
    world.provider.pause("n1", "v1")
    world.clock.advance(40.0)
    world.provider.thaw("n1", "v1")
    world.clock.advance(29.0)
    assert not node(world, "v1").responding
    world.clock.advance(2.0)
    assert node(world, "v1").responding


@pytest.mark.parametrize("suspended", [False, True])
def test_after_slurmd_timeout_the_node_is_down_and_the_job_requeued(suspended: bool) -> None:
    """A running job waits two minutes, a suspended one is held; both have restart 1."""
    world = cluster(Manners(slurmd_timeout_s=60))
    job = busy(world)
    if suspended:
        world.slurm.suspend_job(job)
    world.provider.pause("n1", "v1")
    world.clock.advance(61.0)
    assert node(world, "v1").base is NodeBase.DOWN
    assert world.job(job).state is JobState.PENDING
    assert world.job(job).restarts == 1
    assert (world.job(job).reason == "JobHeldAdmin") is suspended


def test_a_pause_shorter_than_slurmd_timeout_is_harmless() -> None:
    """The node answers again before it is given up."""
    world = cluster(Manners(slurmd_timeout_s=60))
    job = busy(world)
    for _ in range(3):
        world.provider.pause("n1", "v1")
        world.clock.advance(50.0)
        world.provider.thaw("n1", "v1")
        world.clock.advance(15.0)
    world.clock.advance(60.0)
    assert world.job(job).state is JobState.COMPLETED
    assert world.job(job).restarts == 0
    assert world.audit() == []


def test_a_no_requeue_job_fails_with_its_node() -> None:
    """NODE_FAIL instead of the queue."""
    world = cluster(Manners(slurmd_timeout_s=60))
    join(world)
    job = world.submit("low", 50.0, requeue=False)
    world.clock.advance(3.0)
    world.crash_instance("v1")
    world.clock.advance(61.0)
    assert world.job(job).state is JobState.NODE_FAIL


def test_a_fresh_slurmd_without_the_job_makes_slurm_requeue_it() -> None:
    """The instance was replaced: a running job is missed at registration, a suspended one not."""
    world = cluster()
    running = busy(world)
    suspended = busy(world, name="v2", host="n2")
    world.slurm.suspend_job(suspended)
    for name, host in (("v1", "n1"), ("v2", "n2")):
        world.provider.delete(host, name)
        world.provider.create(spec(name, host, generation=2))
    world.clock.advance(6.0)
    assert world.job(running).restarts == 1
    assert world.job(suspended).state is JobState.SUSPENDED
    assert [v.kind for v in world.audit()] == ["destroyed", "destroyed", "lost"]


def test_slurm_down_starts_nothing_and_hears_the_end_later() -> None:
    """Running jobs go on; their completion is seen when slurmctld is back."""
    world = cluster()
    running = world.submit("high", 10.0, cpus=2)
    world.clock.advance(5.0)
    world.stop_slurm()
    waiting = world.submit("high", 10.0, cpus=2)
    world.clock.advance(30.0)
    assert world.job(running).state is JobState.RUNNING
    assert world.job(waiting).state is JobState.PENDING
    world.start_slurm()
    assert world.job(running).state is JobState.COMPLETED
    world.clock.advance(30.0)
    assert world.job(waiting).state is JobState.COMPLETED


def test_tell_goes_to_the_admin_comment_and_settings_name_the_hook() -> None:
    """What the driver leaves for people, and what the start-up check reads."""
    world = cluster(Manners(slurmd_timeout_s=300))
    job = world.submit("high", 10.0)
    world.slurm.tell(job, "paused")
    assert world.slurm.settings().slurmd_timeout_s == 300
    assert world.slurm.settings().prolog_slurmctld == ""
    world.hook(lambda job, nodes: 0.0)
    assert world.slurm.settings().prolog_slurmctld != ""
    assert world.slurm.settings().partitions == ("high", "low")


def test_observe_nodes_shows_the_nodes_and_the_jobs_on_them() -> None:
    """A narrow read: nothing of other nodes, unknown names absent."""
    world = cluster()
    job = busy(world)
    world.submit("high", 50.0, cpus=2)
    world.clock.advance(2.0)
    seen = world.slurm.observe_nodes(["v1", "v77"])
    assert set(seen.nodes) == {"v1"}
    assert set(seen.jobs) == {job}
    assert seen.seen_s == world.now_s
