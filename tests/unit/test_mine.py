"""What a user is told of their own jobs: since when each stands still, and by whose doing."""

from __future__ import annotations

from collections.abc import Iterator

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import HeldJob, ManagedNode, NodeStop, Phase
from backfill.core.world import World
from backfill.engine.mine import jobs_of

JOB = Job("7", 7, "htc", JobState.SUSPENDED, user="di", nodes=("vn1",), start_s=50.0)


def told(phase: Phase, stop: NodeStop | None, *, ours: bool = True) -> dict[str, object]:
    """What its owner hears of job 7 on a node that is in this phase since 5000."""
    world = World()
    held = (HeldJob("7", 0, ours=ours),)
    node = ManagedNode(
        "vn1", "10.0.0.1/16", "bm1", 1, phase, 5_000.0, 1.0, reason="as it is", held=held, stop=stop
    )
    world.apply(ch.NodeManaged(node))
    world.apply(ch.JobSeen(JOB, 5_001.0))
    found: list[dict[str, object]] = []

    def walk() -> Iterator[None]:
        found.extend((yield from jobs_of(world, "di", ("htc",), ())))

    assert list(walk()) == []
    return found[0]


def test_a_stop_is_as_old_as_it_is_whatever_phase_it_has_reached() -> None:
    """When its jobs ran last, else when it was seen stopped, else when its first rung began."""
    for stop, since_s in (
        (NodeStop(4_000.0, drained_s=200.0, ran_s=150.0), 150.0),
        (NodeStop(4_000.0, drained_s=200.0), 200.0),
        (NodeStop(4_000.0), 4_000.0),
    ):
        for phase in (Phase.PARKED, Phase.RETURNING, Phase.READY):
            assert told(phase, stop)["paused_since_s"] == since_s
    assert told(Phase.READY, None)["paused_since_s"] is None  # it waits for another machine of its job


def test_a_job_that_somebody_else_has_suspended_is_not_said_to_wait_for_its_host() -> None:
    for phase, stop in ((Phase.READY, None), (Phase.PARKED, NodeStop(4_000.0, drained_s=200.0))):
        found = told(phase, stop, ours=False)
        assert found["paused_since_s"] is None
        assert found["why"] == "somebody else has suspended it, who has to resume it: scontrol resume 7"
