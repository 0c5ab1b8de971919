"""The indexed picture of everything we know, as everybody may read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from backfill.core.breakers import Streak
from backfill.core.call_index import CallIndex, ClaimIndex
from backfill.core.cluster import Job, Node
from backfill.core.fleet import Host, Instance
from backfill.core.fleet_index import FleetIndex
from backfill.core.fleets import Fleet
from backfill.core.job_index import JobIndex
from backfill.core.ledger import HostAllocation, Operation, Source, UncertainOutcome
from backfill.core.lifecycle import HeldJob, ManagedNode, Phase
from backfill.core.moves import Move
from backfill.core.queue import WorkQueue
from backfill.core.rates import WriteRate
from backfill.core.ready_index import ReadyIndex
from backfill.core.undo import Bag, Table, UndoLog


class Picture:
    """What is known now. Nobody but `World.apply` changes it."""

    def __init__(self) -> None:
        self.now_s = 0.0  # our time, which does not jump when somebody sets the machine's clock
        self.ahead_s = 0.0  # by so much it is ahead of that clock
        self.clock_moves: tuple[Move, ...] = ()  # how that clock was set, oldest first
        self.time_moves: tuple[Move, ...] = ()  # where our time of one daemon is not the next one's
        self.undo = UndoLog()
        self.queue = WorkQueue(self)  # type: ignore[arg-type]  # the world is one
        self.nodes: dict[str, Node] = {}
        self.silent: dict[str, float] = {}  # nodes that do not answer Slurm, and since when
        self._queue = JobIndex()
        self.jobs: Mapping[str, Job] = self._queue.jobs
        self.hosts: dict[str, Host] = {}
        self._fleet = FleetIndex(self.undo)
        # By (host, name).
        self.instances: Mapping[tuple[str, str], Instance] = self._fleet.instances
        self.managed: Mapping[str, ManagedNode] = self._fleet.managed
        self.ready = ReadyIndex(self.undo)
        self.burst: set[str] = set()  # hosts that are no Slurm nodes
        self._claims = ClaimIndex(self.undo)
        self.claims: Mapping[str, HostAllocation] = self._claims.claims
        self._calls = CallIndex(self.undo)
        self.operations: Mapping[str, Operation] = self._calls.operations
        self.sources: dict[str, Source] = {}
        self.odd: set[str] = set()  # sources that show what is not believed
        self.barred: dict[str, str] = {}  # by what we are kept from acting, and why
        self.doubts: Table[str, UncertainOutcome] = Table(self.undo)  # by managed node
        self.fleets: Table[str, Fleet] = Table(self.undo)  # orders by id
        self.closed: dict[str, str] = {}  # host or node -> why a person closed it
        self.off: dict[str, str] = {}  # host that is off for good -> how a person knows
        self.kept: dict[str, tuple[int, str]] = {}  # host -> so many may stay there, and why
        # By name: the highest generation that was ever used, and the highest that was removed.
        self.generations: Table[str, int] = Table(self.undo)
        self.removed: Table[str, int] = Table(self.undo)
        self.streaks: Table[str, Streak] = Table(self.undo)  # failures in a row: by host; "": the image
        self.rates: dict[str, WriteRate] = {}  # by host: how fast memory reaches the disk
        self._host_of_node: dict[str, str] = {}
        # Jobs that Slurm does not show any more on a node of ours, and did not show to have ended.
        self._vanished: Table[str, dict[str, HeldJob]] = Table(self.undo)
        self._deleted: Bag[tuple[str, int]] = Bag(self.undo)  # nodes, as their removal comes to its end
        self._seen: dict[tuple[str, str], float] = {}
        # Since when we see Slurm without a gap: deadlines do not run while nobody could act.
        self.sighted_since_s = 0.0
        self._node_read: dict[str, float] = {}
        self._node_since: dict[str, float] = {}

    # --- reading -------------------------------------------------------------------------------

    def jobs_on(self, node: str) -> list[Job]:
        """Jobs that Slurm shows on a node, in order of their ids."""
        return self._queue.on(node)

    def deleted(self, name: str, generation: int) -> bool:
        """Whether a call of ours has deleted the node of this generation from Slurm."""
        return (name, generation) in self._deleted

    def vanished_on(self, node: str) -> tuple[HeldJob, ...]:
        """Jobs that were on a node of ours and of which Slurm shows nothing any more."""
        return tuple(self._vanished.get(node, {}).values())

    @property
    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return self._queue.partitions_waiting()

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        return self._queue.pending(partitions)

    def kinds_pending(self, partitions: Iterable[str]) -> Iterator[tuple[Job, Collection[str]]]:
        """One of each kind of these that demand counts alike, and the ids of all of that kind."""
        return self._queue.kinds_pending(partitions)

    def instances_on(self, host: str) -> list[Instance]:
        """Our instances on a host, in order of their names."""
        return self._fleet.instances_on(host)

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance; more than one only while it moves."""
        return [place for place in self._fleet.places_of(name) if place.host in self.hosts]

    def managed_on(self, host: str) -> list[ManagedNode]:
        """Managed nodes that are on a host or on their way to it, in order of their names."""
        return self._fleet.managed_on(host)

    def names_on(self, host: str) -> frozenset[str]:
        """Their names."""
        return self._fleet.names_on(host)

    def instance_names_on(self, host: str) -> Iterable[str]:
        """Names of our instances on a host, in no order."""
        return self._fleet.instance_names_on(host)

    def holders(self, job_id: str) -> frozenset[str]:
        """Names of the managed nodes whose records name the job, or a component of it."""
        return self._fleet.holders(job_id)

    def host_of_node(self, node: str) -> str | None:
        """The host whose own Slurm node this is."""
        return self._host_of_node.get(node)

    def taken(self, host: str) -> bool:
        """Whether there are any of these."""
        known = self.hosts.get(host)
        node = None if known is None else known.node
        return host in self.closed or self._queue.any_on(node) or self._claims.any_on(host)

    def takers(self, host: str) -> tuple[str, ...]:
        """Ids of the jobs that have, or were just given, the host's own node."""
        if not self.taken(host):
            return ()
        node = self.hosts[host].node if host in self.hosts else None
        holders = [j for j in self.jobs_on(node) if j.holds_nodes] if node is not None else []
        found = {j.id for j in holders}
        # A hook knows an array task by its raw number only: 14 and 12_3 are one job.
        known = found | {str(j.raw_id) for j in holders}
        found.update(job_id for job_id in self._claims.on(host) if job_id not in known)
        if host in self.closed:
            found.add("of the operator")
        return tuple(sorted(found))

    def claims_on(self, host: str) -> list[HostAllocation]:
        """Claims on the host."""
        return [self.claims[job_id] for job_id in self._claims.on(host)]

    def claim_ids_on(self, host: str) -> Iterable[str]:
        """Ids of the jobs that claim the host."""
        return self._claims.on(host)

    def claim_ids_at(self, node: str) -> Iterable[str]:
        """Ids of the jobs of claims that begin on this node of ours."""
        return self._claims.at(node)

    def running(self, key: str) -> bool:
        """Whether the operation is in flight."""
        operation = self.operations.get(key)
        return operation is not None and operation.running

    def arriving(self, host: str) -> bool:
        """Whether an operation in flight, or one that failed and may yet have acted, may bring an
        instance onto this host's CPUs."""
        return self._calls.arriving(host) or any(host in d.hosts for d in self.doubts.values())

    def alone(self, hosts: Iterable[str]) -> bool:
        """Whether nothing of ours is on these hosts or on its way to any of them."""
        if self.doubts:
            return False
        of_ours, arriving = self._fleet.any_on, self._calls.arriving
        return not any(of_ours(h) or arriving(h) or self.parents_starting(h) for h in hosts)

    def parents_starting(self, host: str) -> int:
        """How many guests run there, or are just being started, to become parents of clones."""
        known, calls = self.hosts.get(host), self._calls.of(host)
        running = [key for key in calls if key.startswith("MakeParent") and self.running(key)]
        return max(len(running), len(known.parents_starting) if known is not None and known.parents else 0)

    def busy(self, name: str) -> bool:
        """Whether an operation of this node is in flight, or may have acted although it failed."""
        return self._calls.busy(name) or name in self.doubts

    def in_doubt(self, name: str) -> bool:
        """Whether it is unknown where the node's instance is after a call that failed."""
        return name in self.doubts

    def seen_s(self, kind: str, name: str) -> float:
        """When the subject was last read; 0 if never. Kinds: node, job, host, instance."""
        return self._seen.get((kind, name), 0.0)

    def node_since_s(self, name: str) -> float:
        """Since when the node looks as it does now, or is gone; 0 if it was never seen."""
        return self._node_since.get(name, 0.0)

    def node_read_s(self, name: str) -> float:
        """When the node and the jobs on it were last read, changed or not."""
        slurm = self.sources.get("slurm")
        return max(self._node_read.get(name, 0.0), slurm.seen_s if slurm else 0.0)

    def first_seen_s(self, host: str, name: str) -> float:
        """When an instance was first seen on a host by this daemon; 0 if it is not there."""
        return self._fleet.first_seen_s(host, name)

    def in_phase(self, *phases: Phase) -> set[str]:
        """Names of the managed nodes in any of these phases."""
        return self._fleet.in_phase(phases)

    def count_in(self, *phases: Phase) -> int:
        """How many managed nodes are in any of these phases."""
        return self._fleet.count_in(phases)

    def operations_of(self, name: str) -> list[Operation]:
        """Operations of one node, in flight or failed, oldest first."""
        found = [self.operations[key] for key in self._calls.of(name)]
        return sorted(found, key=lambda operation: (operation.since_s, operation.key))

    @property
    def fleet(self) -> FleetIndex:
        """What was begun and what left lately, for ramps."""
        return self._fleet

    @property
    def clock_s(self) -> float:
        """What the machine's clock says now."""
        return self.now_s - self.ahead_s

    def created_lately(self, within_s: float) -> int:
        """How many instances we began to make less than so long ago."""
        return self._fleet.created_since(self.now_s - within_s)

    def created_after_s(self, since_s: float) -> float | None:
        """When we began to make the first of those after `since_s`."""
        return self._fleet.created_after_s(since_s)

    def destroyed_lately(self, within_s: float) -> int:
        """The work on how many instances was given up less than so long ago."""
        return self._fleet.destroyed_since(self.now_s - within_s)

    def destroyed_after_s(self, since_s: float) -> float | None:
        """When that was done for the first time after `since_s`."""
        return self._fleet.destroyed_after_s(since_s)

    def source_read_s(self, source: str) -> float:
        """When the latest complete reading of Slurm, or of a host, began; 0: never."""
        known = self.sources.get(source)
        return 0.0 if known is None else known.seen_s

    def instances_called(self, name: str) -> list[Instance]:
        """Every host's view of one instance, hosts that were never seen included."""
        return self._fleet.places_of(name)

    def fresh(self, source: str, stale_after_s: float) -> bool:
        """Whether the source was read, and not longer ago than that."""
        known = self.sources.get(source)
        if known is None or known.seen_s == 0.0:
            return False
        return self.now_s - known.seen_s <= stale_after_s
