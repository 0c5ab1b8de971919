"""Ready nodes that Slurm does not hear: no job begins there, so that they are no supply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.policies.liveness import Liveness
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.conftest import compare

NOW_S = 1_000_000.0
NAMES = tuple(f"vn{number}" for number in range(1, 9))
FLAVOUR = Flavour(cpus=2, memory_mb=512)
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(NAMES, tuple(f"10.77.1.{number}/16" for number in range(1, 9)), FLAVOUR),
    hosts=("bm1",),
    scale=Scale(idle_s=1e6),
    liveness=Liveness(down_after_s=0.0),
)
SPARE = replace(POLICIES, scale=Scale(warm=3, idle_s=100.0))


def ready(*unheard: str, busy: str = "", silent_s: float = 60.0, jobs: int = 4) -> World:
    """Four are ready; Slurm has not heard some of them for so long. So many jobs of a CPU wait."""
    world = World()
    for at_s in sorted({NOW_S - silent_s, *(NOW_S - 10.0 * number for number in range(20))}):
        world.apply(ch.Tick(at_s))
        world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(20, 20_000)), at_s))
        world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=20), at_s))
        for name in NAMES[:4]:
            tag = Tag("c", name, 1)
            instance = Instance(name, "bm1", InstanceState.RUNNING, tag, Resources(2, 512))
            world.apply(ch.InstanceSeen(instance, at_s))
            silent = name in unheard and at_s >= NOW_S - silent_s
            flags = {"DYNAMIC_NORM", *(("NOT_RESPONDING",) if silent else ())}
            base = NodeBase.MIXED if name == busy else NodeBase.IDLE
            seen = Node(name, base, frozenset(flags), cpus=2, cpus_allocated=int(name == busy))
            world.apply(ch.NodeSeen(replace(seen, memory_mb=400, slurmd_start_s=1.0), at_s))
        if busy:
            at_work = Job("1", 1, "htc", JobState.RUNNING, nodes=(busy,), start_s=NOW_S - 400)
            world.apply(ch.JobSeen(at_work, at_s))
        world.apply(ch.SourceSeen("bm1", at_s))
        world.apply(ch.SourceSeen("slurm", at_s))
    for number in range(jobs):
        waits = Job(str(10 + number), 10 + number, "htc", JobState.PENDING, reason="Resources")
        world.apply(ch.JobSeen(waits, NOW_S))
    for number, name in enumerate(NAMES[:4], 1):
        node = ManagedNode(name, f"10.77.1.{number}/16", "bm1", 1, Phase.READY, NOW_S - 400, NOW_S - 450)
        idle_since_s = None if name == busy else NOW_S - 300
        world.apply(ch.NodeManaged(replace(node, proof=NodeProof(NOW_S - 400), idle_since_s=idle_since_s)))
    return world


def begun(world: World, policies: PolicySet = POLICIES) -> int:
    found = plan(world, policies)
    compare(found, plan(world, policies, from_scratch=True))
    return sum(isinstance(a, SetNode) and a.node.phase is Phase.BOOTING for a in found.actions)


@pytest.mark.parametrize(("jobs", "busy", "count"), [(7, "", 1), (6, "", 0), (6, "vn1", 0), (7, "vn1", 1)])
def test_what_slurm_does_not_hear_is_no_supply(jobs: int, busy: str, count: int) -> None:
    """Three others have six CPUs; the one that is not heard has another two, or one beside its job."""
    assert begun(ready(busy=busy, jobs=jobs)) == 0
    assert begun(ready("vn1", busy=busy, jobs=jobs)) == count


def test_one_that_was_heard_a_moment_ago_still_counts() -> None:
    """One odd reading makes no instance; it is looked at again in time."""
    world = ready("vn1", silent_s=4.0, jobs=7)
    found = plan(world, POLICIES)
    assert not found.actions
    due_s = NOW_S - 4.0 + POLICIES.limits.sure_after_s
    assert found.wake_at_s is not None
    assert found.wake_at_s <= due_s
    world.apply(ch.Tick(due_s))
    world.apply(ch.SourceSeen("slurm", due_s))
    assert begun(world) == 1


def test_many_at_once_are_a_broken_network() -> None:
    """Others would not be heard either."""
    assert begun(ready("vn1", "vn2", jobs=7)) == 0


def test_of_what_is_kept_warm_none_goes_for_its_silence() -> None:
    """It may be heard again in a moment, as its hypervisor can tell; so that none takes its place either."""
    rules = replace(POLICIES, scale=Scale(warm=4, idle_s=100.0))
    found = plan(ready("vn1", jobs=0), rules)
    assert [action for action in found.actions if isinstance(action, SetNode)] == []
    assert [a.node.phase for a in plan(ready(jobs=0), SPARE).actions if isinstance(a, SetNode)] == [
        Phase.DRAINING
    ]
