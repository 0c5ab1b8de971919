"""Nodes of ours that Slurm has lost from its partitions: noticed, put right, and told."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from backfill.engine.partitions import AGAIN_S, PartitionWatch
from tests.component.living_daemon import policies


class Bed:
    """A world with one node of ours, and a Slurm that is asked to work out its partitions."""

    def __init__(self) -> None:
        self.world, self.journal, self.asked = World(), MemoryJournal(), 0
        cycle = Cycle(self.world, policies(), self.journal, lambda action: None, lambda claim: None)
        self.watch = PartitionWatch(cycle, self._rebuild)
        node = ManagedNode("vn1", "10.0.1.1/16", "bm1", 1, Phase.READY, 0.0, 0.0)
        self.world.apply(ch.NodeManaged(node))
        self.sees("htc")

    def _rebuild(self) -> bool:
        self.asked += 1
        return True

    def sees(self, *partitions: str, base: NodeBase = NodeBase.IDLE) -> None:
        self.world.apply(ch.NodeSeen(Node("vn1", base, partitions=partitions), 0.0))

    @property
    def said(self) -> list[str]:
        return [str(r.body["why"]) for r in self.journal.read() if r.kind == "partition"]


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_all_is_well(bed: Bed) -> None:
    """A node in a partition, and one that Slurm does not have in service: nobody is asked."""
    bed.watch.look(0.0)
    bed.sees(base=NodeBase.FUTURE)
    bed.watch.look(1.0)
    assert (bed.asked, bed.said) == (0, [])


def test_lost_and_found(bed: Bed) -> None:
    """Slurm is told at once, once, and that it helped is told as well."""
    bed.sees()
    bed.watch.look(0.0)
    bed.watch.look(0.5)
    assert bed.asked == 1
    bed.sees("htc")
    bed.watch.look(1.0)
    bed.watch.look(2.0)
    assert bed.said == [
        "Slurm has lost it from all partitions; it is told to work them out anew",
        "it is in its partitions again",
    ]


def test_no_partition_has_it(bed: Bed) -> None:
    """Where that does not help, it is tried once a minute, and the admin is told where to look."""
    bed.sees()
    for at_s in (0.0, 1.0, AGAIN_S, AGAIN_S + 1.0):
        bed.watch.look(at_s)
    assert bed.asked == 2
    assert bed.said[-1] == "it is in no partition of Slurm; see Nodes and NodeSet in slurm.conf"
