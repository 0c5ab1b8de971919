"""What a change touches: whose findings of earlier plans it makes void."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backfill.core import changes as ch
from backfill.core.cluster import JobState

if TYPE_CHECKING:
    from backfill.core.world import World


@dataclass(slots=True)
class Touched:
    """Managed nodes and hosts that changes have touched since the last plan, and the queue."""

    names: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    queue: bool = False
    everything: bool = True

    def by(self, world: World, change: ch.Change) -> bool:
        """Note what a change touches that the world is about to take; False for nothing."""
        touch = _TOUCHES.get(type(change))
        if touch is None:
            return False
        touch(self, world, change)
        return True


def _node(touched: Touched, world: World, name: str) -> None:
    touched.names.add(name)
    host = world.host_of_node(name)
    if host is not None:
        touched.hosts.add(host)


def _node_seen(touched: Touched, world: World, change: ch.NodeSeen) -> None:
    _node(touched, world, change.node.name)


def _node_gone(touched: Touched, world: World, change: ch.NodeGone) -> None:
    _node(touched, world, change.name)


def _job_seen(touched: Touched, world: World, change: ch.JobSeen) -> None:
    _job_gone(touched, world, ch.JobGone(change.job.id, change.seen_s))
    for name in change.job.nodes:
        _node(touched, world, name)
    touched.queue = touched.queue or change.job.state is JobState.PENDING


def _job_gone(touched: Touched, world: World, change: ch.JobGone) -> None:
    old = world.jobs.get(change.id)
    if old is not None:
        for name in old.nodes:
            _node(touched, world, name)
        touched.queue = touched.queue or old.state is JobState.PENDING


def _host_seen(touched: Touched, world: World, change: ch.HostSeen) -> None:
    if change.host.name in world.hosts:
        touched.hosts.add(change.host.name)
    else:
        touched.everything = True


def _source_seen(touched: Touched, world: World, change: ch.SourceSeen) -> None:
    """News only after a failure, a gap or for the first time: else it is but a later time."""
    old = world.sources.get(change.source)
    if old is None or not old.seen_s or old.problem:
        touched.everything = True


def _source_failed(touched: Touched, world: World, change: ch.SourceFailed) -> None:
    touched.everything = True


def _instance_seen(touched: Touched, world: World, change: ch.InstanceSeen) -> None:
    touched.names.add(change.instance.name)
    touched.hosts.add(change.instance.host)


def _instance(touched: Touched, world: World, change: ch.InstanceStopped | ch.InstanceGone) -> None:
    touched.names.add(change.name)
    touched.hosts.add(change.host)


def _claimed(touched: Touched, world: World, change: ch.Claimed) -> None:
    touched.hosts.update(change.hosts)
    _claim_ended(touched, world, ch.ClaimEnded(change.job_id, change.at_s))


def _claim_ended(touched: Touched, world: World, change: ch.ClaimEnded) -> None:
    old = world.claims.get(change.job_id)
    if old is not None:
        touched.hosts.update(old.hosts)


def _managed(touched: Touched, world: World, change: ch.NodeManaged) -> None:
    node = change.node
    _forgotten(touched, world, ch.NodeForgotten(node.name))
    touched.hosts.update(filter(None, (node.host, node.target)))


def _forgotten(touched: Touched, world: World, change: ch.NodeForgotten) -> None:
    touched.names.add(change.name)
    old = world.managed.get(change.name)
    if old is not None:
        touched.hosts.update(filter(None, (old.host, old.target)))


def _operation(
    touched: Touched, world: World, change: ch.OperationStarted | ch.OperationDone
) -> None:
    touched.names.add(change.key.split(":")[1])


def _record(touched: Touched, world: World, change: ch.Woken | ch.Probed | ch.Kicked) -> None:
    touched.names.add(change.name)


def _hold(touched: Touched, world: World, change: ch.HoldSet) -> None:
    touched.names.add(change.subject)
    touched.hosts.add(change.subject)


# Absent: changes of which no kept finding depends. Of a reading that is only fresher (SourceSeen,
# NodesRead) none does, because a step that waits for one watches the node and is not kept.
_TOUCHES: dict[type, Callable[..., None]] = {
    ch.NodeSeen: _node_seen,
    ch.NodeGone: _node_gone,
    ch.JobSeen: _job_seen,
    ch.JobGone: _job_gone,
    ch.HostSeen: _host_seen,
    ch.SourceSeen: _source_seen,
    ch.SourceFailed: _source_failed,
    ch.InstanceSeen: _instance_seen,
    ch.InstanceStopped: _instance,
    ch.InstanceGone: _instance,
    ch.Claimed: _claimed,
    ch.ClaimEnded: _claim_ended,
    ch.NodeManaged: _managed,
    ch.NodeForgotten: _forgotten,
    ch.OperationStarted: _operation,
    ch.OperationDone: _operation,
    ch.Woken: _record,
    ch.Probed: _record,
    ch.Kicked: _record,
    ch.HoldSet: _hold,
}
