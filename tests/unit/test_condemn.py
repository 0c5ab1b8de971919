"""The door through which work is destroyed: who may use it, and what survives in the journal."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import CancelJob, DeleteInstance, RequeueJob
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Cause, Condemned, HeldJob, NodeStop, Phase, Suspicion
from backfill.core.model.plan import Plan, SetNode
from backfill.core.model.records import encode, remembered
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import why
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import NOW_S, PARKED, POLICIES, destroyed, job, world_of

CORE = Path(__file__).parents[2] / "backfill" / "core"


# Calls, and not the classes themselves.
_DOORS = r"\.remove\(node|(?<!class )(?<!def )(?:DeleteInstance|RequeueJob|CancelJob|requeue_of|cancel_of)\("


def test_nobody_lets_a_node_go_past_the_door() -> None:
    """Neither by its phase nor by the calls that destroy: these have one place each."""
    users: dict[str, set[str]] = {}
    for path in CORE.rglob("*.py"):
        for call in re.findall(_DOORS, path.read_text()):
            users.setdefault(call, set()).add(path.relative_to(CORE).as_posix())
    assert users.pop(".remove(node") == {"reconcile/condemn.py"}
    # A stale generation, the end of the ladder or of a job's patience, and the removal itself.
    doors = {f"reconcile/{name}.py" for name in ("condemn", "orphans", "parked", "ready", "removing")}
    assert set.union(*users.values()) <= doors
    assert users["CancelJob("] == {"reconcile/condemn.py"}
    assert users["cancel_of("] == {"reconcile/condemn.py", "reconcile/removing.py"}
    assert users["requeue_of("] == {"reconcile/condemn.py", "reconcile/removing.py"}


def test_the_phase_begins_only_there() -> None:
    """A step that forgets the door is a programmer's error, whatever the node holds."""
    builder = PlanBuilder(world_of(PARKED, job("7")), POLICIES)
    with pytest.raises(AssertionError, match=r"vn1 is removed past core/reconcile/condemn\.py"):
        builder.become(PARKED, Phase.REMOVING, "too late")


def test_what_was_destroyed_lately_is_counted_over_a_restart() -> None:
    """Also of nodes that were forgotten since; what is older than an hour is not."""
    told: list[ch.Change] = []
    for number, at_s in enumerate((NOW_S - 4000, NOW_S - 3000, NOW_S - 30)):
        node = replace(
            PARKED, name=f"vn{number}", phase=Phase.REMOVING, condemned=Condemned(Cause.STALE, at_s)
        )
        told += [ch.NodeManaged(node), ch.NodeManaged(replace(node, reason="again"))]
        told.append(ch.NodeForgotten(node.name, node.generation))
    world = World()
    world.apply(ch.Tick(NOW_S))
    for change in remembered((encode(change) for change in told), NOW_S):
        world.apply(change)
    assert world.destroyed_lately(3600.0) == 2
    assert world.destroyed_lately(60.0) == 1


def test_a_suspicion_survives_in_the_journal_and_old_journals_have_none() -> None:
    """Records of before are read with the defaults of what they lack."""
    suspected = replace(PARKED, suspicion=Suspicion(Cause.MISSING, NOW_S, NOW_S + 2, 1))
    (known,) = remembered([encode(ch.NodeManaged(suspected))])
    assert known == ch.NodeManaged(suspected)
    body = encode(ch.NodeManaged(PARKED))
    node = body["node"]
    assert isinstance(node, dict)
    for name in ("suspicion", "condemned", "check", "order", "retry"):
        del node[name]
    (old,) = remembered([body])
    assert old == ch.NodeManaged(PARKED)


def test_a_node_whose_end_was_not_confirmed_goes_back() -> None:
    """Nothing is destroyed, and the reason says who said otherwise."""
    doomed = replace(PARKED, phase=Phase.REMOVING, condemned=Condemned(Cause.ENDED, NOW_S), fail=True)
    world = world_of(doomed, job("7"), job("8"))
    (delete,) = plan(world, POLICIES).actions
    assert isinstance(delete, DeleteInstance)
    assert delete.held == (HeldJob("7", 0), HeldJob("8", 0))
    world.apply(ch.Unconfirmed("vn1", 1, NOW_S + 61, "Slurm shows job 7 on it"))
    step, *_ = plan(world, POLICIES).actions
    assert isinstance(step, SetNode)
    assert step.node.phase is Phase.EVICTING
    assert step.node.reason == "not destroyed: Slurm shows job 7 on it"
    assert (step.node.condemned, step.node.unconfirmed, step.node.fail) == (None, None, False)


def test_a_node_that_was_spared_still_knows_who_wanted_its_host() -> None:
    """Its story tells why it was spared; its reason, which owners read, is what it was before."""
    condemned = Condemned(Cause.ENDED, NOW_S, before="host bm1 was given to job 4")
    doomed = replace(PARKED, phase=Phase.REMOVING, condemned=condemned, reason="its job has ended")
    world = world_of(doomed, job("7"))
    world.apply(ch.Unconfirmed("vn1", 1, NOW_S + 61, "Slurm shows job 7 on it"))
    step, *_ = plan(world, POLICIES).actions
    assert isinstance(step, SetNode)
    assert step.node.reason == "host bm1 was given to job 4"
    assert step.reason == "not destroyed: Slurm shows job 7 on it"


def test_no_job_is_believed_once_slurm_was_read_for_long_enough() -> None:
    """Soon after the start, of one that stands still: it stood still for a job."""
    drained = NodeStop(NOW_S, drained_s=NOW_S)
    world = world_of(replace(PARKED, phase=Phase.EVICTING, held=(), stop=drained))
    world.apply(ch.NodeSeen(Node("vn1", NodeBase.IDLE, frozenset({"DRAIN"}), "backfill: a test"), NOW_S + 61))
    found = plan(world, POLICIES)
    assert not _begins_to_go(found)
    assert Code.READ_LATELY in {r.code for r in found.refusals}
    world.apply(ch.Tick(NOW_S + 70))
    world.apply(ch.SourceSeen("slurm", NOW_S + 70))
    assert _begins_to_go(plan(world, POLICIES))


def _last_rung(found: bool, **places: InstanceState) -> World:
    """A node on its last rung, with a job that stands still, on a host that another one took."""
    rung = NodeStop(NOW_S, rung=2, kind=Rung.REQUEUE, first=2, drained_s=NOW_S)
    node = replace(PARKED, phase=Phase.EVICTING, stop=rung, found=found, held=(HeldJob("7", 0),))
    taker = Job("9", 9, "batch", JobState.RUNNING, nodes=("bm1",))
    return world_of(node, job("7"), taker, places=places)


def _begins_to_go(found: Plan) -> bool:
    return any(a.node.phase is Phase.REMOVING for a in found.actions if isinstance(a, SetNode))


def test_the_last_rung_ends_nothing_that_is_on_its_way_to_another_host() -> None:
    """A call of an earlier daemon brings it there, of which these books may know nothing."""
    assert _begins_to_go(plan(_last_rung(False, bm1=InstanceState.PAUSED), POLICIES))
    moving = plan(_last_rung(False, bm1=InstanceState.PAUSED, bm2=InstanceState.MIGRATING), POLICIES)
    assert not _begins_to_go(moving)
    (said,) = [why(r) for r in moving.refusals if r.subject == "vn1"]
    assert "vn1 is on its way to bm2" in said


def test_one_that_was_taken_over_is_given_up_only_when_all_hosts_were_read_for_longer() -> None:
    """Where it is is known by their readings alone; one that cannot be read keeps nobody waiting."""
    world = _last_rung(True, bm1=InstanceState.PAUSED)
    lately = replace(world.managed["vn1"], created_s=NOW_S + 55)
    world.apply(ch.NodeManaged(lately))
    found = plan(world, POLICIES)
    assert not _begins_to_go(found)
    assert Code.TAKEN_OVER_LATELY in {r.code for r in found.refusals}
    world.apply(ch.Tick(NOW_S + 70))
    for source in ("slurm", "bm1"):
        world.apply(ch.SourceSeen(source, NOW_S + 70))
    assert not _begins_to_go(plan(world, POLICIES))
    world.apply(ch.SourceSeen("bm2", NOW_S + 70))
    assert _begins_to_go(plan(world, POLICIES))


def test_the_jobs_of_one_that_was_taken_over_go_back_once_no_host_shows_it() -> None:
    """Its copy may have arrived at a host that the books do not name, just before it was destroyed here."""
    gone = replace(
        PARKED, phase=Phase.REMOVING, since_s=NOW_S + 60, found=True, condemned=Condemned(Cause.LADDER, NOW_S)
    )
    world = world_of(gone, job("7"), job("8"), places={})
    destroyed(world)
    world.apply(ch.Tick(NOW_S + 62))
    for source in ("slurm", "bm1"):
        world.apply(ch.SourceSeen(source, NOW_S + 62))
    unread = plan(world, POLICIES)
    assert not [a for a in unread.actions if isinstance(a, RequeueJob)]
    assert any("bm2 has not been read since" in why(r) for r in unread.refusals)
    world.apply(ch.SourceSeen("bm2", NOW_S + 62))
    assert {a.job_id for a in plan(world, POLICIES).actions if isinstance(a, RequeueJob)} == {"7", "8"}


@pytest.mark.parametrize("cause", [None, *Cause])
def test_a_job_that_may_not_start_anew_is_cancelled_only_when_its_copy_is_lost(cause: Cause | None) -> None:
    """Not because a ladder or an owner of room let its node go; after a mistake only by repeated readings."""
    gone = replace(PARKED, phase=Phase.REMOVING, condemned=None if cause is None else Condemned(cause, NOW_S))
    jobs = [replace(job(name), requeue=False) for name in ("7", "8")]
    world = world_of(gone, *jobs, places={})
    destroyed(world)
    found = plan(world, POLICIES)
    cancelled = [a for a in found.actions if isinstance(a, CancelJob)]
    assert not [a for a in found.actions if isinstance(a, RequeueJob)]
    if cause is None:
        assert cancelled == []
        assert any(r.code is Code.READ_MORE_OFTEN and r.subject == "vn1" for r in found.refusals)
    elif cause in (Cause.LADDER, Cause.UNSTOPPED, Cause.RECLAIMED, Cause.STRANGER):
        assert cancelled == []
        assert any("submitted as --no-requeue" in why(r) for r in found.refusals)
    else:
        assert {(a.job_id, a.restarts, a.host) for a in cancelled} == {("7", 0, "bm1"), ("8", 0, "bm1")}


def test_an_old_copy_stands_still_at_once_and_is_destroyed_when_it_was_seen_for_long() -> None:
    """It runs: to stop it loses nothing, to destroy it takes more than one look."""
    newer = replace(PARKED, generation=2, host="bm2")
    places = {"bm1": InstanceState.RUNNING}
    world = world_of(newer, job("7"), job("8"), places=places, generation=1)
    found = plan(world, POLICIES)
    names = [type(a).__name__ for a in found.actions if not isinstance(a, SetNode)]
    assert "PauseInstance" in names
    assert "DeleteInstance" not in names
    later_s = NOW_S + 60 + POLICIES.limits.sure_after_s
    world.apply(ch.Tick(later_s))
    for source in ("slurm", "bm1", "bm2"):
        world.apply(ch.SourceSeen(source, later_s))
    deletes = [a for a in plan(world, POLICIES).actions if isinstance(a, DeleteInstance)]
    assert [(a.host, a.generation, a.cause) for a in deletes] == [("bm1", 1, Cause.OLD)]
