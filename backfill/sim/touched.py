"""What a change touches: whose findings of earlier plans it makes void."""

from __future__ import annotations

from collections.abc import Callable

from backfill.core import changes as ch
from backfill.core.cluster import JobState
from backfill.core.lifecycle import ManagedNode
from backfill.core.world import World


class Touched:
    """Managed nodes, hosts and claims that changes have touched since the last plan.

    `hosts` may have got or lost a job, or look different; of `rooms` only the room may differ.
    """

    __slots__ = ("claims", "everything", "hosts", "names", "queue", "rooms", "takers")

    def __init__(self, takers: dict[str, tuple[str, ...]]) -> None:
        self.names: set[str] = set()
        self.hosts: set[str] = set()
        self.rooms: set[str] = set()
        self.claims: set[str] = set()
        self.queue = False
        self.everything = False
        self.takers = takers  # by host; void at once where the host is touched

    def by(self, world: World, change: ch.Change) -> None:
        """Note what a change touches that the world is about to take."""
        touch = _TOUCHES.get(type(change))
        if touch is not None:
            touch(self, world, change)

    def host(self, host: str) -> None:
        """A host may have other takers, or look different."""
        self.hosts.add(host)
        self.takers.pop(host, None)

    def node(self, world: World, name: str) -> None:
        """A node in Slurm, or a job on it, changed."""
        self.names.add(name)
        host = world.host_of_node(name)
        if host is not None:
            self.host(host)

    def record(self, node: ManagedNode | None) -> None:
        """What a managed node takes of its hosts changed."""
        if node is not None:
            self.rooms.add(node.host)
            if node.target:
                self.rooms.add(node.target)

    def all(self) -> None:
        """Everything has to be found out anew."""
        self.everything = True
        self.takers.clear()


def _node_seen(touched: Touched, world: World, change: ch.NodeSeen) -> None:
    touched.node(world, change.node.name)


def _node_gone(touched: Touched, world: World, change: ch.NodeGone) -> None:
    touched.node(world, change.name)


def _job(touched: Touched, world: World, job_id: str) -> None:
    old = world.jobs.get(job_id)
    if old is not None:
        for name in old.nodes:
            touched.node(world, name)
        if old.state is JobState.PENDING:
            touched.queue = True


def _job_seen(touched: Touched, world: World, change: ch.JobSeen) -> None:
    _job(touched, world, change.job.id)
    for name in change.job.nodes:
        touched.node(world, name)
    if change.job.state is JobState.PENDING:
        touched.queue = True


def _job_gone(touched: Touched, world: World, change: ch.JobGone) -> None:
    _job(touched, world, change.id)


def _host_seen(touched: Touched, world: World, change: ch.HostSeen) -> None:
    if change.host.name in world.hosts:
        touched.host(change.host.name)
    else:
        touched.all()


def _source_seen(touched: Touched, world: World, change: ch.SourceSeen) -> None:
    """News only after a failure or for the first time: else it is but a later time."""
    old = world.sources.get(change.source)
    if old is None or not old.seen_s or old.problem:
        touched.all()


def _source_failed(touched: Touched, world: World, change: ch.SourceFailed) -> None:
    touched.all()


def _instance_seen(touched: Touched, world: World, change: ch.InstanceSeen) -> None:
    touched.names.add(change.instance.name)
    touched.rooms.add(change.instance.host)


def _instance(touched: Touched, world: World, change: ch.InstanceStopped | ch.InstanceGone) -> None:
    touched.names.add(change.name)
    touched.rooms.add(change.host)


def _claim_ended(
    touched: Touched, world: World, change: ch.Claimed | ch.ClaimAnswered | ch.ClaimEnded
) -> None:
    touched.claims.add(change.job_id)
    old = world.claims.get(change.job_id)
    for host in () if old is None else old.hosts:
        touched.host(host)


def _claimed(touched: Touched, world: World, change: ch.Claimed) -> None:
    _claim_ended(touched, world, change)
    for host in change.hosts:
        touched.host(host)


def _claim_answered(touched: Touched, world: World, change: ch.ClaimAnswered) -> None:
    touched.claims.add(change.job_id)


def _managed(touched: Touched, world: World, change: ch.NodeManaged) -> None:
    touched.names.add(change.node.name)
    touched.record(world.managed.get(change.node.name))
    touched.record(change.node)


def _forgotten(touched: Touched, world: World, change: ch.NodeForgotten) -> None:
    touched.names.add(change.name)
    touched.record(world.managed.get(change.name))


def _operation(
    touched: Touched, world: World, change: ch.OperationStarted | ch.OperationDone
) -> None:
    touched.names.add(change.key.split(":")[1])


def _record(touched: Touched, world: World, change: ch.Woken | ch.Probed | ch.Kicked) -> None:
    touched.names.add(change.name)


def _hold(touched: Touched, world: World, change: ch.HoldSet) -> None:
    touched.names.add(change.subject)
    touched.host(change.subject)


# Absent: changes on which no kept finding depends. On a reading that is only fresher (SourceSeen,
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
    ch.ClaimAnswered: _claim_answered,
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
