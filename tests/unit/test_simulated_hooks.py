"""The simulated hooks: asked for bare metal, answered now, later or never."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.drivers.simulated.slurm.books import Manners
from tests.unit.simulated_cluster import cluster, join, node


def test_a_job_on_bare_metal_starts_after_the_hooks_answer() -> None:
    """While the hook works the job is CONFIGURING, and its run time counts."""
    world = cluster()
    asked: list[tuple[str, tuple[str, ...], float]] = []

    def hook(job: Job, nodes: tuple[str, ...]) -> float:
        asked.append((job.id, nodes, world.now_s))
        return 0.5

    world.hook(hook)
    job = world.submit("high", 10.0, cpus=4, num_nodes=2)
    world.step_to(1001.4)
    assert world.job(job).flags == {"CONFIGURING"}
    world.step_to(1020.0)
    assert asked == [(job, ("n1", "n2"), 1001.0)]
    first = world.tally[0]
    assert first.at_s == pytest.approx(1002.5)


def test_a_hook_may_answer_later() -> None:
    """None now, `release` when the room is proven free."""
    world = cluster()
    world.hook(lambda job, nodes: None)
    job = world.submit("high", 10.0)
    world.step_to(1002.0)
    world.release(job)
    assert world.job(job).flags == frozenset()
    world.release(job)
    world.step_to(1012.0)
    assert world.job(job).state is JobState.COMPLETED


def test_a_hook_that_never_answers_gives_up() -> None:
    """Fail open: the job starts after the hook's timeout."""
    world = cluster(Manners(hook_timeout_s=2.0))
    world.hook(lambda job, nodes: None)
    job = world.submit("high", 10.0)
    world.step_to(1002.9)
    assert "CONFIGURING" in world.job(job).flags
    world.step_to(1003.0)
    assert world.job(job).flags == frozenset()


def test_jobs_on_instances_do_not_ask_the_hook_and_ends_are_told() -> None:
    """The hook is for bare metal; `on_ended` hears of its jobs only."""
    world = cluster()
    asked: list[str] = []
    ended: list[tuple[str, JobState]] = []

    def on_allocated(job: Job, nodes: tuple[str, ...]) -> float:
        asked.append(job.id)
        return 0.0

    def on_ended(job: Job, nodes: tuple[str, ...]) -> None:
        ended.append((job.id, job.state))

    world.hook(on_allocated, on_ended)
    join(world)
    world.submit("low", 5.0)
    high = world.submit("high", 5.0)
    world.clock.advance(30.0)
    assert asked == [high]
    assert ended == [(high, JobState.COMPLETED)]


def test_a_cancel_during_the_hook_frees_the_node_at_once() -> None:
    """scancel while CONFIGURING: nothing was started, nothing completes."""
    world = cluster()
    world.hook(lambda job, nodes: None)
    job = world.submit("high", 10.0, cpus=2)
    world.step_to(1001.5)
    world.slurm.cancel_job(job)
    assert node(world, "n1").cpus_allocated == 0
    world.step_to(1100.0)
    assert world.job(job).state is JobState.CANCELLED
    assert world.tally == []


def test_a_callback_cannot_move_time() -> None:
    """Time has one owner; a hook that waits must answer later instead."""
    world = cluster()

    def impatient(job: Job, nodes: tuple[str, ...]) -> float:
        world.clock.advance(1.0)
        return 0.0

    world.hook(impatient)
    world.submit("high", 10.0)
    with pytest.raises(RuntimeError, match="must not move simulated time"):
        world.clock.advance(10.0)
