"""Pictures of the outside: what is news, and what is not believed."""

from __future__ import annotations

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.engine.observe import cluster_changes
from backfill.ports.workload import ClusterObservation

NODE = Node("bm1", NodeBase.IDLE, cpus=2)
JOB = Job("7", 7, "htc", JobState.PENDING)


def known() -> World:
    world = World()
    first = ClusterObservation(100.0, {"bm1": NODE}, {"7": JOB})
    world.apply(ch.Tick(100.0))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), 100.0))
    for change in cluster_changes(world, first):
        world.apply(change)
    return world


def test_what_is_as_it_was_is_no_news() -> None:
    """But that it was read is."""
    again = ClusterObservation(102.0, {"bm1": NODE}, {"7": JOB})
    assert cluster_changes(known(), again) == [ch.SourceSeen("slurm", 102.0)]


def test_a_slurm_without_any_node_is_not_believed() -> None:
    """All instances would be removed at once as nodes that somebody has deleted."""
    (change,) = cluster_changes(known(), ClusterObservation(102.0, {}, {}))
    assert isinstance(change, ch.SourceFailed)
    assert "no node at all" in change.problem


def test_where_all_nodes_are_ours_the_last_one_may_be_deleted() -> None:
    """No host is a node of this Slurm: then it may well have none."""
    world = World()
    world.apply(ch.NodeSeen(NODE, 100.0))
    found = cluster_changes(world, ClusterObservation(102.0, {}, {}))
    assert found == [ch.NodeGone("bm1", 102.0), ch.SourceSeen("slurm", 102.0)]


def test_the_last_job_may_go() -> None:
    """A queue may be empty."""
    found = cluster_changes(known(), ClusterObservation(102.0, {"bm1": NODE}, {}))
    assert found == [ch.JobGone("7", 102.0), ch.SourceSeen("slurm", 102.0)]
