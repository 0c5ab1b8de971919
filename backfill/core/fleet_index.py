"""What is ours as the world keeps it: managed nodes and instances, found by host and by name."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from backfill.core.fleet import Instance
from backfill.core.lifecycle import HeldJob, ManagedNode, Phase
from backfill.core.undo import Bag, Table, UndoLog

_REMEMBERED = 10_000  # creations
_NOBODY: frozenset[str] = frozenset()

T = TypeVar("T")


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
        self._left: list[float] = []  # when idle ones began to leave, sorted
        self._destroyed: list[tuple[float, str, int]] = []  # time, name, generation; sorted

    # --- reading -------------------------------------------------------------------------------

    def managed_on(self, host: str) -> list[ManagedNode]:
        """Managed nodes that are on the host or on their way to it, in order of their names."""
        return [self.managed[name] for name in sorted(self.names_on(host))]

    def names_on(self, host: str) -> frozenset[str]:
        """Their names."""
        return self._managed_on.get(host, _NOBODY)

    def holders(self, job_id: str) -> frozenset[str]:
        """Names of the nodes whose records name the job, or a component of it."""
        return self._holders.get(job_id.partition("+")[0], _NOBODY)

    def instances_on(self, host: str) -> list[Instance]:
        """Instances on a host, in order of their names."""
        return [self.instances[host, name] for name in sorted(self._instances_on.get(host, ()))]

    def instance_names_on(self, host: str) -> Iterable[str]:
        """Their names, in no order."""
        return self._instances_on.get(host, ())

    def any_on(self, host: str) -> bool:
        """Whether an instance or a managed node is on the host or on its way to it."""
        return bool(self._instances_on.get(host) or self._managed_on.get(host))

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance, in order of the hosts."""
        return [self.instances[host, name] for host in sorted(self._places.get(name, ()))]

    def first_seen_s(self, host: str, name: str) -> float:
        """When an instance was first seen on a host; 0 if it is not there."""
        return self._first_seen.get((host, name), 0.0)

    def created_since(self, since_s: float) -> int:
        """How many of the latest instances we began to make after `since_s`."""
        return len(self._created) - bisect_right(self._created, since_s)

    def created_after_s(self, since_s: float) -> float | None:
        """When we began to make the first of those after `since_s`."""
        at = bisect_right(self._created, since_s)
        return self._created[at] if at < len(self._created) else None

    def in_phase(self, phases: Iterable[Phase]) -> set[str]:
        """Names of the managed nodes in any of these phases."""
        return set().union(*(self._phases[phase] for phase in phases))

    def count_in(self, phases: Iterable[Phase]) -> int:
        """How many managed nodes are in any of these phases."""
        return sum(len(self._phases[phase]) for phase in phases)

    def left_since(self, since_s: float) -> int:
        """How many of the latest idle instances began to leave after `since_s`."""
        return len(self._left) - bisect_right(self._left, since_s)

    def created_back_s(self, count: int) -> float:
        """When the `count`-th last instance was begun; 0 if there were fewer."""
        return self._created[-count] if 0 < count <= len(self._created) else 0.0

    def begun_back_s(self, what: str, count: int) -> float:
        """When the `count`-th last instance of `host NAME` or `image NAME` was begun; or 0."""
        begun = self._begun.get(what, ())
        return begun[-count] if 0 < count <= len(begun) else 0.0

    def left_back_s(self, count: int) -> float:
        """When the `count`-th last idle instance began to leave; 0 if there were fewer."""
        return self._left[-count] if 0 < count <= len(self._left) else 0.0

    def destroyed_since(self, since_s: float) -> int:
        """The work on how many instances was given up after `since_s`."""
        return sum(1 for at_s, _, _ in reversed(self._destroyed) if at_s > since_s)

    def destroyed_after_s(self, since_s: float) -> float | None:
        """When that was done for the first time after `since_s`."""
        return next((at_s for at_s, _, _ in self._destroyed if at_s > since_s), None)

    # --- changing ------------------------------------------------------------------------------

    def manage(self, node: ManagedNode) -> None:
        """A managed node is new, or its record was replaced."""
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
        self.managed[node.name] = node

    def note(self, node: ManagedNode) -> None:
        """Fields of a record changed by which nothing is found."""
        self.managed[node.name] = node

    def destroyed(self, name: str, generation: int, at_s: float) -> None:
        """The work on an instance is given up; told twice it counts once."""
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
        """A managed node is over; unknown: nothing."""
        old = self.managed.pop(name)
        if old is not None:
            self._phases[old.phase].discard(name)
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
        """An instance was seen."""
        host, name = instance.host, instance.name
        self.instances[host, name] = instance
        self._first_seen.setdefault((host, name), seen_s)
        self._instances_on.setdefault(host, set()).add(name)
        self._places.setdefault(name, set()).add(host)

    def drop(self, host: str, name: str) -> None:
        """An instance is no longer where it was; unknown: nothing."""
        self.instances.pop((host, name), None)
        self._first_seen.pop((host, name), None)
        self._instances_on.get(host, set()).discard(name)
        self._places.get(name, set()).discard(host)


def _numbers(held: Iterable[HeldJob]) -> set[str]:
    ids = {h.id for h in held} | {limit.id for h in held if h.refused for limit in h.refused.limits}
    return {job_id.partition("+")[0] for job_id in ids}
