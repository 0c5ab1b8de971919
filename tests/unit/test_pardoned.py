"""Jobs that were to start over, and need not: Slurm said no, or their host is free again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import RequeueJob
from backfill.core.model.cluster import Job, JobState, NodeBase
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Cause, Condemned, NodeStop, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.refusals import Code, Goal
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import NOW_S, PARKED, POLICIES, calls, job, records, world_of

ENDED = replace(POLICIES, ladder=Ladder((RungRule(Rung.PAUSE, for_s=1.0), RungRule(Rung.REQUEUE))))
DOOMED = replace(PARKED, condemned=Condemned(Cause.LADDER, NOW_S), stop=NodeStop(NOW_S, rung=1))
HIGH = Job("9", 9, "batch", JobState.RUNNING, nodes=("bm1",))


def given(*jobs: Job, taken: bool = False, unconfirmed: str | None = None) -> World:
    """Its jobs are about to be given back to the queue."""
    return world_of(replace(DOOMED, unconfirmed=unconfirmed), *jobs, *((HIGH,) if taken else ()))


def requeued(world: World, policies: PolicySet = ENDED) -> set[str]:
    return {a.job_id for a in calls(plan(world, policies)) if isinstance(a, RequeueJob)}


def test_its_host_is_taken_and_they_start_anew() -> None:
    """What was decided is carried out."""
    assert requeued(given(job("7"), job("8"), taken=True)) == {"7", "8"}


def test_its_host_is_free_again_and_they_go_on() -> None:
    """Nothing was done yet, so nothing is lost."""
    world = given(job("7"), job("8"))
    found = plan(world, ENDED)
    assert [r.condemned for r in records(found)][:1] == [None]
    assert not requeued(world)
    for record in records(found):
        world.apply(ch.NodeManaged(record))
    assert world.managed["vn1"].phase is Phase.RETURNING


@pytest.mark.parametrize("taken", [True, False])
def test_slurm_said_no_and_that_is_what_its_reason_says(taken: bool) -> None:
    """Asked directly before, it did not show the run that was meant."""
    world = given(job("7"), job("8"), taken=taken, unconfirmed="Slurm does not show that run of job 7")
    (told, *_) = [a for a in plan(world, ENDED).actions if isinstance(a, SetNode)]
    assert (told.node.condemned, told.node.unconfirmed) == (None, None)
    assert told.reason == "not given back to the queue: Slurm does not show that run of job 7"


def test_one_that_shares_memory_with_a_stale_copy_is_not_pardoned() -> None:
    """Its host is free, and it can never go on there: to start over is all that is left."""
    world = given(job("7"), job("8", JobState.PENDING, 1))
    (record,) = records(plan(world, ENDED))
    assert record.condemned == DOOMED.condemned
    world.apply(ch.NodeManaged(record))
    assert requeued(world) == {"7"}


def test_a_host_that_is_free_but_not_for_it_pardons_nobody() -> None:
    """It was closed by hand."""
    world = given(job("7"), job("8"))
    world.apply(ch.HoldSet("vn1", NOW_S + 60, True, "a leak"))
    assert requeued(world) == {"7", "8"}


def test_a_host_that_is_free_but_not_for_long_pardons_them_too() -> None:
    """They wait until it has settled: nothing starts over meanwhile."""
    world = given(job("7"), job("8"))
    settling = replace(ENDED, comeback=Comeback(settle_s=600.0))
    found = plan(world, settling)
    assert [(r.phase, r.condemned) for r in records(found)] == [(Phase.PARKED, None)]
    world.apply(ch.NodeManaged(records(found)[0]))
    assert not requeued(world, settling)


def test_a_full_budget_pardons_nobody() -> None:
    """Its host is free, and so many instances may not be at work: nobody knows when it could be."""
    assert requeued(given(job("7"), job("8")), replace(ENDED, budgets=Budgets((Budget("0"),)))) == {"7", "8"}


@pytest.mark.parametrize(("reachable", "code"), [(True, None), (False, Code.HOST_UNREACHABLE)])
def test_nobody_is_told_to_open_a_host_whose_jobs_leave_it_room(reachable: bool, code: Code | None) -> None:
    """It goes on beside them once its host can be asked: nothing starts over, and its host is in use."""
    beside = replace(ENDED, victims=Victims(extent=Extent.NEEDED), comeback=Comeback(settle_s=600.0))
    small = replace(HIGH, cpus=1, memory_mb=100)
    world = world_of(replace(DOOMED, condemned=None), job("7"), job("8"), small)
    world.apply(ch.NodeSeen(replace(world.nodes["bm1"], base=NodeBase.MIXED, cpus_allocated=1), NOW_S + 60))
    world.apply(ch.HostSeen(replace(world.hosts["bm1"], reachable=reachable), NOW_S + 60))
    found = plan(world, beside)
    assert [r.code for r in found.refusals if r.wanted is Goal.REQUEUE] == ([] if code is None else [code])
    assert not requeued(world, beside)


@pytest.mark.parametrize(
    ("base", "after_s", "lost"),
    [(NodeBase.MIXED, 9.9, False), (NodeBase.MIXED, 10.0, True), (NodeBase.DOWN, 10.0, False)],
)
def test_a_drain_beside_jobs_counts_once_it_is_sure(base: NodeBase, after_s: float, lost: bool) -> None:
    """A short one may be a mistake, and a host that is DOWN may come back by itself."""
    beside = replace(ENDED, victims=Victims(extent=Extent.NEEDED), comeback=Comeback(settle_s=600.0))
    world = world_of(DOOMED, job("7"), job("8"), replace(HIGH, cpus=1, memory_mb=100))
    drained = replace(
        world.nodes["bm1"], base=base, cpus_allocated=1, flags=frozenset({"DRAIN"}), reason="bad DIMM"
    )
    world.apply(ch.NodeSeen(drained, world.now_s))
    world.apply(ch.Tick(world.now_s + after_s))
    for record in records(plan(world, beside)):
        world.apply(ch.NodeManaged(record))
    assert bool(requeued(world, beside)) is lost


def test_what_is_under_way_is_waited_for() -> None:
    """A call about it has begun: what comes of that decides."""
    world = given(job("7"), job("8"), unconfirmed="Slurm does not show that run of job 7")
    world.apply(ch.OperationStarted("SuspendInstance:vn1:1", NOW_S + 60, "bm1"))
    assert records(plan(world, ENDED)) == []


def test_a_planned_start_that_moves_does_not_unsettle_a_host() -> None:
    """Slurm plans anew every 30 s: the host has been free all that time, and work comes back."""
    world, settling = world_of(PARKED, job("7"), job("8")), replace(ENDED, comeback=Comeback(settle_s=60.0))
    node = world.nodes["bm1"]
    for after_s in range(60, 180, 30):
        moved = replace(node, planned_s=NOW_S + 36_000.0 + after_s)
        world.apply(ch.NodeSeen(moved, NOW_S + after_s))
    world.apply(ch.Tick(NOW_S + 180))
    for source in ("slurm", "bm1"):
        world.apply(ch.SourceSeen(source, NOW_S + 180))
    assert [record.phase for record in records(plan(world, settling))] == [Phase.RETURNING]
    taken = replace(node, base=NodeBase.ALLOCATED)
    for seen in (taken, node):  # somebody had it meanwhile
        world.apply(ch.NodeSeen(seen, NOW_S + 180))
    assert Phase.RETURNING not in {record.phase for record in records(plan(world, settling))}
