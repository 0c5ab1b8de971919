"""The tables of what steps of ours change: they can be put back, since a plan tries its steps on the world.

Each is found by more than one key. Only the world changes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from backfill.core.model.fleet import STILL, Instance
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import ABSENT, HeldJob, ManagedNode, Phase
from backfill.core.model.operations import (
    AlreadySuspended,
    HostAllocation,
    Operation,
    OperationDone,
    OperationStarted,
)
from backfill.core.undo import Bag, Table, Tally, UndoLog

T = TypeVar("T")


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
        self._still: dict[tuple[str, str], float] = {}  # since when those stand still that do
        self._created: list[float] = []  # sorted
        self._begun: dict[str, list[float]] = {}  # the same of each host and image
        self._phases: dict[Phase, Bag[str]] = {phase: Bag(log) for phase in Phase}
        self.booting: Tally[Making] = Tally(log)  # how many are being made, by image and devices
        self.booted: Table[Making, float] = Table(log)  # when the latest boot of its kind made one ready
        self.suspected: Bag[str] = Bag(log)  # names of those against whose work something was found
        self._left: list[float] = []  # when idle ones began to leave, sorted
        self._destroyed: list[tuple[float, str, int]] = []  # time, name, generation; sorted

    # --- reading -------------------------------------------------------------------------------

    def managed_on(self, host: str) -> list[ManagedNode]:
        """Return managed nodes that are on the host or on their way to it, in order of their names."""
        return [self.managed[name] for name in in_order(self._managed_on.get(host, ()))]

    def names_on(self, host: str) -> frozenset[str]:
        """Their names."""
        return self._managed_on.get(host, _NOBODY)

    def holders(self, job_id: str) -> frozenset[str]:
        """Return names of the nodes whose records name the job, or a component of it."""
        return self._holders.get(job_id.partition("+")[0], _NOBODY)

    def instances_on(self, host: str) -> list[Instance]:
        """Instances on a host, in order of their names."""
        return [self.instances[host, name] for name in in_order(self._instances_on.get(host, ()))]

    def all_names_on(self, host: str) -> Collection[str]:
        """Return names of the instances and managed nodes on the host or on their way to it, in no order."""
        ours, there = self.names_on(host), self._instances_on.get(host, _NOBODY)
        return ours if there <= ours else ours | there

    def any_on(self, host: str) -> bool:
        """Return True if an instance or a managed node is on the host or on its way to it."""
        return bool(self._instances_on.get(host) or self._managed_on.get(host))

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance, in order of the hosts."""
        return [self.instances[host, name] for host in in_order(self._places.get(name, ()))]

    def first_seen_s(self, host: str, name: str) -> float:
        """Return when an instance was first seen on a host; 0 if it is not there."""
        return self._first_seen.get((host, name), 0.0)

    def still_since_s(self, host: str, name: str) -> float | None:
        """Return since when an instance has stood still at the latest; None: it runs, or is not there."""
        return self._still.get((host, name))

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
        if (old is None or old.generation != node.generation) and not _was_found(node):
            self._begin(node)
        if node.phase is Phase.DRAINING and (old is None or old.phase is not Phase.DRAINING):
            self._insert(self._left, node.since_s)
        before = () if old is None else old.hosts
        if before != node.hosts:
            self._leave(node.name, before)
            for host in node.hosts:
                self._managed_on[host] = self.names_on(host) | {node.name}
        if old is None or old.phase is not node.phase:
            self._note_phase(None if old is None else old.phase, node)
        if (() if old is None else old.held) != node.held:
            self._hold(node.name, () if old is None else old.held, node.held)
        (self.suspected.discard if node.suspicion is None else self.suspected.add)(node.name)
        self._count(old, node)
        self.managed[node.name] = node

    def _note_phase(self, before: Phase | None, node: ManagedNode) -> None:
        if before is not None:
            self._phases[before].discard(node.name)
        kind = making(node)
        if before is Phase.BOOTING and node.phase is Phase.READY:
            self.booted[kind] = node.since_s
        elif before is None and node.phase is not Phase.BOOTING and node.phase not in ABSENT:
            # Read from the journal, or taken over: it has come out of its boot, after this.
            self.booted[kind] = max(node.created_s, self.booted.get(kind, 0.0))
        self._phases[node.phase].add(node.name)

    def _count(self, before: ManagedNode | None, after: ManagedNode | None) -> None:
        old, new = _kind_made(before), _kind_made(after)
        if old == new:
            return
        if old is not None:
            self.booting.discard(old)
        if new is not None:
            self.booting.add(new)

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
        forgotten = times[:-_REMEMBERED]
        del times[:-_REMEMBERED]
        if self._log.on:
            self._log.note(partial(_take_out, times, at, forgotten))

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
        known = self.instances.get((host, name), instance)
        self.instances[host, name] = instance
        if instance.state not in STILL or known.tag != instance.tag:
            self._still.pop((host, name), None)
        self._first_seen.setdefault((host, name), seen_s)
        self._instances_on.setdefault(host, set()).add(name)
        self._places.setdefault(name, set()).add(host)

    def stands_still(self, host: str, name: str, by_s: float) -> None:
        """Note that one is known by then to stand still."""
        self._still.setdefault((host, name), by_s)

    def drop(self, host: str, name: str) -> None:
        """Drop an instance that is no longer where it was; unknown: nothing."""
        self._still.pop((host, name), None)
        self.instances.pop((host, name), None)
        self._first_seen.pop((host, name), None)
        self._instances_on.get(host, set()).discard(name)
        self._places.get(name, set()).discard(host)


def _take_out(times: list[T], at: T, forgotten: list[T]) -> None:
    """Put what was forgotten for a moment back, and take that out."""
    times[:0] = forgotten
    times.remove(at)


def in_order(names: Collection[str]) -> Iterable[str]:
    """Return them in order; there is nearly always one at most."""
    return sorted(names) if len(names) > 1 else names


def _kind_made(node: ManagedNode | None) -> Making | None:
    """Return what is being made, if it is for whoever comes."""
    if node is None or node.phase is not Phase.BOOTING or node.job:
        return None
    return making(node)


def making(node: ManagedNode) -> Making:
    """Return of what kind a node is, or was to become."""
    return node.image, node.devices


def _was_found(node: ManagedNode) -> bool:
    """Return True if the first record of an instance is of one that was there: nobody began it now."""
    return node.found or (node.inside and node.phase is not Phase.BOOTING and node.since_s == node.created_s)


def _numbers(held: Iterable[HeldJob]) -> set[str]:
    ids = {h.id for h in held} | {limit.id for h in held if h.refused for limit in h.refused.limits}
    return {job_id.partition("+")[0] for job_id in ids}


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

    def drop(self, job_id: str, hosts: Collection[str]) -> None:
        """Drop a claim that is over, or these hosts of it, where some are named; unknown: nothing."""
        if hosts and (known := self.claims.get(job_id)) is not None:
            self.put(known.without(hosts))
            return
        self._leave(job_id)
        self.claims.pop(job_id)

    def _leave(self, job_id: str) -> None:
        old = self.claims.get(job_id)
        for node in old.nodes if old is not None else ():
            _discard(self._at, node, job_id)
        for host in old.hosts if old is not None else ():
            self._on[host] = tuple(other for other in self._on.get(host, ()) if other != job_id)


# Kinds of operations of which those in flight are counted.
_COUNTED = frozenset({"RequeueJob", "SuspendInstance", "SubmitPilot", "MakeParent"})


# Kinds that suspend a job in Slurm, and the one that lets it go on; the key ends with its id.
_SUSPENDING = frozenset({"SuspendJob", "KickJob"})
_RESUMING = "ResumeJob"


class CallIndex:
    """All operations, those of one node, and what arrives on one host. Only the world changes it.

    The key of an operation names its node between the first and the second colon.
    """

    def __init__(self, log: UndoLog) -> None:
        self.operations: Table[str, Operation] = Table(log)
        self._of: Table[str, frozenset[str]] = Table(log)  # node -> keys
        self._under_way: Table[str, frozenset[str]] = Table(log)  # kind -> keys of those in flight
        self._arriving: Table[str, frozenset[str]] = Table(log)  # host -> keys of those in flight onto it
        # By job: keys of the calls that may have suspended it since it last went on.
        self._to_stop: Table[str, frozenset[str]] = Table(log)

    def of(self, name: str) -> Iterable[str]:
        """Return keys of a node's operations, in flight or failed, in no order."""
        return self._of.get(name, ())

    def all_of(self, name: str) -> list[Operation]:
        """Return a node's operations, in flight or failed, oldest first."""
        found = [self.operations[key] for key in self.of(name)]
        return sorted(found, key=lambda operation: (operation.since_s, operation.key))

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
        attempts, finals = (old.attempts, old.finals) if old is not None else (0, 0)
        operation = Operation(change.key, change.host, True, change.at_s, attempts, finals=finals)
        self.operations[change.key] = operation
        kind, name, _ = change.key.split(":", 2)
        _add(self._of, name, change.key)
        if kind in _COUNTED:
            _add(self._under_way, kind, change.key)
        if kind in _SUSPENDING:
            _add(self._to_stop, change.key.rpartition(":")[2], change.key)
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
            return
        kind, name, *_, last = change.key.split(":")
        _discard(self._of, name, change.key)
        if kind == _RESUMING:
            for key in self._to_stop.get(last, _NONE) - self.operations.keys():
                _discard(self._to_stop, last, key)

    def found_suspended(self, change: AlreadySuspended) -> bool:
        """Note that a call came too late; return True if no other one of ours can have suspended the job.

        A second try may have come after its own first.
        """
        operation = self.operations.get(change.key)
        if operation is not None and operation.attempts == 0:
            _discard(self._to_stop, change.job_id, change.key)
        return not self.asked_to_stop(change.job_id)

    def asked_to_stop(self, job_id: str) -> bool:
        """Return True if a call of this daemon's may have suspended the job since it last went on."""
        return job_id in self._to_stop

    def forget_job(self, job_id: str) -> None:
        """Drop what is remembered of a job that Slurm has forgotten."""
        self._to_stop.pop(job_id)

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


Place = tuple[float, str]  # in the queue: since when, and the job


class MachineIndex:
    """What jobs have as their own, or wait for. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self.machines: Table[str, JobMachines] = Table(log)  # by job
        # How many were ordered for the jobs of each user; None: for those of all.
        self._ordered: Table[str | None, int] = Table(log)
        self._waiting: dict[str, Bag[str]] = {}  # by user: jobs for which nothing was ordered yet
        self._parts: Table[str, frozenset[str]] = Table(log)  # job -> ids of its components
        self._queue: list[Place] = []  # of those whose turn is by when they came, sorted
        self._first: dict[int, JobMachines | None] = {}  # by that limit, as far as it was asked for

    # --- reading -------------------------------------------------------------------------------

    def ordered(self, user: str | None = None) -> int:
        """Count the machines that belong to jobs, or to those of one user."""
        return self._ordered.get(user, 0)

    def waiting_of(self, user: str) -> Bag[str]:
        """Return the user's jobs for which nothing was ordered yet."""
        return self._waiting.get(user) or Bag(self._log)

    def fellows(self, job_id: str) -> list[JobMachines]:
        """Return what the other components of a heterogeneous job are to have."""
        leader, plus, _ = job_id.partition("+")
        parts = sorted(self._parts.get(leader, ())) if plus else ()
        return [self.machines[part] for part in parts if part != job_id]

    def lacking(self, own: JobMachines) -> int:
        """Count these and those of its fellows for which nothing was ordered: they begin together."""
        return own.size + sum(other.size for other in self.fellows(own.job) if not other.fleet)

    def first(self, most_per_user: int) -> JobMachines | None:
        """Return who has waited longest of those whose owners may have as many more; 0: any number."""
        if most_per_user not in self._first:
            self._first[most_per_user] = self._find_first(most_per_user)
        return self._first[most_per_user]

    def _find_first(self, most: int) -> JobMachines | None:
        for _, job_id in self._queue:
            own = self.machines[job_id]
            if not most or self.ordered(own.user) + self.lacking(own) <= most:
                return own
        return None

    # --- changing ------------------------------------------------------------------------------

    def put(self, own: JobMachines) -> None:
        """Take in what a job is to have, or a new record of it."""
        old = self.machines.get(own.job)
        self.machines[own.job] = own
        self._note(old, own)

    def drop(self, job_id: str) -> None:
        """Forget what a job had; unknown: nothing."""
        if (old := self.machines.pop(job_id)) is not None:
            self._note(old, None)

    def _note(self, before: JobMachines | None, after: JobMachines | None) -> None:
        self._first.clear()
        if self._log.on:
            self._log.note(self._first.clear)
        if before is not None:
            self._count(before, -1)
            self._leave(before, for_good=after is None)
        if after is not None:
            self._count(after, 1)
            self._join(after)

    def _count(self, own: JobMachines, sign: int) -> None:
        for key in (None, own.user) if own.fleet else ():
            self._ordered[key] = self.ordered(key) + sign * own.size

    def _leave(self, own: JobMachines, *, for_good: bool) -> None:
        if _waits(own):
            self._waiting[own.user].discard(own.job)
            if not own.inside:
                self._move((own.queued_s, own.job), there=False)
        leader, plus, _ = own.job.partition("+")
        if plus and for_good:
            self._parts[leader] = self._parts[leader] - {own.job}

    def _join(self, own: JobMachines) -> None:
        if _waits(own):
            self._waiting.setdefault(own.user, Bag(self._log)).add(own.job)
            if not own.inside:
                self._move((own.queued_s, own.job), there=True)
        leader, plus, _ = own.job.partition("+")
        if plus:
            self._parts[leader] = self._parts.get(leader, frozenset()) | {own.job}

    def _move(self, place: Place, *, there: bool) -> None:
        if self._log.on:
            self._log.note(partial(self._put_back, place, there=not there))
        self._put_back(place, there=there)

    def _put_back(self, place: Place, *, there: bool) -> None:
        if there:
            insort(self._queue, place)
        else:
            del self._queue[bisect_left(self._queue, place)]


def _waits(own: JobMachines) -> bool:
    return own.waits and not own.fleet


def _add(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    table[name] = table.get(name, _NONE) | {key}


def _discard(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    known = table.get(name)
    if known is not None and key in known:
        if left := known - {key}:
            table[name] = left
        else:
            del table[name]
