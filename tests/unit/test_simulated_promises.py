"""The simulation's watchman: broken promises are noted, kept ones are not."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from tests.unit.simulated_cluster import busy, cluster, counts, join, spec


def kinds(world: SimulatedWorld) -> list[str]:
    return [v.kind for v in world.audit()]


def test_the_way_of_the_design_breaks_no_promise() -> None:
    """Hook pauses, drains, suspends; afterwards thaw, wake, resume, undrain: all counted once."""
    world = cluster()
    low = busy(world)

    def evict(job: Job, nodes: tuple[str, ...]) -> float:
        world.provider.pause("n1", "v1")
        world.slurm.drain("v1", "backfill: evicted")
        world.slurm.suspend_job(low)
        return 0.01

    world.hook(evict)
    high = world.submit("high", 30.0, cpus=2)
    world.clock.advance(35.0)
    assert world.job(high).state is JobState.COMPLETED
    world.provider.thaw("n1", "v1")
    assert world.provider.wake("n1", "v1", world.now_s) == pytest.approx(34.5, abs=1.0)
    world.slurm.resume_job(low)
    world.slurm.undrain("v1")
    world.clock.advance(60.0)
    assert world.job(low).state is JobState.COMPLETED
    assert counts(world, low) == 60
    assert world.gaps() == []
    assert world.audit() == []


def test_a_thawed_stale_copy_runs_and_is_noted() -> None:
    """Slurm requeued the job during the pause: the copy runs 13 s more and the job runs twice."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.requeue_behind(job)
    world.clock.advance(10.0)
    world.provider.thaw("n1", "v1")
    assert kinds(world) == ["stale"]
    assert f"job {job} ran twice" in str(world.violations[0])
    world.clock.advance(60.0)
    assert counts(world, job, restart=0) == 23


def test_a_destroyed_stale_copy_is_no_violation() -> None:
    """The right answer to a requeue behind our back."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.requeue_behind(job, delay_s=0.0)
    world.provider.delete("n1", "v1")
    world.provider.create(spec(generation=2))
    world.clock.advance(100.0)
    assert world.job(job).state is JobState.COMPLETED
    assert world.job(job).restarts == 1
    assert world.audit() == []


def test_thawing_a_copy_of_a_cancelled_job_is_no_second_run() -> None:
    """It ended for good; slurmd clears it away and the node goes on."""
    world = cluster()
    job = busy(world)
    world.provider.pause("n1", "v1")
    world.user_cancel(job)
    world.provider.thaw("n1", "v1")
    world.provider.wake("n1", "v1", world.now_s)
    world.clock.advance(14.0)
    assert not world.job(job).holds_nodes
    assert world.audit() == []


def test_a_node_cut_off_and_given_up_runs_its_job_twice() -> None:
    """DOWN without fencing: the cut-off copy goes on while Slurm starts another."""
    world = cluster(Manners(requeue_delay_s=0.0))
    busy(world, run_s=100.0)
    join(world, "v2", "n2")
    world.cut_node("v1")
    world.slurm.set_down("v1", "backfill: silent")
    world.clock.advance(5.0)
    assert kinds(world) == ["destroyed", "twice"]
    assert "v2" in world.violations[1].text


def test_a_start_beside_a_running_instance_is_noted() -> None:
    """No hook evicted: the room was not free; the time since the allocation is in the note."""
    world = cluster()
    busy(world)
    world.submit("high", 5.0, cpus=2, required_nodes=("n1",))
    world.clock.advance(2.0)
    assert kinds(world) == ["room"]
    assert "instance v1 still had CPU" in world.violations[0].text


def test_memory_that_is_not_there_is_noted() -> None:
    """A paused instance keeps its memory: a job that needs it must not start yet."""
    world = cluster()
    busy(world)
    world.provider.pause("n1", "v1")
    world.submit("high", 5.0, memory_mb=3500, required_nodes=("n1",))
    world.clock.advance(2.0)
    assert kinds(world) == ["room"]
    assert "3072 MB" in world.violations[0].text


def test_giving_an_instance_cpu_beside_a_running_job_is_noted() -> None:
    """Thaw or creation on a host whose CPUs are taken."""
    world = cluster()
    busy(world)
    world.provider.pause("n1", "v1")
    world.submit("high", 50.0, cpus=2, required_nodes=("n1",))
    world.clock.advance(2.0)
    assert kinds(world) == []
    world.provider.thaw("n1", "v1")
    assert kinds(world) == ["room"]


def test_twins_are_noted() -> None:
    """One name or address on two hosts, and one node in two running instances."""
    world = cluster()
    world.provider.create(spec("v1", "n1"))
    world.provider.create(spec("v1", "n2", generation=2))
    assert kinds(world) == ["double-name", "double-name", "double-host"]


def test_work_that_exists_nowhere_is_lost() -> None:
    """Slurm shows a job as running whose instance was destroyed, and nobody will ever notice."""
    world = cluster()
    job = busy(world)
    world.provider.delete("n1", "v1")
    world.clock.advance(1000.0)
    assert kinds(world) == ["destroyed", "lost"]
    world.slurm.requeue_job(job)
    assert kinds(world) == ["destroyed"]


def test_gaps_are_found() -> None:
    """The checker of counters finds what is missing, repeated or short."""
    world = cluster()
    job = world.submit("high", 5.0)
    world.clock.advance(10.0)
    tally = world.tally
    assert world.checks.gaps(tally, 1.0) == []
    assert world.checks.gaps(tally[:-1], 1.0) == [f"job {job} ended at 4 instead of 5"]
    assert world.checks.gaps([*tally[:2], *tally[3:]], 1.0) == [f"job {job}, restart 0: 4 instead of 3"]


def wide(world: SimulatedWorld) -> str:
    """A job computes on two instances, one on each host."""
    for name, host in (("v1", "n1"), ("v2", "n2")):
        join(world, name, host)
    job = world.submit("low", 60.0, num_nodes=2)
    world.clock.advance(10.0)
    assert world.job(job).state is JobState.RUNNING
    return job


def test_half_of_a_copy_stays_stale_on_disk_when_the_other_is_lost() -> None:
    """One host loses its power and Slurm begins the job anew: what is saved elsewhere may not run on."""
    world = cluster()
    job = wide(world)
    world.provider.suspend("n2", "v2")
    world.kill_host("n1")
    world.requeue_behind(job)
    world.provider.restore("n2", "v2")
    world.provider.thaw("n2", "v2")
    assert kinds(world) == ["stale"]


def test_the_rest_of_a_copy_never_computes() -> None:
    """Its other half crashed: it waits for that for ever, and to destroy it is no loss."""
    world = cluster()
    job = wide(world)
    counted = counts(world, job)
    world.crash_instance("v1")
    world.clock.advance(30.0)
    assert counts(world, job) == counted
    assert kinds(world) == ["lost"]  # Slurm has not noticed yet
    world.provider.delete("n2", "v2")
    world.requeue_behind(job)
    assert kinds(world) == []


def test_slurm_ends_a_copy_where_it_can_be_reached_and_only_there() -> None:
    """Put back while one of its two nodes stands still: there it is stale, on the other it is gone."""
    world = cluster()
    job = wide(world)
    world.provider.pause("n2", "v2")
    world.requeue_behind(job)
    one, other = (world.instance(name).machine for name in ("v1", "v2"))
    assert one.runs == []
    assert [run.stale for run in other.runs] == [True]
