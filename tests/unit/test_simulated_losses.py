"""The audit counts intact work that we destroy and jobs that we end, and names its exceptions."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Checkpoint, Flavour, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.liveness import Liveness
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.simulated.losses import Deed
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import RefusedError
from tests.unit.simulated_cluster import busy, cluster, join

PAUSED_A_MINUTE = (RungRule(Rung.PAUSE, 1.0, 60.0), RungRule(Rung.REQUEUE))


def kinds(world: SimulatedWorld) -> list[str]:
    return [v.kind for v in world.audit() if v.kind not in ("lost", "room")]


def ours(world: SimulatedWorld, *rungs: RungRule, order: str = "", pressed: str = "") -> Deed:
    policies = PolicySet(
        cluster="sim",
        priorities=Priorities(low=("low",)),
        instances=Template(("v1",), ("10.0.0.1/16",), Flavour(cpus=2, memory_mb=1024)),
        hosts=("n1",),
        ladder=Ladder(rungs),
        liveness=Liveness(down_after_s=100.0),
    )
    return Deed("the daemon", "a test", world.now_s, policies, order, pressed)


def fixed(world: SimulatedWorld) -> str:
    """A job that may not be requeued, at work on v1."""
    join(world)
    job = world.submit("low", 60.0, cpus=2, requeue=False)
    world.clock.advance(10.0)
    assert world.job(job).state is JobState.RUNNING
    return job


def test_an_instance_with_a_job_must_not_go() -> None:
    """Who did it, why, when, which run of which job, and what was done of it: all is told."""
    world = cluster()
    job = busy(world)
    with world.doing(ours(world)):
        world.provider.delete("n1", "v1")
    (found,) = world.violations
    assert (found.kind, found.at_s) == ("destroyed", world.now_s)
    for part in (f"job {job} (restart 0", "10 of 60 s", "v1 at n1", "by the daemon", "a test"):
        assert part in found.text


@pytest.mark.parametrize("suspended", [False, True])
def test_saved_memory_counts_as_work(suspended: bool) -> None:
    """On disk, paused, told to Slurm or not: while Slurm holds that run it is intact."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    if suspended:
        world.slurm.suspend_job(job)
    world.provider.suspend("n1", "v1")
    world.provider.delete("n1", "v1")
    assert kinds(world) == ["destroyed"]


def test_a_copy_that_is_stale_or_whose_job_has_ended_is_no_work() -> None:
    """Requeued behind us, ended, or cancelled by its owner: there is nothing to lose."""
    world = cluster(hosts=3)
    requeued = busy(world)
    cancelled = busy(world, name="v2", host="n2")
    for host, name in (("n1", "v1"), ("n2", "v2")):
        world.provider.pause(host, name)
    world.requeue_behind(requeued)
    world.user_cancel(cancelled)
    world.provider.delete("n1", "v1")
    world.provider.delete("n2", "v2")
    assert kinds(world) == []


def test_a_lost_copy_may_be_requeued_or_ended() -> None:
    """Its instance has crashed: whatever we tell Slurm then destroys nothing."""
    world = cluster()
    job = fixed(world)
    world.crash_instance("v1")
    world.slurm.cancel_job(job)
    assert kinds(world) == []


def test_no_job_is_ended_by_us() -> None:
    """Neither with its copy, nor after that was destroyed, nor while it waits."""
    world = cluster()
    job = fixed(world)
    world.provider.delete("n1", "v1")
    world.slurm.cancel_job(job)
    assert kinds(world) == ["destroyed", "cancelled"]
    waiting = world.submit("low", 60.0, requeue=False)
    world.slurm.cancel_job(waiting)
    assert kinds(world) == ["destroyed", "cancelled", "cancelled"]
    assert world.job(job).state is JobState.CANCELLED


def test_a_node_set_down_ends_what_may_not_be_requeued() -> None:
    """NODE_FAIL by our hand is no better than a cancel."""
    world = cluster()
    job = fixed(world)
    world.slurm.set_down("v1", "backfill: dead")
    assert world.job(job).state is JobState.NODE_FAIL
    assert kinds(world) == ["destroyed", "cancelled"]


def test_the_ladder_has_to_name_requeue() -> None:
    """The same call: allowed where the host is wanted and the policy says so, else counted."""
    for rungs, allowed in (((RungRule(Rung.REQUEUE),), True), ((RungRule(Rung.PAUSE),), False)):
        world = cluster()
        busy(world)
        world.submit("high", 30.0, cpus=2, required_nodes=("n1",))
        world.hook(lambda job, nodes: None)
        world.clock.advance(1.5)
        with world.doing(ours(world, *rungs)):
            world.provider.delete("n1", "v1")
        assert (kinds(world) == []) is allowed


def test_the_ladder_allows_nothing_on_a_host_that_nobody_wants() -> None:
    """A return that fails is no eviction; a moment after the taker's end still is."""
    for later_s, allowed in ((1.0, True), (60.0, False)):
        world = cluster()
        busy(world, run_s=500.0)
        high = world.submit("high", 1000.0, cpus=2, required_nodes=("n1",))
        world.hook(lambda job, nodes: None)
        world.clock.advance(1.5)
        world.user_cancel(high)
        world.clock.advance(later_s)
        with world.doing(ours(world, RungRule(Rung.REQUEUE))):
            world.provider.delete("n1", "v1")
        assert (kinds(world) == []) is allowed


def test_the_ladder_counts_by_the_true_time() -> None:
    """A minute of pause is a minute, whatever the daemon's clock says."""
    for paused_s, allowed in ((20.0, False), (60.0, True)):
        world = cluster()
        job = busy(world, run_s=500.0)
        world.submit("high", 1000.0, cpus=2, required_nodes=("n1",))
        world.provider.pause("n1", "v1")
        world.slurm.suspend_job(job)
        world.clock.advance(paused_s)
        with world.doing(ours(world, *PAUSED_A_MINUTE)):
            world.slurm.requeue_job(job)
        assert (kinds(world) == []) is allowed


def test_no_ladder_allows_a_job_that_may_not_be_requeued() -> None:
    """--no-requeue is the owner's word against the policy's."""
    world = cluster()
    fixed(world)
    world.submit("high", 30.0, cpus=2, required_nodes=("n1",))
    world.clock.advance(1.5)
    with world.doing(ours(world, RungRule(Rung.REQUEUE), pressed="by hand")):
        world.provider.delete("n1", "v1")
    assert kinds(world) == ["destroyed"]


@pytest.mark.parametrize(
    ("kept", "more_s", "found"), [(1, 10.0, []), (1, 80.0, ["destroyed"]), (0, 10.0, ["destroyed"])]
)
def test_a_stranger_who_has_just_begun_may_be_put_back(kept: int, more_s: float, found: list[str]) -> None:
    """On a node that is kept for another job; not after a minute, nor where nobody is kept out."""
    world = cluster()
    stranger = busy(world, 600.0)
    owner = world.submit("low", 60.0, cpus=2)
    if kept:
        world.slurm.pin_job(owner, ["v1"])
    world.clock.advance(more_s)
    with world.doing(ours(world)):
        world.slurm.requeue_job(stranger)
    assert kinds(world) == found


def test_an_order_allows_it() -> None:
    """An admin said that the host is off for good."""
    world = cluster()
    fixed(world)
    with world.doing(ours(world, order="n1 is off for good")):
        world.provider.delete("n1", "v1")
    assert kinds(world) == []


def test_a_host_that_died_allows_it() -> None:
    """Its memory on disk cannot be reached as long as the power is out; a cut is no death."""
    for really in (True, False):
        world = cluster()
        job = busy(world)
        world.provider.suspend("n1", "v1")
        if really:
            world.kill_host("n1")
        else:
            world.cut_host("n1")
        with world.doing(ours(world)):
            world.slurm.requeue_job(job)
        assert (kinds(world) == []) is really


def test_a_guest_that_is_cut_off_is_dead_after_a_while() -> None:
    """For as long as the policy says: not before."""
    for silent_s, allowed in ((30.0, False), (100.0, True)):
        world = cluster()
        busy(world, run_s=500.0)
        world.cut_node("v1")
        world.clock.advance(silent_s)
        with world.doing(ours(world)):
            world.slurm.set_down("v1", "backfill: dead")
        assert (kinds(world) == []) is allowed


def test_the_last_checkpoint_of_a_run_counts_as_work() -> None:
    """While the instance has the run the checkpoint is a spare; after that it is all there is."""
    for crashed in (False, True):
        world = cluster()
        job = busy(world)
        world.provider.suspend("n1", "v1")
        kept = Checkpoint("c1", "v1", job, host="n1", members=("v1",))
        world.provider.keep("n1", kept, None)
        if crashed:
            world.crash_instance("v1")
        world.provider.drop("c1")
        assert kinds(world) == (["destroyed"] if crashed else [])
        assert world.job(job).state is JobState.RUNNING


def test_whoever_suspended_lets_it_go_on() -> None:
    """An admin's suspension is not ours to end; our own is."""
    world = cluster()
    job = busy(world)
    for suspend, undone in ((world.slurm.suspend_job, False), (world.admin_suspend, True)):
        with world.doing(ours(world)):
            suspend(job)
            world.slurm.resume_job(job)
        assert kinds(world) == (["undone"] if undone else [])


def test_a_time_limit_must_not_run_out_on_a_job_that_stands_still() -> None:
    """Slurm counts on while the job is not suspended there."""
    for told in (True, False):
        world = cluster()
        job = busy(world, run_s=100.0)
        limited = world.submit("low", 100.0, time_limit_s=120.0)
        join(world, "v2", "n2")
        world.clock.advance(5.0)
        world.provider.pause("n2", "v2")
        if told:
            world.slurm.suspend_job(limited)
        world.clock.advance(200.0)
        assert kinds(world) == ([] if told else ["timeout"])
        assert world.job(job).state is JobState.COMPLETED


def test_cpus_of_a_suspended_job_are_not_for_another() -> None:
    """We suspended one, and its node is open: Slurm starts another there."""
    for drained in (True, False):
        world = cluster(Manners())
        job = busy(world, run_s=100.0)
        if drained:
            world.slurm.drain("v1", "backfill: evicted")
        with world.doing(ours(world)):
            world.slurm.suspend_job(job)
        world.submit("low", 50.0, cpus=2)
        world.clock.advance(5.0)
        assert kinds(world) == ([] if drained else ["second"])


def test_slurm_suspends_no_component_of_a_heterogeneous_job() -> None:
    """It is refused for good, as measured."""
    world = cluster()
    join(world)
    job = world.submit("low", 50.0, het=True)
    world.clock.advance(2.0)
    with pytest.raises(RefusedError, match="heterogeneous"):
        world.slurm.suspend_job(job)
    assert world.job(job).state is JobState.RUNNING
