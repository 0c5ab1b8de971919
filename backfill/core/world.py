"""The indexed picture of everything we know; `apply(change)` is its only mutator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatchmethod

from backfill.core import changes as ch
from backfill.core.call_index import CallIndex, ClaimIndex
from backfill.core.cluster import Job, Node
from backfill.core.fleet import Host, Instance, InstanceState
from backfill.core.fleet_index import FleetIndex
from backfill.core.job_index import JobIndex
from backfill.core.ledger import Claim, Source
from backfill.core.lifecycle import ManagedNode, check_transition

_GAP_S = 15.0  # a longer pause between two readings of Slurm is a gap in our sight
_TOMBSTONE_S = 120.0


class World:
    """What is known now. Everybody may read it; nobody but `apply` changes it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, Node] = {}
        self._queue = JobIndex()
        self.jobs = self._queue.jobs
        self.hosts: dict[str, Host] = {}
        self._fleet = FleetIndex()
        self.instances = self._fleet.instances  # by (host, name)
        self.managed = self._fleet.managed
        self._claims = ClaimIndex()
        self.claims = self._claims.claims
        self._calls = CallIndex()
        self.operations = self._calls.operations
        self.sources: dict[str, Source] = {}
        self.closed: dict[str, str] = {}  # host or node -> why a person closed it
        self.generations: dict[str, int] = {}  # highest generation ever used by a node's name
        self._host_of_node: dict[str, str] = {}
        self._seen: dict[tuple[str, str], float] = {}
        self._gone: dict[str, float] = {}  # jobs that Slurm no longer knows, oldest first
        # Since when we see Slurm without a gap: deadlines do not run while nobody could act.
        self.sighted_since_s = 0.0
        self._node_read: dict[str, float] = {}

    # --- reading -------------------------------------------------------------------------------

    def jobs_on(self, node: str) -> list[Job]:
        """Jobs that Slurm shows on a node, in order of their ids."""
        return self._queue.on(node)

    @property
    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return self._queue.partitions_waiting()

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        return self._queue.pending(partitions)

    def instances_on(self, host: str) -> list[Instance]:
        """Our instances on a host, in order of their names."""
        return self._fleet.instances_on(host)

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance; more than one only while it moves."""
        return [place for place in self._fleet.places_of(name) if place.host in self.hosts]

    @property
    def names(self) -> Sequence[str]:
        """Names of the managed nodes, sorted."""
        return self._fleet.names

    def managed_on(self, host: str) -> list[ManagedNode]:
        """Managed nodes that are on a host or on their way to it, in no order."""
        return self._fleet.managed_on(host)

    def host_of_node(self, node: str) -> str | None:
        """The host whose own Slurm node this is."""
        return self._host_of_node.get(node)

    def takers(self, host: str) -> tuple[str, ...]:
        """Ids of the jobs that have, or were just given, the host's own node."""
        node = self.hosts[host].node if host in self.hosts else None
        holders = [j for j in self.jobs_on(node) if j.holds_nodes] if node is not None else []
        found = {j.id for j in holders}
        # A hook knows an array task by its raw number only: 14 and 12_3 are one job.
        known = found | {str(j.raw_id) for j in holders}
        found.update(job_id for job_id in self._claims.on(host) if job_id not in known)
        if host in self.closed:
            found.add("of the operator")
        return tuple(sorted(found))

    def running(self, key: str) -> bool:
        """Whether the operation is in flight."""
        operation = self.operations.get(key)
        return operation is not None and operation.running

    def arriving(self, host: str) -> bool:
        """Whether an operation in flight may bring an instance onto this host's CPUs."""
        return self._calls.arriving(host)

    def busy(self, name: str) -> bool:
        """Whether an operation of this node is in flight."""
        return self._calls.busy(name)

    def seen_s(self, kind: str, name: str) -> float:
        """When the subject was last read; 0 if never. Kinds: node, job, host, instance."""
        return self._seen.get((kind, name), 0.0)

    def node_read_s(self, name: str) -> float:
        """When the node and the jobs on it were last read, changed or not."""
        slurm = self.sources.get("slurm")
        return max(self._node_read.get(name, 0.0), slurm.seen_s if slurm else 0.0)

    def first_seen_s(self, host: str, name: str) -> float:
        """When an instance was first seen on a host by this daemon; 0 if it is not there."""
        return self._fleet.first_seen_s(host, name)

    def created_since(self, since_s: float) -> int:
        """How many instances we began to make after `since_s`."""
        return self._fleet.created_since(since_s)

    # --- the only mutator ----------------------------------------------------------------------

    def apply(self, change: ch.Change) -> None:
        """Take one change into the picture. Observations older than what we have are ignored."""
        self._apply(change)

    @singledispatchmethod
    def _apply(self, change: object) -> None:
        raise TypeError(f"not a change: {change!r}")

    def _newer(self, kind: str, name: str, seen_s: float) -> bool:
        """Tell whether a reading begun at `seen_s` is news about the subject, and remember it."""
        if seen_s < self._seen.get((kind, name), 0.0):
            return False
        self._seen[kind, name] = seen_s
        return True

    @_apply.register
    def _(self, change: ch.Tick) -> None:
        self.now_s = max(self.now_s, change.now_s)

    @_apply.register
    def _(self, change: ch.SourceSeen) -> None:
        old = self.sources.get(change.source, Source())
        if change.source == "slurm":
            if change.seen_s - old.seen_s > _GAP_S:
                self.sighted_since_s = max(self.now_s, change.seen_s)
            self._forget_tombstones(change.seen_s)
        self.sources[change.source] = Source(seen_s=max(change.seen_s, old.seen_s))

    def _forget_tombstones(self, seen_s: float) -> None:
        """A job gone for long cannot come back by a reading that was under way then."""
        for job_id, gone_s in list(self._gone.items()):
            if seen_s - gone_s < _TOMBSTONE_S:
                break  # they are in the order of time
            del self._gone[job_id]
            if job_id not in self.jobs:
                self._seen.pop(("job", job_id), None)

    @_apply.register
    def _(self, change: ch.SourceFailed) -> None:
        known = self.sources.get(change.source, Source())
        self.sources[change.source] = replace(known, failed_s=change.at_s, problem=change.problem)

    @_apply.register
    def _(self, change: ch.NodeSeen) -> None:
        if self._newer("node", change.node.name, change.seen_s):
            self.nodes[change.node.name] = change.node

    @_apply.register
    def _(self, change: ch.NodeGone) -> None:
        if self._newer("node", change.name, change.seen_s):
            self.nodes.pop(change.name, None)

    @_apply.register
    def _(self, change: ch.NodesRead) -> None:
        for name in change.names:
            self._node_read[name] = max(change.seen_s, self._node_read.get(name, 0.0))

    @_apply.register
    def _(self, change: ch.JobSeen) -> None:
        if self._newer("job", change.job.id, change.seen_s):
            self._queue.put(change.job)

    @_apply.register
    def _(self, change: ch.JobGone) -> None:
        if self._newer("job", change.id, change.seen_s):
            self._queue.drop(change.id)
            self._gone.pop(change.id, None)
            self._gone[change.id] = change.seen_s

    @_apply.register
    def _(self, change: ch.HostSeen) -> None:
        if self._newer("host", change.host.name, change.seen_s):
            self.hosts[change.host.name] = change.host
            if change.host.node is not None:
                self._host_of_node[change.host.node] = change.host.name

    @_apply.register
    def _(self, change: ch.InstanceSeen) -> None:
        instance = change.instance
        if self._newer("instance", f"{instance.host}/{instance.name}", change.seen_s):
            self._fleet.put(instance, change.seen_s)
            self._remember_generation(instance.name, instance.tag.generation)

    @_apply.register
    def _(self, change: ch.InstanceStopped) -> None:
        known = self.instances.get((change.host, change.name))
        if known is not None and self._newer(
            "instance", f"{change.host}/{change.name}", change.seen_s
        ):
            self.instances[change.host, change.name] = replace(known, state=InstanceState.PAUSED)

    @_apply.register
    def _(self, change: ch.InstanceGone) -> None:
        if self._newer("instance", f"{change.host}/{change.name}", change.seen_s):
            self._fleet.drop(change.host, change.name)

    @_apply.register
    def _(self, change: ch.Claimed) -> None:
        self._claims.put(Claim(change.job_id, change.hosts, change.at_s, change.waiting))

    @_apply.register
    def _(self, change: ch.ClaimAnswered) -> None:
        self._claims.answered(change.job_id)

    @_apply.register
    def _(self, change: ch.ClaimEnded) -> None:
        self._claims.drop(change.job_id)

    @_apply.register
    def _(self, change: ch.NodeManaged) -> None:
        known = self.managed.get(change.node.name)
        if known is not None:
            check_transition(known, change.node.phase)
        self._fleet.manage(change.node)
        self._remember_generation(change.node.name, change.node.generation)

    @_apply.register
    def _(self, change: ch.NodeForgotten) -> None:
        self._fleet.forget(change.name)
        self._calls.forget(change.name)
        self._remember_generation(change.name, change.generation)

    def _remember_generation(self, name: str, generation: int) -> None:
        self.generations[name] = max(generation, self.generations.get(name, 0))

    @_apply.register
    def _(self, change: ch.OperationStarted) -> None:
        self._calls.started(change)

    @_apply.register
    def _(self, change: ch.OperationDone) -> None:
        self._calls.done(change)

    @_apply.register
    def _(self, change: ch.Woken) -> None:
        known = self.managed.get(change.name)
        if known is not None and known.generation == change.generation:
            self.managed[change.name] = replace(known, woken_s=change.at_s)

    @_apply.register
    def _(self, change: ch.Probed) -> None:
        known = self.managed.get(change.name)
        if known is not None and known.generation == change.generation:
            stuck_s = (known.stuck_s or change.at_s) if change.stuck else 0.0
            self.managed[change.name] = replace(known, probed_s=change.at_s, stuck_s=stuck_s)

    @_apply.register
    def _(self, change: ch.Kicked) -> None:
        known = self.managed.get(change.name)
        if known is not None and known.generation == change.generation:
            at_s = change.at_s  # a kick is a suspend too, and its signal may come late as well
            after = replace(known, suspended_s=at_s, probed_s=at_s, stuck_s=0.0)
            self.managed[change.name] = after

    @_apply.register
    def _(self, change: ch.LastWords) -> None:
        """Nothing is decided by it; it is kept in the journal."""

    @_apply.register
    def _(self, change: ch.HoldSet) -> None:
        if change.on:
            self.closed[change.subject] = change.reason
        else:
            self.closed.pop(change.subject, None)
