"""Why an instance is begun although CPUs are free, in the words that people read."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.policies.demand import Demand
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World

NOW_S = 1_000_000.0
NAMES, ADDRESSES = ("vn1", "vn2", "vn3"), ("10.77.1.1/16", "10.77.1.2/16", "10.77.1.3/16")
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(NAMES, ADDRESSES, Flavour(cpus=4, memory_mb=8000)),
    demand=Demand(max_nodes=2),
    hosts=("bm1",),
)


def at_work(*waiting: Job) -> World:
    """A job on vn1 leaves three CPUs and hardly any memory; the others wait, and bm1 has room."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    world.apply(ch.NodeManaged(ManagedNode("vn1", ADDRESSES[0], "bm1", 1, Phase.READY, NOW_S, NOW_S)))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(64, 256_000)), NOW_S))
    given = Instance("vn1", "bm1", InstanceState.RUNNING, Tag("c", "vn1", 1), Resources(4, 8000))
    world.apply(ch.InstanceSeen(given, NOW_S))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=64), NOW_S))
    busy = Node("vn1", NodeBase.MIXED, cpus=4, cpus_allocated=1, memory_mb=8000, memory_allocated_mb=7900)
    world.apply(ch.NodeSeen(busy, NOW_S))
    world.apply(ch.JobSeen(Job("1", 1, "htc", JobState.RUNNING, nodes=("vn1",)), NOW_S))
    for job in waiting:
        world.apply(ch.JobSeen(job, NOW_S))
    for source in ("bm1", "slurm"):
        world.apply(ch.SourceSeen(source, NOW_S))
    return world


def wants(number: int, memory_mb: int = 100, nodes: int = 1, *, exclusive: bool = False) -> Job:
    return Job(
        str(number),
        number,
        "htc",
        JobState.PENDING,
        reason="Resources",
        cpus=nodes,
        num_nodes=nodes,
        memory_mb=memory_mb,
        exclusive=exclusive,
    )


LARGE, ALONE = wants(7, 4000), wants(8, exclusive=True)


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        ((LARGE,), "in one piece: no instance has enough left"),
        ((ALONE,), "on empty instances: none of these has enough"),
        ((wants(9, nodes=2, exclusive=True),), "on empty instances: too few of these have enough"),
        ((LARGE, ALONE), "some in one piece, some on empty instances: none has enough"),
    ],
)
def test_it_is_said_why_free_ones_are_of_no_use(waiting: tuple[Job, ...], said: str) -> None:
    """One that wants its nodes for itself finds nothing where others are, however much these leave."""
    begun = [step for step in plan(at_work(*waiting), POLICIES).actions if isinstance(step, SetNode)]
    assert begun
    assert begun[0].reason.endswith(f" more CPUs, {said} (3 CPUs are free in all)")
