"""What is planned about an instance whose state cannot be told: nothing, and that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import DeleteInstance
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import HeldJob, ManagedNode, NodeProof, NodeStop, Phase
from backfill.core.model.plan import AnswerClaim, Plan, SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.records import decode, encode
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet, Priorities, Proof, Template
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.planner import occupied, plan
from backfill.core.world import World

NOW_S = 1_000_000.0
WHY = "cannot use /srv/c/vn1/memory.save: Permission denied; let uid 990 into it"
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
    ladder=Ladder((RungRule(Rung.SUSPEND, within_s=60.0), RungRule(Rung.REQUEUE))),
    proof=Proof.MEMORY,
)
AT_WORK = sorted(set(Phase) - {Phase.FAILED, Phase.GIVEN_UP, Phase.BOOTING})
DAY_S = 86_400.0


def unknown(rss_mb: int | None = 0) -> Instance:
    tag, size = Tag("c", "vn1", 1), Resources(1, 256)
    return Instance("vn1", "bm1", InstanceState.UNKNOWN, tag, size, rss_mb, problem=WHY)


def world(phase: Phase | None, instance: Instance, *, base: NodeBase = NodeBase.IDLE) -> World:
    """One host with this instance and a day-old record in this phase, whose job is suspended."""
    made = World()
    made.apply(ch.Tick(NOW_S - DAY_S))
    if phase is not None:
        node = ManagedNode(
            "vn1",
            "10.77.1.1/16",
            "bm1",
            1,
            phase,
            NOW_S - DAY_S,
            NOW_S - DAY_S,
            held=(HeldJob("7", 0),),
            proof=NodeProof(NOW_S - DAY_S),
            stop=NodeStop(NOW_S - DAY_S, kind=Rung.SUSPEND, target="bm1" if phase is Phase.MOVING else None),
        )
        made.apply(ch.NodeManaged(node))
    job = Job("7", 7, "htc", JobState.SUSPENDED, nodes=("vn1",), requeue=True)
    drained = Node("vn1", base, frozenset({"DRAIN"}), "backfill: it stands still")
    for at_s in (NOW_S - 20, NOW_S):
        made.apply(ch.Tick(at_s))
        made.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), at_s))
        made.apply(ch.InstanceSeen(instance, at_s))
        made.apply(ch.SourceSeen("bm1", at_s))
        made.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE), at_s))
        made.apply(ch.NodeSeen(drained, at_s))
        made.apply(ch.JobSeen(job, at_s))
        made.apply(ch.SourceSeen("slurm", at_s))
    return made


def reasons(made: Plan) -> list[str]:
    return [why(refusal) for refusal in made.refusals if refusal.subject == "vn1"]


@pytest.mark.parametrize("phase", AT_WORK)
def test_whatever_its_phase_it_waits(phase: Phase) -> None:
    """No call and no new phase, however long ago the phase began; the refusal says why."""
    made = plan(world(phase, unknown()), POLICIES)
    assert made.actions == ()
    assert any(WHY in reason for reason in reasons(made))


def test_an_orphan_is_neither_taken_over_nor_destroyed() -> None:
    """Also one of an older generation than its name has now."""
    made = plan(world(None, unknown()), POLICIES)
    assert made.actions == ()
    assert any(WHY in reason for reason in reasons(made))
    stale = replace(unknown(), tag=Tag("c", "vn1", 0))
    assert plan(world(Phase.READY, stale), POLICIES).actions == ()


def test_a_boot_that_never_worked_is_cleared_as_ever() -> None:
    """No work can be lost with it: it ends with its deadline, and its name is free again."""
    found = world(Phase.BOOTING, unknown())
    found.apply(ch.NodeManaged(replace(found.managed["vn1"], proof=NodeProof(), held=())))
    found.apply(ch.JobSeen(replace(found.jobs["7"], state=JobState.COMPLETED), NOW_S))
    for at_s in range(int(NOW_S), int(NOW_S + POLICIES.scale.boot_within_s) + 30, 10):
        found.apply(ch.Tick(at_s))
        found.apply(ch.SourceSeen("slurm", at_s))
        found.apply(ch.SourceSeen("bm1", at_s))
    first, *others = plan(found, POLICIES).actions
    assert isinstance(first, SetNode)
    assert first.node.phase is Phase.REMOVING
    assert [type(a) for a in others] == [DeleteInstance]


@pytest.mark.parametrize(
    ("phase", "believed_s"),
    [(Phase.EVICTING, POLICIES.limits.missing_s), (Phase.READY, POLICIES.limits.sure_after_s)],
)
def test_what_is_just_being_saved_may_be_out_of_sight(phase: Phase, believed_s: float) -> None:
    """It looks off before its jobs are noted as held: its memory may lie where nobody can see it yet."""
    off = replace(unknown(), state=InstanceState.OFF, problem="")
    found = world(phase, off)
    stop = found.managed["vn1"].stop if phase is Phase.EVICTING else None
    found.apply(ch.NodeManaged(replace(found.managed["vn1"], held=(), stop=stop)))
    found.apply(ch.JobSeen(replace(found.jobs["7"], state=JobState.RUNNING), NOW_S))
    gone_s = 0.0
    while not gone_s:
        found.apply(ch.Tick(found.now_s + 5.0))
        for source in ("slurm", "bm1"):
            found.apply(ch.SourceSeen(source, found.now_s))
        for action in plan(found, POLICIES).actions:
            if isinstance(action, SetNode):
                found.apply(ch.NodeManaged(action.node))
            gone_s = found.now_s - NOW_S if isinstance(action, DeleteInstance) else gone_s
    assert believed_s <= gone_s <= believed_s + 30.0


@pytest.mark.parametrize(("rss_mb", "free"), [(0, True), (None, False), (200, False)])
def test_its_room_is_free_only_where_nothing_of_it_runs(rss_mb: int | None, free: bool) -> None:
    """What the hypervisor shows without a process takes nothing; of any other nobody knows."""
    found = world(Phase.PARKED, unknown(rss_mb))
    assert (occupied(PlanBuilder(found, POLICIES), "bm1") is None) is free
    found.apply(ch.Claimed("9", ("bm1",), NOW_S, waiting=True))
    answers = [a for a in plan(found, POLICIES).actions if isinstance(a, AnswerClaim)]
    assert [answer.ok for answer in answers] == [True] * free


def test_it_is_in_the_journal_and_older_ones_are_read() -> None:
    """State and problem come back; a record of an older version has no problem."""
    seen = ch.InstanceSeen(unknown(), NOW_S)
    assert decode(encode(seen)) == seen
    old = encode(ch.InstanceSeen(replace(unknown(), state=InstanceState.OFF, problem=""), NOW_S))
    body = old["instance"]
    assert isinstance(body, dict)
    del body["problem"]
    assert decode(old).instance.problem == ""
