"""A boot that failed delays the next one, whichever name that would have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import DeleteInstance
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase, Retry
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import sentence
from backfill.core.policies.environments import Environment, Environments
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.tables import FleetIndex
from backfill.core.world import World

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1", "vn2"), ("10.77.1.1/16", "10.77.1.2/16"), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1", "bm2"),
)


def after_failure(*, proven_s: float | None = None, reachable: bool = True) -> World:
    """vn1 on bm1 has failed and is being removed; a job waits, and bm2 has room."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    node = ManagedNode(
        "vn1",
        "10.77.1.1/16",
        "bm1",
        1,
        Phase.REMOVING,
        NOW_S,
        NOW_S,
        reason="it did not register",
        proof=NodeProof(proven_s),
        fail=True,
    )
    world.apply(ch.NodeManaged(node))
    for name in ("bm1", "bm2"):
        up = reachable or name != "bm1"
        world.apply(ch.HostSeen(Host(name, name, Resources(2, 2000), up, "gone"), NOW_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.IDLE, cpus=2), NOW_S))
        world.apply(ch.SourceSeen(name, NOW_S))
    world.apply(ch.NodeSeen(Node("vn1", NodeBase.FUTURE), NOW_S))
    world.apply(ch.JobSeen(Job("7", 7, "htc", JobState.PENDING, reason="Resources"), NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    return world


def booting(world: World) -> list[str]:
    """The nodes of which a boot is begun now."""
    return [
        a.node.name
        for a in plan(world, POLICIES).actions
        if isinstance(a, SetNode) and a.node.phase is Phase.BOOTING
    ]


def test_no_other_name_jumps_the_back_off() -> None:
    """While the failed boot is cleared away its waiting time is not known yet: nothing begins."""
    assert booting(after_failure()) == []


def test_no_name_is_said_to_be_missing() -> None:
    """What keeps the next boot waiting is told, and not that names are used up."""
    refused = [f"{r.subject}: {sentence(r.reason)}" for r in plan(after_failure(), POLICIES).refusals]
    assert "vn1: it did not register" in refused
    assert not [text for text in refused if "no name" in text]


def test_an_instance_that_worked_and_broke_is_replaced_at_once() -> None:
    """That it was lost says nothing about whether another one would boot."""
    assert booting(after_failure(proven_s=NOW_S - 60)) == ["vn2"]


def test_a_host_that_is_lost_does_not_hold_up_the_others() -> None:
    """What cannot be cleared away for long must not stop all growth."""
    assert booting(after_failure(reachable=False)) == ["vn2"]


def test_what_cannot_be_deleted_holds_up_nobody_for_long() -> None:
    """Its hypervisor refuses that for good: that is told, and after the usual back-off others begin."""
    world = after_failure()
    tag = Tag("c", "vn1", 1)
    world.apply(ch.InstanceSeen(Instance("vn1", "bm1", InstanceState.RUNNING, tag, Resources(1, 256)), NOW_S))
    delete = next(a for a in plan(world, POLICIES).actions if isinstance(a, DeleteInstance))
    world.apply(ch.OperationStarted(delete.key, NOW_S, "bm1"))
    world.apply(ch.OperationDone(delete.key, NOW_S + 1, problem="permission denied", retry=False))
    assert booting(world) == []
    found = plan(world, POLICIES, from_scratch=True)
    (told,) = [r.reason for r in found.refusals if (r.subject, r.wanted) == ("vn1", Goal.REMOVAL)]
    assert sentence(told).endswith("permission denied")
    wait_s = POLICIES.scale.backoff_s(1)
    assert found.wake_at_s is not None
    assert found.wake_at_s <= NOW_S + wait_s
    world.apply(ch.Tick(NOW_S + wait_s))
    assert booting(world) == ["vn2"]


def test_what_has_failed_is_looked_for_once_however_many_kinds_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be as many names as machines, and each kind asks for them again and again."""
    world, asked, in_phase = after_failure(), list[tuple[Phase, ...]](), FleetIndex.in_phase
    kinds = ("cms", "atlas", "lhcb")
    rules = replace(POLICIES, environments=Environments(tuple(Environment(kind, kind) for kind in kinds)))
    world.apply(ch.Tick(NOW_S + 1))
    given_up = replace(world.managed["vn1"], phase=Phase.GIVEN_UP, since_s=NOW_S + 1, retry=Retry(3))
    world.apply(ch.NodeManaged(given_up))
    for number, kind in enumerate(kinds):
        waits = Job(str(number), number, "htc", JobState.PENDING, reason="Resources", features=kind)
        world.apply(ch.JobSeen(waits, NOW_S))

    def counted(index: FleetIndex, *phases: Phase) -> set[str]:
        asked.append(phases)
        return in_phase(index, *phases)

    monkeypatch.setattr(FleetIndex, "in_phase", counted)
    begun = [a for a in plan(world, rules).actions if isinstance(a, SetNode)]
    assert len(begun) == 1
    assert asked.count((Phase.GIVEN_UP,)) == len(begun) + 1  # in each look
