"""Room for a job's own machines: which idle instances make way for them at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from backfill.core.lending import forbidden
from backfill.core.model.company import Company
from backfill.core.model.fleet import Fleet, FleetState
from backfill.core.model.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.placement import shut_for_long
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import full, hour_over_s, present, unplaced
from backfill.core.reconcile.builder import PlanBuilder, members
from backfill.core.reconcile.making_room import seeking_room
from backfill.core.reconcile.orders import (
    all_begun,
    free_names,
    image_of_order,
    in_turn,
    may_have,
    need_of_member,
    places_on,
)
from backfill.core.reconcile.own_machines import lacks_room, passed_over_until_s


def idle_for_own(builder: PlanBuilder, idle: list[ManagedNode]) -> list[ManagedNode]:
    """Return which of `idle`, the longest idle first, make way at once for a job's own machines.

    They make way for the first order that this helps, and only if all of its members find room then;
    none of them could stay. Room that is just coming counts as free. The next order has its turn
    once these members are begun.
    """
    if not builder.world.fleets or not idle:
        return []
    builder.awaits(Topic.ROOM)
    builder.wake_at(hour_over_s(builder))
    if seeking_room(builder) or unplaced(builder):
        return []
    coming = frozenset(m.name for m in builder.world.managed.values() if _goes(builder, m))
    for fleet in _lacking_room(builder):
        lack = _Lack(builder, fleet, coming)
        if lack.met([]):
            return []
        if found := lack.fewest(idle):
            return found
    return []


def _lacking_room(builder: PlanBuilder) -> Iterator[Fleet]:
    """Yield orders for jobs that cannot be begun for want of room, as long as later ones may pass them."""
    for fleet in in_turn(builder):
        if not fleet.growing or fleet.hosts or all_begun(builder, fleet):
            continue
        if not lacks_room(builder, fleet):
            return
        yield fleet
        until_s = passed_over_until_s(builder, fleet)
        builder.wake_at(until_s)
        if fleet.state is not FleetState.WAITING or builder.now_s >= until_s:
            return


def _goes(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its room will be free in a moment: nothing on it has to end first."""
    if node.phase is Phase.REMOVING:
        return node.unconfirmed is None
    world = builder.world
    busy = world.jobs_on(node.name) or world.vanished_on(node.name)
    return node.phase is Phase.DRAINING and not busy


def _by_host(nodes: list[ManagedNode]) -> dict[str, list[ManagedNode]]:
    found: dict[str, list[ManagedNode]] = {}
    for node in nodes:
        found.setdefault(node.host, []).append(node)
    return found


class _Lack:
    """What an order of a job's own machines lacks, and who could give it.

    `coming`: names of nodes whose room is free in a moment.
    """

    def __init__(self, builder: PlanBuilder, fleet: Fleet, coming: frozenset[str]) -> None:
        there = members(builder, fleet)
        self._builder, self._fleet, self._coming = builder, fleet, coming
        self._missing = fleet.size - sum(1 for m in there if m.phase is not Phase.FAILED)
        self._new = fleet.size - len(fleet.members)  # of these so many have no name yet
        self._fellows = {m.host for m in there if m.phase not in ABSENT}
        self._names = sum(1 for _ in free_names(builder, fleet))
        self._found: dict[tuple[str, frozenset[str]], int] = {}  # by host, and who were gone from it

    def met(self, gone: list[ManagedNode]) -> bool:
        """Return True if all of them could be begun if these were gone."""
        there = {host: frozenset(m.name for m in nodes) for host, nodes in _by_host(gone).items()}
        return self._enough(there) and self._allowed(gone)

    def fewest(self, idle: list[ManagedNode]) -> list[ManagedNode]:
        """Return those of `idle` of which none could stay, on one host if that will do; none if in vain."""
        if not self.met(idle):
            return []
        best: list[ManagedNode] = []
        for there in _by_host(idle).values():
            if self._helps(there) and self.met(there):
                found = self._thinned(there)
                best = found if not best or len(found) < len(best) else best
            if len(best) == 1:
                break
        return best or self._thinned(idle)

    def _thinned(self, going: list[ManagedNode]) -> list[ManagedNode]:
        """Return those that have to go: the first of `going` rather than the last."""
        for node in reversed(going):
            others = [m for m in going if m is not node]
            if self.met(others):
                going = others
        return going

    def _helps(self, there: list[ManagedNode]) -> bool:
        """Return True if one more would fit on their host without them: cheap, as there may be many."""
        host = there[0].host
        return self._places(host, frozenset(m.name for m in there)) > self._places(host)

    def _enough(self, going: Mapping[str, frozenset[str]]) -> bool:
        """Return True if as many as are missing fit on all hosts, or on one, if these were gone from each."""
        others = (host for host in self._builder.policies.hosts if host not in going)
        found = 0
        for host in (*going, *others):
            places = self._places(host, going.get(host, frozenset()))
            found = max(found, places) if self._fleet.company is Company.TOGETHER else found + places
            if found >= self._missing:
                return True
        return False

    def _places(self, host: str, gone: frozenset[str] = frozenset()) -> int:
        """Return how many of those that are missing the host would take."""
        if (host, gone) not in self._found:
            self._found[host, gone] = self._count(host, self._coming | gone)
        return self._found[host, gone]

    def _count(self, host: str, without: Collection[str]) -> int:
        builder, fleet = self._builder, self._fleet
        company, pays_s = fleet.company, builder.policies.gaps.boot_pays_s
        apart = self._fellows and company and (host in self._fellows) is not (company is Company.TOGETHER)
        if apart or shut_for_long(builder.world, builder.policies, host, pays_s):
            return 0
        if forbidden(builder.world, builder.policies, host, need_of_member(builder, fleet)):
            return 0
        places = places_on(builder, fleet, host, without)
        if host in builder.world.kept:
            there = (m for m in builder.world.fleet.managed_on(host) if m.phase not in ABSENT)
            places = min(places, builder.world.kept[host][0] - sum(m.name not in without for m in there))
        return max(0, min(places, 1) if company is Company.SPREAD else places)

    def _allowed(self, gone: list[ManagedNode]) -> bool:
        """Return True if limits let so many be begun, and there are names for them."""
        builder, fleet = self._builder, self._fleet
        leaving = [*(builder.world.managed[name] for name in self._coming), *gone]
        left = present(builder.world) - sum(m.phase not in ABSENT for m in leaving)
        if left + self._missing > builder.policies.limits.max_instances:
            return False
        names = sum(1 for m in leaving if not m.fail and may_have(builder, fleet, m.name))
        if self._names + names < self._new:
            return False
        without = {m.name for m in leaving}
        image = image_of_order(builder, fleet)
        return full(builder, image, self._missing, fleet.flavour, without) is None
