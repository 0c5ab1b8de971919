"""Where Slurm looks for a node of ours is ours to say: another address is taken back."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import SetAddress
from backfill.core.model.cluster import NOWHERE, Node, NodeBase
from backfill.core.model.fleet import Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.quantities import Resources
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.component.living_daemon import policies

NOW_S = 1_000_000.0


@pytest.mark.parametrize(
    ("address", "wanted"), [("10.77.1.1", []), ("10.77.9.9", ["10.77.1.1"]), (NOWHERE, ["10.77.1.1"])]
)
def test_a_node_at_work_is_looked_for_at_its_own_address(address: str, wanted: list[str]) -> None:
    """A person or a reload may have changed it, and a crash of ours may have left it hidden."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.READY, NOW_S, NOW_S, proof=NodeProof(NOW_S))
    world.apply(ch.NodeManaged(node))
    instance = Instance("vn1", "bm1", InstanceState.RUNNING, Tag("sim", "vn1", 1), Resources(1, 256))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), NOW_S))
    world.apply(ch.InstanceSeen(instance, NOW_S))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=2), NOW_S))
    world.apply(ch.NodeSeen(Node("vn1", NodeBase.IDLE, address=address, cpus=1), NOW_S))
    for source in ("slurm", "bm1"):
        world.apply(ch.SourceSeen(source, NOW_S))
    actions = plan(world, policies()).actions
    assert [a.address for a in actions if isinstance(a, SetAddress)] == wanted
