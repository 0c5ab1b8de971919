"""The picture of the world as everybody may read it, and its tables, found by more than one key.

What steps of ours change stands in tables that can be put back: a plan tries its steps on the world.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from backfill.core.model.clock import Move
from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.fleet import Fleet, Host, Instance
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import HeldJob, ManagedNode, Phase
from backfill.core.model.operations import (
    HostAllocation,
    Operation,
    OperationDone,
    OperationStarted,
    Source,
    UncertainOutcome,
)
from backfill.core.model.pilots import PoolPicture, slot_of
from backfill.core.model.quantities import WriteRate
from backfill.core.model.readiness import Streak
from backfill.core.model.undo import Bag, Table, Tally, UndoLog

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


_TOMBSTONE_S = 120.0


# What demand asks of a waiting job: jobs of which all of this is equal count alike.
Wish = tuple[str, float, str, int, int, int, float | None, bool, str]


class JobIndex:
    """All known jobs with the two look-ups that planning needs. Only the world changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, set[str]] = {}  # node -> ids
        self.waiting_changes = 0  # so often another job than before waits, or it wants something else
        self.pending_changes = 0  # the same, and so often a waiting job looked different in any way
        self._pending: dict[str, dict[Wish, set[str]]] = {}  # partition -> wish -> ids
        self._gone: dict[str, float] = {}  # jobs that Slurm no longer knows, oldest first
        self.active_asking: set[str] = set()  # ids of those with nodes that ask for machines of their own
        self._halted: set[str] = set()  # ids of those that were seen to run, and then suspended

    def put(self, job: Job) -> None:
        """Take in a new or changed job."""
        old = self.jobs.get(job.id)
        before = _line(old)
        halted = self.seen_to_halt(job) or (old is not None and old.state is JobState.RUNNING)
        self._forget(job.id)
        self.jobs[job.id] = job
        if halted and job.state is JobState.SUSPENDED and old is not None and old.restarts == job.restarts:
            self._halted.add(job.id)
        if job.holds_nodes:
            for node in job.nodes:
                self._on.setdefault(node, set()).add(job.id)
        if job.active and _asks(job):
            self.active_asking.add(job.id)
        if (line := _line(job)) is not None:
            alike = self._pending.setdefault(line[0], {})
            alike.setdefault(line[1], set()).add(job.id)
        if before != line:
            self.waiting_changes += 1
        if (before or line) and old != job:
            self.pending_changes += 1

    def drop(self, job_id: str, seen_s: float) -> None:
        """Forget a job that Slurm has forgotten, as was seen at `seen_s`."""
        self._forget(job_id)
        if _line(self.jobs.pop(job_id, None)) is not None:
            self.waiting_changes += 1
            self.pending_changes += 1
        self._gone.pop(job_id, None)
        self._gone[job_id] = seen_s

    def bury(self, seen_s: float) -> list[str]:
        """Return ids of jobs gone for so long that no reading that was under way then brings them back."""
        buried = []
        for job_id, gone_s in self._gone.items():
            if seen_s - gone_s < _TOMBSTONE_S:
                break  # they are in the order of time
            buried.append(job_id)
        for job_id in buried:
            del self._gone[job_id]
        return [job_id for job_id in buried if job_id not in self.jobs]

    def seen_to_halt(self, job: Job) -> bool:
        """Return True if this daemon saw the suspended job run before."""
        return job.id in self._halted

    def on(self, node: str) -> list[Job]:
        """Return jobs that hold `node`, in order of their ids."""
        ids = self._on.get(node)
        return [self.jobs[i] for i in _sorted(ids)] if ids else []

    def any_on(self, node: str | None) -> bool:
        """Return True if any job holds `node`."""
        return bool(self._on.get(node)) if node is not None else False

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                for job_id in ids:
                    yield self.jobs[job_id]

    def kinds_pending(self, partitions: Iterable[str]) -> Iterator[tuple[Job, Collection[str]]]:
        """One of each kind of pending jobs that count alike, and the ids of all of that kind."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                yield self.jobs[next(iter(ids))], ids

    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return {partition for partition, alike in self._pending.items() if alike}

    def _forget(self, job_id: str) -> None:
        old = self.jobs.get(job_id)
        if old is None:
            return
        self.active_asking.discard(job_id)
        self._halted.discard(job_id)
        for node in old.nodes:
            self._on.get(node, set()).discard(job_id)
        if old.state is JobState.PENDING:
            alike, wish = self._pending[old.partition], _wish(old)
            alike[wish].discard(job_id)
            if not alike[wish]:
                del alike[wish]


def _line(job: Job | None) -> tuple[str, Wish] | None:
    """Return where the job waits, and as what kind; None if it does not wait."""
    return (job.partition, _wish(job)) if job is not None and job.state is JobState.PENDING else None


def _wish(job: Job) -> Wish:
    begins_s = job.eligible_s if job.reason == "BeginTime" else 0.0
    size = (job.cpus, job.num_nodes, job.memory_mb)
    return (job.reason, begins_s, job.qos, *size, job.time_limit_s, _asks(job), job.features)


def named(job: Job, name: str) -> bool:
    """Return True if this run of the job was told that the machine is within its allocation."""
    return job.machines is not None and name in job.machines.at and job.machines.run == job.restarts


def _asks(job: Job) -> bool:
    """Return True if it brings a word for machines of its own, whether that can be read or not."""
    return job.machines is not None or job.machines_fault is not None


_REMEMBERED = 10_000  # creations


_NOBODY: frozenset[str] = frozenset()


# Image of an instance that is being made, and the devices that it will offer.
Making = tuple[str, tuple[str, ...]]


class FleetIndex:
    """Managed nodes and instances with the look-ups of planning. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self.managed: Table[str, ManagedNode] = Table(log)
        self.instances: dict[tuple[str, str], Instance] = {}  # by (host, name)
        # Host -> names that are there or go there.
        self._managed_on: Table[str, frozenset[str]] = Table(log)
        self._holders: Table[str, frozenset[str]] = Table(log)  # job -> nodes whose records name it
        self._instances_on: dict[str, set[str]] = {}  # host -> names
        self._places: dict[str, set[str]] = {}  # name -> hosts with such an instance
        self._first_seen: dict[tuple[str, str], float] = {}
        self._created: list[float] = []  # sorted
        self._begun: dict[str, list[float]] = {}  # the same of each host and image
        self._phases: dict[Phase, Bag[str]] = {phase: Bag(log) for phase in Phase}
        self.booting: Tally[Making] = Tally(log)  # how many are being made, by image and devices
        self.suspected: Bag[str] = Bag(log)  # names of those against whose work something was found
        self._left: list[float] = []  # when idle ones began to leave, sorted
        self._destroyed: list[tuple[float, str, int]] = []  # time, name, generation; sorted

    # --- reading -------------------------------------------------------------------------------

    def managed_on(self, host: str) -> list[ManagedNode]:
        """Return managed nodes that are on the host or on their way to it, in order of their names."""
        return [self.managed[name] for name in _sorted(self._managed_on.get(host, ()))]

    def names_on(self, host: str) -> frozenset[str]:
        """Their names."""
        return self._managed_on.get(host, _NOBODY)

    def holders(self, job_id: str) -> frozenset[str]:
        """Return names of the nodes whose records name the job, or a component of it."""
        return self._holders.get(job_id.partition("+")[0], _NOBODY)

    def instances_on(self, host: str) -> list[Instance]:
        """Instances on a host, in order of their names."""
        return [self.instances[host, name] for name in _sorted(self._instances_on.get(host, ()))]

    def all_names_on(self, host: str) -> Collection[str]:
        """Return names of the instances and managed nodes on the host or on their way to it, in no order."""
        ours, there = self.names_on(host), self._instances_on.get(host, _NOBODY)
        return ours if there <= ours else ours | there

    def any_on(self, host: str) -> bool:
        """Return True if an instance or a managed node is on the host or on its way to it."""
        return bool(self._instances_on.get(host) or self._managed_on.get(host))

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance, in order of the hosts."""
        return [self.instances[host, name] for host in _sorted(self._places.get(name, ()))]

    def first_seen_s(self, host: str, name: str) -> float:
        """Return when an instance was first seen on a host; 0 if it is not there."""
        return self._first_seen.get((host, name), 0.0)

    def created_since(self, since_s: float) -> int:
        """Return how many of the latest instances we began to make after `since_s`."""
        return len(self._created) - bisect_right(self._created, since_s)

    def created_after_s(self, since_s: float) -> float | None:
        """Return when we began to make the first of those after `since_s`."""
        at = bisect_right(self._created, since_s)
        return self._created[at] if at < len(self._created) else None

    def in_phase(self, *phases: Phase) -> set[str]:
        """Return names of the managed nodes in any of these phases."""
        return set().union(*(self._phases[phase] for phase in phases))

    def count_in(self, *phases: Phase) -> int:
        """Return how many managed nodes are in any of these phases."""
        return sum(len(self._phases[phase]) for phase in phases)

    def left_since(self, since_s: float) -> int:
        """Return how many of the latest idle instances began to leave after `since_s`."""
        return len(self._left) - bisect_right(self._left, since_s)

    def created_back_s(self, count: int) -> float:
        """Return when the `count`-th last instance was begun; 0 if there were fewer."""
        return self._created[-count] if 0 < count <= len(self._created) else 0.0

    def begun_back_s(self, what: str, count: int) -> float:
        """Return when the `count`-th last instance of `host NAME` or `image NAME` was begun; or 0."""
        begun = self._begun.get(what, ())
        return begun[-count] if 0 < count <= len(begun) else 0.0

    def left_back_s(self, count: int) -> float:
        """Return when the `count`-th last idle instance began to leave; 0 if there were fewer."""
        return self._left[-count] if 0 < count <= len(self._left) else 0.0

    def destroyed_since(self, since_s: float) -> int:
        """Count the instances whose work was given up after `since_s`."""
        return sum(1 for at_s, _, _ in reversed(self._destroyed) if at_s > since_s)

    def destroyed_after_s(self, since_s: float) -> float | None:
        """Return when that was done for the first time after `since_s`."""
        return next((at_s for at_s, _, _ in self._destroyed if at_s > since_s), None)

    # --- changing ------------------------------------------------------------------------------

    def manage(self, node: ManagedNode) -> None:
        """Take in a managed node that is new, or its new record."""
        old = self.managed.get(node.name)
        if old is None or old.generation != node.generation:
            self._begin(node)
        if node.phase is Phase.DRAINING and (old is None or old.phase is not Phase.DRAINING):
            self._insert(self._left, node.since_s)
        before = () if old is None else old.hosts
        if before != node.hosts:
            self._leave(node.name, before)
            for host in node.hosts:
                self._managed_on[host] = self.names_on(host) | {node.name}
        if old is None or old.phase is not node.phase:
            if old is not None:
                self._phases[old.phase].discard(node.name)
            self._phases[node.phase].add(node.name)
        if (() if old is None else old.held) != node.held:
            self._hold(node.name, () if old is None else old.held, node.held)
        (self.suspected.discard if node.suspicion is None else self.suspected.add)(node.name)
        self._count(old, node)
        self.managed[node.name] = node

    def _count(self, before: ManagedNode | None, after: ManagedNode | None) -> None:
        old, new = _kind_made(before), _kind_made(after)
        if old == new:
            return
        if old is not None:
            self.booting.discard(old)
        if new is not None:
            self.booting.add(new)

    def note(self, node: ManagedNode) -> None:
        """Fields of a record changed by which nothing is found."""
        self.managed[node.name] = node

    def destroyed(self, name: str, generation: int, at_s: float) -> None:
        """Count that the work on an instance is given up; told twice it counts once."""
        if (one := (at_s, name, generation)) not in self._destroyed:
            self._insert(self._destroyed, one)

    def _begin(self, node: ManagedNode) -> None:
        """Note when an instance was begun, in all, on its host and of its image."""
        by_host = self._begun.setdefault(f"host {node.host}", [])
        by_image = self._begun.setdefault(f"image {node.image}", [])
        for times in (self._created, by_host, by_image):
            self._insert(times, node.created_s)

    def _insert(self, times: list[T], at: T) -> None:
        """Put a moment into its place; of very many the oldest are forgotten."""
        insort(times, at)  # type: ignore[call-overload]  # times, or tuples with one
        if self._log.on:
            self._log.note(partial(times.remove, at))
        else:
            del times[:-_REMEMBERED]

    def forget(self, name: str) -> None:
        """Drop a managed node that is over; unknown: nothing."""
        old = self.managed.pop(name)
        if old is not None:
            self._phases[old.phase].discard(name)
            self.suspected.discard(name)
            self._count(old, None)
            self._leave(name, old.hosts)
            self._hold(name, old.held, ())

    def _leave(self, name: str, hosts: Iterable[str]) -> None:
        for host in hosts:
            if name in self.names_on(host):
                self._managed_on[host] = self.names_on(host) - {name}

    def _hold(self, name: str, before: Iterable[HeldJob], after: Iterable[HeldJob]) -> None:
        """Find a node by the jobs that its record names, each by the number before any `+`."""
        known, new = _numbers(before), _numbers(after)
        for job_id in known - new:
            self._holders[job_id] = self._holders[job_id] - {name}
        for job_id in new - known:
            self._holders[job_id] = self._holders.get(job_id, _NOBODY) | {name}

    def put(self, instance: Instance, seen_s: float) -> None:
        """Take in an instance that was seen."""
        host, name = instance.host, instance.name
        self.instances[host, name] = instance
        self._first_seen.setdefault((host, name), seen_s)
        self._instances_on.setdefault(host, set()).add(name)
        self._places.setdefault(name, set()).add(host)

    def drop(self, host: str, name: str) -> None:
        """Drop an instance that is no longer where it was; unknown: nothing."""
        self.instances.pop((host, name), None)
        self._first_seen.pop((host, name), None)
        self._instances_on.get(host, set()).discard(name)
        self._places.get(name, set()).discard(host)


def _sorted(names: Collection[str]) -> Iterable[str]:
    """Return them in order; there is nearly always one at most."""
    return sorted(names) if len(names) > 1 else names


def _kind_made(node: ManagedNode | None) -> Making | None:
    """Return what is being made, if it is for whoever comes."""
    if node is None or node.phase is not Phase.BOOTING or node.job:
        return None
    return node.image, node.devices


def _numbers(held: Iterable[HeldJob]) -> set[str]:
    ids = {h.id for h in held} | {limit.id for h in held if h.refused for limit in h.refused.limits}
    return {job_id.partition("+")[0] for job_id in ids}


# Image, devices that it offers, CPUs given to jobs, and whether a reservation keeps jobs from it.
Use = tuple[str, tuple[str, ...], int, bool]


# What is reserved is for some jobs only: of an image that some people share, or of an owner whose pin
# has outlived our books.
_RESERVED = "RESERVED"


class ReadyIndex:
    """Sums that a plan needs every time, kept up to date. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self.idle: Bag[str] = Bag(log)  # names of those without a job that no fleet keeps
        self.kept: Bag[str] = Bag(log)  # of these those that Slurm reserves for somebody
        self.alike: Tally[Use] = Tally(log)  # how many of those that take jobs are alike
        self._use: Table[str, Use] = Table(log)  # of each of these

    def look(self, name: str, ours: ManagedNode | None, seen: Node | None) -> None:
        """Note how a node looks now."""
        idle = kept = False
        use: Use | None = None
        if ours is not None and ours.phase is Phase.READY:
            reserved = seen is not None and _RESERVED in seen.flags
            idle = ours.idle_since_s is not None and not ours.fleet
            kept = idle and reserved
            if seen is not None and not (ours.job or seen.drained or "MAINT" in seen.flags):
                use = (ours.image, ours.devices, seen.cpus_allocated, reserved)
        before = self._use.get(name)
        if idle == (name in self.idle) and kept == (name in self.kept) and use == before:
            return
        (self.idle.add if idle else self.idle.discard)(name)
        (self.kept.add if kept else self.kept.discard)(name)
        if before is not None:
            del self._use[name]
            self.alike.discard(before)
        if use is not None:
            self._use[name] = use
            self.alike.add(use)


_NONE: frozenset[str] = frozenset()


class ClaimIndex:
    """All claims, and those on one host. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self.claims: Table[str, HostAllocation] = Table(log)
        self._on: Table[str, tuple[str, ...]] = Table(log)  # host -> ids of jobs
        self._at: Table[str, frozenset[str]] = Table(log)  # node of ours -> ids of jobs that begin there

    def on(self, host: str) -> Iterable[str]:
        """Return ids of the jobs that claim the host."""
        return self._on.get(host, ())

    def at(self, node: str) -> Iterable[str]:
        """Return ids of the jobs of claims that begin on this node of ours."""
        return self._at.get(node, ())

    def any_on(self, host: str) -> bool:
        """Return True if any job claims the host."""
        return bool(self._on.get(host))

    def put(self, claim: HostAllocation) -> None:
        """Take in a claim that was made, or made anew."""
        self._leave(claim.job_id)
        self.claims[claim.job_id] = claim
        for node in claim.nodes:
            _add(self._at, node, claim.job_id)
        for host in claim.hosts:
            if claim.job_id not in self._on.get(host, ()):
                self._on[host] = (*self._on.get(host, ()), claim.job_id)

    def answered(self, job_id: str) -> None:
        """Nobody waits for an answer any more; unknown: nothing."""
        claim = self.claims.get(job_id)
        if claim is not None:
            self.claims[job_id] = replace(claim, waiting=False)

    def drop(self, job_id: str) -> None:
        """Drop a claim that is over; unknown: nothing."""
        self._leave(job_id)
        self.claims.pop(job_id)

    def _leave(self, job_id: str) -> None:
        old = self.claims.get(job_id)
        for node in old.nodes if old is not None else ():
            _discard(self._at, node, job_id)
        for host in old.hosts if old is not None else ():
            self._on[host] = tuple(other for other in self._on.get(host, ()) if other != job_id)


# Kinds of operations of which those in flight are counted.
_COUNTED = frozenset({"RequeueJob", "SuspendInstance", "SubmitPilot"})


# Kinds that suspend a job in Slurm; the key ends with its id.
_SUSPENDING = frozenset({"SuspendJob", "KickJob"})


class CallIndex:
    """All operations, those of one node, and what arrives on one host. Only the world changes it.

    The key of an operation names its node between the first and the second colon.
    """

    def __init__(self, log: UndoLog) -> None:
        self.operations: Table[str, Operation] = Table(log)
        self._of: Table[str, frozenset[str]] = Table(log)  # node -> keys
        self._under_way: Table[str, frozenset[str]] = Table(log)  # kind -> keys of those in flight
        self._arriving: Table[str, frozenset[str]] = Table(log)  # host -> keys of those in flight onto it
        self._to_stop: Bag[str] = Bag(log)  # ids of jobs that Slurm was ever asked to suspend

    def of(self, name: str) -> Iterable[str]:
        """Return keys of a node's operations, in flight or failed, in no order."""
        return self._of.get(name, ())

    def busy(self, name: str) -> bool:
        """Return True if an operation of the node is in flight."""
        return any(self.operations[key].running for key in self.of(name))

    def under_way(self, kind: str) -> frozenset[str]:
        """Return keys of the operations of this kind in flight, for the kinds that are counted."""
        return self._under_way.get(kind, _NONE)

    def arriving(self, host: str) -> bool:
        """Return True if an operation in flight may bring an instance onto the host's CPUs."""
        return bool(self._arriving.get(host))

    def started(self, change: OperationStarted) -> None:
        """Note that an action was handed to a driver."""
        old = self.operations.get(change.key)
        if old is not None:
            self._landed(old)
        attempts = old.attempts if old is not None else 0
        operation = Operation(change.key, change.host, True, change.at_s, attempts)
        self.operations[change.key] = operation
        kind, name, _ = change.key.split(":", 2)
        _add(self._of, name, change.key)
        if kind in _COUNTED:
            _add(self._under_way, kind, change.key)
        if kind in _SUSPENDING:
            self._to_stop.add(change.key.rpartition(":")[2])
        if change.host:
            _add(self._arriving, change.host, change.key)

    def done(self, change: OperationDone) -> None:
        """Note that a driver finished it: forgotten on success, kept for the next try otherwise."""
        operation = self.operations.pop(change.key)
        if operation is None:
            return
        self._landed(operation)
        if change.problem:
            self.operations[change.key] = operation.failed(change)
        else:
            _discard(self._of, change.key.split(":")[1], change.key)

    def asked_to_stop(self, job_id: str) -> bool:
        """Return True if a call of this daemon's was to suspend the job, whatever became of it."""
        return job_id in self._to_stop

    def forget_job(self, job_id: str) -> None:
        """Drop what is remembered of a job that Slurm has forgotten."""
        self._to_stop.discard(job_id)

    def forget(self, name: str) -> None:
        """Drop what failed for a node that is over."""
        for key in [key for key in self.of(name) if not self.operations[key].running]:
            del self.operations[key]
            _discard(self._of, name, key)

    def _landed(self, operation: Operation) -> None:
        kind = operation.key.split(":", 1)[0]
        if kind in _COUNTED:
            _discard(self._under_way, kind, operation.key)
        _discard(self._arriving, operation.host, operation.key)


def _add(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    table[name] = table.get(name, _NONE) | {key}


def _discard(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    known = table.get(name)
    if known is not None and key in known:
        if left := known - {key}:
            table[name] = left
        else:
            del table[name]


class PilotIndex:
    """Pilots that are sent on demand, and what their pool has said. Only the world changes it."""

    def __init__(self) -> None:
        self.pool = PoolPicture()
        self.told: dict[str, tuple[int, float]] = {}  # job -> restarts, and when its room goes
        self._jobs: dict[str, Job] = {}  # those that say to be ours, ended ones as well

    def of(self, user: str) -> list[Job]:
        """Return the user's pilots that Slurm shows, in order of their slots and numbers."""
        found = [job for job in self._jobs.values() if job.user == user]
        return sorted(found, key=lambda job: (slot_of(job.name, job.comment) or 0, job.raw_id))

    def put(self, job: Job) -> None:
        """Take in a new or changed job, if it is a pilot."""
        if slot_of(job.name, job.comment) is not None:
            self._jobs[job.id] = job

    def drop(self, job_id: str) -> None:
        """Forget a job."""
        self._jobs.pop(job_id, None)
        self.told.pop(job_id, None)


class Picture:
    """What is known now, to be read. Nobody but `World.apply` changes it."""

    def __init__(self) -> None:
        self.now_s = 0.0  # our time, which does not jump when somebody sets the machine's clock
        self.ahead_s = 0.0  # by so much it is ahead of that clock
        self.clock_moves: tuple[Move, ...] = ()  # how that clock was set, oldest first
        self.time_moves: tuple[Move, ...] = ()  # where our time of one daemon is not the next one's
        self.undo = UndoLog()
        self.nodes: dict[str, Node] = {}
        self.silent: dict[str, float] = {}  # nodes that do not answer Slurm, and since when
        self.job_index = JobIndex()
        self.jobs: Mapping[str, Job] = self.job_index.jobs
        self.hosts: dict[str, Host] = {}
        self.fleet = FleetIndex(self.undo)
        # By (host, name).
        self.instances: Mapping[tuple[str, str], Instance] = self.fleet.instances
        self.managed: Mapping[str, ManagedNode] = self.fleet.managed
        self.ready = ReadyIndex(self.undo)
        self.burst: set[str] = set()  # hosts that are no Slurm nodes
        self.claim_index = ClaimIndex(self.undo)
        self.claims: Mapping[str, HostAllocation] = self.claim_index.claims
        self.calls = CallIndex(self.undo)
        self.operations: Mapping[str, Operation] = self.calls.operations
        self.sources: dict[str, Source] = {}
        self.odd: set[str] = set()  # sources that show what is not believed
        self.barred: dict[str, str] = {}  # by what we are kept from acting, and why
        self.pilots = PilotIndex()
        self.doubts: Table[str, UncertainOutcome] = Table(self.undo)  # by managed node
        self.fleets: Table[str, Fleet] = Table(self.undo)  # orders by id
        self.machines: Table[str, JobMachines] = Table(self.undo)  # a job's own, by job
        # By job: its pinned nodes, as the call that did it named them; empty: taken away. Not kept for
        # the next daemon, which does it once more.
        self.pinned: Table[str, str] = Table(self.undo)
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
        # By node: when it was read, since when it is as it is, and when the latest of its jobs vanished.
        self._node_read, self._node_since, self._vanished_s = (dict[str, float]() for _ in range(3))

    # --- reading -------------------------------------------------------------------------------

    def jobs_on(self, node: str) -> list[Job]:
        """Return jobs that Slurm shows on a node, in order of their ids."""
        return self.job_index.on(node)

    def suspended_by_others(self, job: Job) -> bool:
        """Return True if this daemon saw the suspended job run before, and never asked for that itself."""
        return self.job_index.seen_to_halt(job) and not self.calls.asked_to_stop(job.id)

    def deleted(self, name: str, generation: int) -> bool:
        """Return True if a call of ours has deleted the node of this generation from Slurm."""
        return (name, generation) in self._deleted

    def vanished_on(self, node: str) -> tuple[HeldJob, ...]:
        """Return jobs that were on a node of ours and of which Slurm shows nothing any more."""
        return tuple(self._vanished.get(node, {}).values())

    def vanished_s(self, node: str) -> float:
        """Return when it was read of the latest such job of a node; 0 if there is none."""
        return self._vanished_s.get(node, 0.0) if node in self._vanished else 0.0

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance; more than one only while it moves."""
        return [place for place in self.fleet.places_of(name) if place.host in self.hosts]

    def host_of_node(self, node: str) -> str | None:
        """Return the host whose own Slurm node this is."""
        return self._host_of_node.get(node)

    def taken(self, host: str) -> bool:
        """Return True if a job has the host's own node, or was just given it, or a person closed it."""
        known = self.hosts.get(host)
        node = None if known is None else known.node
        return host in self.closed or self.job_index.any_on(node) or self.claim_index.any_on(host)

    def takers(self, host: str) -> tuple[str, ...]:
        """Return ids of the jobs that have, or were just given, the host's own node."""
        if not self.taken(host):
            return ()
        node = self.hosts[host].node if host in self.hosts else None
        holders = self.jobs_on(node) if node is not None else []
        found = {j.id for j in holders}
        # A hook knows an array task by its raw number only: 14 and 12_3 are one job.
        known = found | {str(j.raw_id) for j in holders}
        found.update(job_id for job_id in self.claim_index.on(host) if job_id not in known)
        return tuple(sorted(found))

    def inside(self, node: ManagedNode) -> bool:
        """Return True if it is within the allocation of its job, which has the host and runs now."""
        job = self.jobs.get(node.job) if node.inside else None
        if job is None or job.state is not JobState.RUNNING or "COMPLETING" in job.flags:
            return False
        own, known = self.machines.get(node.job), self.hosts.get(node.host)
        if job.restarts != own.restarts if own is not None else not named(job, node.name):
            return False
        return known is not None and known.node in job.nodes

    def surely_inside(self, node: ManagedNode) -> bool:
        """Return True if that was so after the latest job was given the host, as Slurm has shown."""
        known = self.hosts.get(node.host)
        if not self.inside(node) or known is None or known.node is None:
            return False
        read_s = self.node_read_s(known.node)
        return all(claim.since_s < read_s for claim in self.claims_on(node.host))

    def claims_on(self, host: str) -> list[HostAllocation]:
        """Return claims on the host."""
        return [self.claims[job_id] for job_id in self.claim_index.on(host)]

    def running(self, key: str) -> bool:
        """Return True if the operation is in flight."""
        operation = self.operations.get(key)
        return operation is not None and operation.running

    def arriving(self, host: str) -> bool:
        """Return True if an operation in flight, or one that failed and may yet have acted, may bring an
        instance onto this host's CPUs."""
        return self.calls.arriving(host) or any(host in d.hosts for d in self.doubts.values())

    def alone(self, hosts: Iterable[str]) -> bool:
        """Return True if nothing of ours is on these hosts or on its way to any of them."""
        if self.doubts:
            return False
        of_ours, arriving = self.fleet.any_on, self.calls.arriving
        return not any(of_ours(h) or arriving(h) or self.parents_starting(h) for h in hosts)

    def parents_starting(self, host: str) -> int:
        """Return how many guests run there, or are just being started, to become parents of clones."""
        known, calls = self.hosts.get(host), self.calls.of(host)
        running = [key for key in calls if key.startswith("MakeParent") and self.running(key)]
        return max(len(running), len(known.parents_starting) if known is not None and known.parents else 0)

    def busy(self, name: str) -> bool:
        """Return True if an operation of this node is in flight, or may have acted although it failed."""
        return self.calls.busy(name) or name in self.doubts

    def seen_s(self, kind: str, name: str) -> float:
        """Return when the subject was last read; 0 if never. Kinds: node, job, host, instance."""
        return self._seen.get((kind, name), 0.0)

    def node_since_s(self, name: str) -> float:
        """Since when the node looks as it does now, or is gone; 0 if it was never seen."""
        return self._node_since.get(name, 0.0)

    def node_read_s(self, name: str) -> float:
        """Return when the node and the jobs on it were last read, changed or not."""
        slurm = self.sources.get("slurm")
        return max(self._node_read.get(name, 0.0), slurm.seen_s if slurm else 0.0)

    def operations_of(self, name: str) -> list[Operation]:
        """Return operations of one node, in flight or failed, oldest first."""
        found = [self.operations[key] for key in self.calls.of(name)]
        return sorted(found, key=lambda operation: (operation.since_s, operation.key))

    @property
    def clock_s(self) -> float:
        """Return what the machine's clock says now."""
        return self.now_s - self.ahead_s

    def created_lately(self, within_s: float) -> int:
        """Return how many instances we began to make less than so long ago."""
        return self.fleet.created_since(self.now_s - within_s)

    def destroyed_lately(self, within_s: float) -> int:
        """Count the instances whose work was given up less than so long ago."""
        return self.fleet.destroyed_since(self.now_s - within_s)

    def source_read_s(self, source: str) -> float:
        """Return when the latest complete reading of Slurm, or of a host, began; 0: never."""
        known = self.sources.get(source)
        return 0.0 if known is None else known.seen_s

    def fresh(self, source: str, stale_after_s: float) -> bool:
        """Return True if the source was read, and not longer ago than that."""
        known = self.sources.get(source)
        if known is None or known.seen_s == 0.0:
            return False
        return self.now_s - known.seen_s <= stale_after_s
