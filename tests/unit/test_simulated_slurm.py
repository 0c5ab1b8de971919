"""The simulated slurmctld shows what was measured with the real one."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import JobState, NodeBase
from backfill.drivers.simulated.slurm.books import Manners
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from backfill.ports.workload import NodeSpec
from tests.unit.simulated_cluster import busy, cluster, counts, node, spec

# --- allocation --------------------------------------------------------------------------------


def test_an_idle_node_takes_a_job_on_the_next_tick() -> None:
    """slurmctld allocates on whole seconds; the job ends after its computing time."""
    world = cluster(start_s=1000.25)
    job = world.submit("high", 10.0, cpus=2)
    assert world.job(job).state is JobState.PENDING
    world.step_to(1005.0)
    assert world.job(job).start_s == 1001.0
    assert world.job(job).nodes == ("n1",)
    assert node(world, "n1").base is NodeBase.ALLOCATED
    world.step_to(1011.0)
    assert world.job(job).state is JobState.COMPLETED
    assert node(world, "n1").base is NodeBase.IDLE
    assert counts(world, job) == 10


def test_tiers_then_priorities_then_age_decide() -> None:
    """Of four waiting jobs for one CPU the order is tier, priority, submission."""
    world = cluster(hosts=1)
    world.add_partition("top", tier=20, feature="metal")
    world.slurm.create_node(NodeSpec("v9", "10.0.0.9", 2, 900, ("metal",)))
    world.admin_drain("n1", "maintenance")
    world.provider.create(spec("v9", "n1"))
    old = world.submit("high", 5.0, cpus=2)
    young = world.submit("high", 5.0, cpus=2)
    urgent = world.submit("high", 5.0, cpus=2, priority=7)
    top = world.submit("top", 5.0, cpus=2)
    world.clock.advance(6.0)
    world.slurm.undrain("v9")
    world.clock.advance(100.0)
    starts = {job: world.job(job).start_s for job in (top, urgent, old, young)}
    assert sorted(starts, key=starts.__getitem__) == [top, urgent, old, young]


def test_a_wide_job_is_not_starved_by_narrow_ones() -> None:
    """Nodes that a waiting two-node job could use are kept for it."""
    world = cluster()
    world.submit("high", 10.0, cpus=2)
    wide = world.submit("high", 10.0, cpus=4, num_nodes=2, priority=1)
    narrow = world.submit("high", 10.0, cpus=2)
    world.clock.advance(1.0)
    assert world.job(narrow).state is JobState.PENDING
    world.clock.advance(100.0)
    assert world.job(wide).start_s < world.job(narrow).start_s
    assert len(world.job(wide).nodes) == 2


def test_jobs_share_a_node_up_to_its_cpus_and_memory() -> None:
    """Two one-CPU jobs fit; a third that wants too much memory does not."""
    world = cluster(hosts=1)
    first = world.submit("high", 50.0, memory_mb=1000)
    world.clock.advance(2.0)
    assert node(world, "n1").base is NodeBase.MIXED
    large = world.submit("high", 50.0, memory_mb=3500)
    world.clock.advance(2.0)
    assert world.job(first).state is JobState.RUNNING
    assert world.job(large).state is JobState.PENDING
    small = world.submit("high", 50.0, memory_mb=3000)
    world.clock.advance(2.0)
    assert world.job(small).state is JobState.RUNNING
    assert node(world, "n1").memory_allocated_mb == 4000


@pytest.mark.parametrize(("counted", "state"), [(True, JobState.PENDING), (False, JobState.RUNNING)])
def test_who_asks_for_no_memory_wants_all_of_it(counted: bool, state: JobState) -> None:
    """As Slurm has it: such a job waits until nobody on the node has any, if memory is counted."""
    world = cluster(hosts=1, manners=Manners(counts_memory=counted))
    first = world.submit("high", 10.0, memory_mb=1000)
    second = world.submit("high", 50.0)
    world.clock.advance(3.0)
    assert world.job(first).state is JobState.RUNNING
    assert world.job(second).state is state
    assert node(world, "n1").memory_allocated_mb == (1000 if counted else 0)
    world.clock.advance(10.0)
    assert world.job(second).state is JobState.RUNNING


def test_wishes_for_features_and_nodes_are_kept() -> None:
    """A job goes only where its features and its node list allow."""
    world = cluster()
    pinned = world.submit("high", 5.0, required_nodes=("n2",))
    hopeless = world.submit("high", 5.0, features="metal&gpu")
    world.clock.advance(2.0)
    assert world.job(pinned).nodes == ("n2",)
    assert world.job(hopeless).state is JobState.PENDING


def test_a_time_limit_ends_a_job_and_stops_while_suspended() -> None:
    """Suspended time does not count; running time does."""
    world = cluster()
    job = world.submit("high", 100.0, time_limit_s=20.0)
    world.clock.advance(11.0)
    world.slurm.suspend_job(job)
    world.clock.advance(500.0)
    assert world.job(job).state is JobState.SUSPENDED
    world.slurm.resume_job(job)
    world.clock.advance(9.0)
    assert world.job(job).state is JobState.RUNNING
    world.clock.advance(2.0)
    assert world.job(job).state is JobState.TIMEOUT
    assert counts(world, job) == 20


def test_ended_jobs_are_forgotten_after_a_while() -> None:
    """MinJobAge: squeue and scontrol show an ended job for 300 s."""
    world = cluster()
    job = world.submit("high", 5.0)
    world.clock.advance(100.0)
    assert world.slurm.observe().jobs[job].state is JobState.COMPLETED
    world.clock.advance(300.0)
    assert job not in world.slurm.observe().jobs
    assert world.slurm.read_jobs([job]) == {}
    world.slurm.cancel_job(job)


# --- suspend -----------------------------------------------------------------------------------


def test_a_node_with_only_a_suspended_job_shows_idle_and_takes_another() -> None:
    """The trap of facts: drain before the suspension, or a new job lands there."""
    world = cluster()
    job = busy(world)
    world.slurm.suspend_job(job)
    assert node(world, "v1").base is NodeBase.IDLE
    assert node(world, "v1").cpus_allocated == 0
    other = world.submit("low", 5.0, cpus=2)
    world.clock.advance(2.0)
    assert world.job(other).nodes == ("v1",)


def test_a_job_sent_to_a_paused_node_comes_back_to_the_queue() -> None:
    """Its launch fails and it is requeued with a delay of two minutes."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.slurm.suspend_job(job)
    other = world.submit("low", 5.0, cpus=2)
    world.clock.advance(20.0)
    assert world.job(other).state is JobState.PENDING
    assert world.job(other).restarts == 1
    assert world.job(other).eligible_s > world.now_s + 100.0


def test_suspend_stops_the_computing_and_resume_continues_it() -> None:
    """Nothing is counted in between, and nothing is lost."""
    world = cluster()
    job = busy(world)
    world.slurm.suspend_job(job)
    world.slurm.suspend_job(job)
    world.clock.advance(100.0)
    assert counts(world, job) == 10
    world.slurm.resume_job(job)
    world.slurm.resume_job(job)
    world.clock.advance(60.0)
    assert world.job(job).state is JobState.COMPLETED
    assert world.gaps() == []
    assert world.audit() == []


def test_suspend_and_resume_need_a_started_job() -> None:
    """A pending job is BusyError, an ended one NotFoundError."""
    world = cluster()
    job = world.submit("high", 5.0)
    for call in (world.slurm.suspend_job, world.slurm.resume_job):
        with pytest.raises(BusyError):
            call(job)
    world.clock.advance(30.0)
    for call in (world.slurm.suspend_job, world.slurm.resume_job):
        with pytest.raises(NotFoundError):
            call(job)


# --- requeue, cancel ---------------------------------------------------------------------------


def test_requeue_starts_the_job_anew_at_once() -> None:
    """Restarts goes up, the counter begins at one, and there is no two-minute wait."""
    world = cluster()
    job = busy(world)
    world.slurm.requeue_job(job)
    assert world.job(job).state is JobState.PENDING
    world.clock.advance(5.0)
    assert world.job(job).state is JobState.RUNNING
    assert world.job(job).restarts == 1
    world.clock.advance(100.0)
    assert counts(world, job, restart=0) == 10
    assert counts(world, job, restart=1) == 60
    assert [v.kind for v in world.audit()] == ["destroyed"]  # nobody had a reason for it


def test_requeue_lifts_the_delay_of_an_earlier_one() -> None:
    """A pending job with BeginTime in the future becomes eligible now."""
    world = cluster()
    job = busy(world)
    world.requeue_behind(job, delay_s=500.0)
    world.clock.advance(10.0)
    assert world.job(job).state is JobState.PENDING
    world.slurm.requeue_job(job)
    world.clock.advance(2.0)
    assert world.job(job).state is JobState.RUNNING
    assert world.job(job).restarts == 1


def test_a_no_requeue_job_and_an_ended_job_are_refused() -> None:
    """Neither may be started a second time."""
    world = cluster()
    fixed = world.submit("high", 50.0, requeue=False)
    short = world.submit("high", 1.0)
    world.clock.advance(5.0)
    with pytest.raises(RefusedError):
        world.slurm.requeue_job(fixed)
    with pytest.raises(NotFoundError):
        world.slurm.requeue_job(short)


def test_a_job_cancelled_on_a_paused_node_hangs_in_completing() -> None:
    """Its node is held until it answers, is set DOWN, or its slurmd starts afresh."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.user_cancel(job)
    world.clock.advance(100.0)
    assert world.job(job).flags == {"COMPLETING"}
    assert world.job(job).holds_nodes
    with pytest.raises(BusyError):
        world.slurm.delete_node("v1")
    world.slurm.set_down("v1", "backfill: gone")
    assert not world.job(job).holds_nodes
    world.slurm.delete_node("v1")
    assert world.slurm.read_nodes(["v1"]) == {}
