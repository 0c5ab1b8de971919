"""Several jobs in one instance, of which Slurm says different things: the intact ones are kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import CancelJob, DeleteInstance, DriverAction, RequeueJob
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import InstanceState
from backfill.core.model.lifecycle import Cause, Condemned, HeldJob, NodeStop, Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import NOW_S, PARKED, POLICIES, convinced, job, step, world_of

# What Slurm may say of a job that was frozen at restart count 0.
WORDS = ("held", "running", "ended", "queued", "elsewhere", "unseen")
INTACT = frozenset({"held", "running"})
STALE = frozenset({"queued", "elsewhere"})


def said(number: int, word: str) -> Job | None:
    """The job as Slurm shows it; None: not at all."""
    match word:
        case "held":
            return job(str(number))
        case "running":
            return job(str(number), JobState.RUNNING)
        case "ended":
            return job(str(number), JobState.COMPLETED)
        case "queued":
            return job(str(number), JobState.PENDING, 1)
        case "elsewhere":
            return replace(job(str(number), JobState.RUNNING, 1), nodes=("vn2",))
        case _:
            return None


def frozen(words: Sequence[str], phase: Phase, state: InstanceState) -> World:
    """A node that holds a job for each word."""
    held = tuple(HeldJob(str(n), 0) for n in range(7, 7 + len(words)))
    stop = NodeStop(NOW_S, drained_s=NOW_S + 1)
    node = replace(PARKED, phase=phase, held=held, stop=stop)
    shown = [said(n, word) for n, word in enumerate(words, 7)]
    return world_of(node, *(j for j in shown if j is not None), places={"bm1": state})


PLACES = [
    (Phase.PARKED, InstanceState.PAUSED),
    (Phase.PARKED, InstanceState.SUSPENDED),
    (Phase.RETURNING, InstanceState.PAUSED),
    (Phase.RETURNING, InstanceState.RUNNING),
    (Phase.EVICTING, InstanceState.PAUSED),
]
GROUPS = [
    *itertools.combinations_with_replacement(WORDS, 2),
    *itertools.combinations_with_replacement(WORDS, 3),
]


@pytest.mark.parametrize("words", GROUPS, ids="-".join)
@pytest.mark.parametrize(("phase", "state"), PLACES, ids=str)
def test_intact_work_is_never_condemned_for_its_neighbours(
    phase: Phase, state: InstanceState, words: tuple[str, ...]
) -> None:
    """Read again and again, for longer than any reason needs; what is of no use goes soon."""
    world = frozen(words, phase, state)
    done = worked(world, 6, 5.0)
    if INTACT.isdisjoint(words):
        # One that is only not shown may be out of sight, which takes longer to believe.
        soon = "unseen" not in words and (STALE & set(words) or phase is not Phase.RETURNING)
        assert (world.managed["vn1"].phase is Phase.REMOVING) == bool(soon)
        return
    done += worked(world, 25, POLICIES.limits.missing_s / 20)
    assert world.managed["vn1"].phase is not Phase.REMOVING
    assert not [a for a in done if isinstance(a, DeleteInstance | RequeueJob | CancelJob)]


def worked(world: World, times: int, every_s: float) -> list[DriverAction]:
    """What is planned while the same is read so often, and nothing of it is carried out."""
    found: list[DriverAction] = []
    for _ in range(times):
        step(world, world.now_s + every_s, "slurm", "bm1", "bm2")
        found += [a for a in plan(world, POLICIES).actions if isinstance(a, DriverAction)]
    return found


def test_a_job_that_is_only_not_shown_has_its_time_beside_a_stale_one() -> None:
    """One of two began anew. The other goes with the copy only after it was missing for long."""
    world = frozen(("queued", "unseen"), *PLACES[0])
    until_s = world.now_s + POLICIES.limits.missing_s
    while world.now_s < until_s:
        assert step(world, world.now_s + 5.0, "slurm", "bm1", "bm2").phase is Phase.PARKED
    assert convinced(world, "slurm", "bm1", "bm2").phase is Phase.REMOVING


@pytest.mark.parametrize(("phase", "state"), PLACES, ids=str)
@pytest.mark.parametrize("word", ["queued", "ended", "unseen"])
def test_a_job_that_came_later_is_waited_for(word: str, phase: Phase, state: InstanceState) -> None:
    """An admin lifted the drain: what is at work there now knows nothing of the old copy."""
    world = frozen((word,), phase, state)
    if phase is Phase.EVICTING:
        world.apply(ch.Claimed("9", ("bm1",), NOW_S + 60, waiting=False))
    world.apply(ch.JobSeen(job("8", JobState.RUNNING), NOW_S + 61))
    done = worked(world, 20, 5.0) + worked(world, 25, POLICIES.limits.missing_s / 20)
    assert world.managed["vn1"].phase is not Phase.REMOVING
    assert not [a for a in done if isinstance(a, DeleteInstance | RequeueJob | CancelJob)]


def test_a_copy_goes_when_the_job_that_came_later_has_ended() -> None:
    """Nothing of use is in it any more."""
    world = frozen(("queued",), *PLACES[0])
    world.apply(ch.JobSeen(job("8", JobState.RUNNING), NOW_S + 61))
    worked(world, 6, 5.0)
    refused = [r for r in plan(world, POLICIES).refusals if r.wanted is Goal.REMOVAL]
    assert [r.code for r in refused] == [Code.MAY_HAVE_JOBS]
    world.apply(ch.JobSeen(job("8", JobState.COMPLETED), world.now_s))
    assert convinced(world, "slurm", "bm1", "bm2").phase is Phase.REMOVING


@pytest.mark.parametrize(("cause", "soon"), [(Cause.LADDER, True), (Cause.STRANGER, False)])
def test_a_stranger_that_is_put_back_decides_nothing_about_its_neighbours(cause: Cause, soon: bool) -> None:
    """Neither one odd reading of its host, nor more: these have to be read as often as ever."""
    world = frozen(("queued",), *PLACES[0])
    world.apply(ch.NodeManaged(replace(world.managed["vn1"], condemned=Condemned(cause, NOW_S))))
    record = step(world, NOW_S + 62, "slurm", "bm1", "bm2")
    assert (record.phase is Phase.REMOVING) == soon
    assert convinced(world, "slurm", "bm1", "bm2").phase is Phase.REMOVING


def test_a_job_that_came_before_an_eviction_is_noted_with_its_stale_neighbour() -> None:
    """Its host is wanted, so it stands still with the old copy from now on, and is held there."""
    world = frozen(("queued",), Phase.EVICTING, InstanceState.PAUSED)
    world.apply(ch.Claimed("9", ("bm1",), NOW_S + 60, waiting=False))
    world.apply(ch.JobSeen(job("8", JobState.RUNNING), NOW_S + 61))
    record = step(world, NOW_S + 62, "slurm", "bm1", "bm2")
    assert [held.id for held in record.held] == ["7", "8"]
