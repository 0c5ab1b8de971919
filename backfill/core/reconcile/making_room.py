"""Which nodes make way for others: for stopped work that can hardly wait, and for a job's own machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from backfill.core.model.company import Company
from backfill.core.model.fleet import Fleet, FleetState
from backfill.core.model.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.placement import closed, count_on, open_hosts, shut_for_long, too_short
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import full, hour_over_s, present, unplaced
from backfill.core.reconcile.builder import PlanBuilder, kept_in_memory, ladder_of, members
from backfill.core.reconcile.course import in_vain, likely_to_end, may_end
from backfill.core.reconcile.own_machines import (
    all_begun,
    comes_first,
    free_names,
    image_of_order,
    in_turn,
    lacks_room,
    may_have,
    need_of_member,
    places_on,
)
from backfill.core.reconcile.pressure import is_free_for
from backfill.core.room import NOTHING_MORE, NodeNeed, forbidden, need_of, places_now, room

# So likely one of them ends in time: no more nodes than that are closed to new jobs.
_SURE = 0.9


# --- for stopped work ----------------------------------------------------------------------------


def seeking_room(builder: PlanBuilder) -> list[ManagedNode]:
    """Return stopped nodes whose jobs may not live to see their host free, and could go on elsewhere."""
    parked = (builder.world.managed[name] for name in sorted(builder.world.fleet.in_phase(Phase.PARKED)))
    return [node for node in parked if _seeks_room(builder, node)]


def _seeks_room(builder: PlanBuilder, node: ManagedNode) -> bool:
    if all(held.patience is None for held in node.held):
        return False
    builder.awaits(Topic.READING)
    stays = node.order is not None or node.condemned is not None or node.name in builder.world.closed
    if stays or is_free_for(builder, node) or not ladder_of(builder.policies, node).migrates:
        return False
    kept = kept_in_memory(builder.instance(node)) or builder.budget_full()
    return kept is None and in_vain(builder, node, node.held, doubtful=True) is not None


def idle_for_stopped(builder: PlanBuilder, idle: list[ManagedNode]) -> list[ManagedNode]:
    """Return which idle nodes have the room that stopped work needs, beyond those that go already."""
    needs = _lacking(builder, seeking_room(builder))
    longest = sorted(idle, key=lambda m: (m.idle_since_s or 0.0, m.name))
    return [m for m in longest if any(_fits_instead(builder, m, need) for need in needs)][: len(needs)]


def _lacking(builder: PlanBuilder, seeking: list[ManagedNode]) -> list[NodeNeed]:
    """Return what those need for whom no room is free, or just being left.

    One whose memory is on its way to disk moves only then: until it does, its room stays free.
    """
    if not seeking:
        return []
    builder.awaits(Topic.ROOM)
    world = builder.world
    taken, lacking = Counter[str](), list[NodeNeed]()
    for need in (need_of(world, builder.policies, node) for node in seeking):
        host = _host_for(builder, need, taken)
        if host is None:
            lacking.append(need)
        else:
            taken[host] += 1
    going = [world.managed[name] for name in world.fleet.in_phase(Phase.DRAINING, Phase.REMOVING)]
    return lacking[sum(1 for node in going if not builder.taken(node.host)) :]


def _host_for(builder: PlanBuilder, need: NodeNeed, taken: Counter[str]) -> str | None:
    """Return a host with a free place; `taken`: how many of its places others have."""
    world, policies = builder.world, builder.policies
    for host, _ in open_hosts(world, policies, policies.gaps.return_pays_s, need)[0]:
        if _places(builder, host, need) > taken[host]:
            return host
    return None


def _places(builder: PlanBuilder, host: str, need: NodeNeed = NOTHING_MORE) -> int:
    """Return how many such instances an open host has room for now."""
    world, policies = builder.world, builder.policies
    shape, most = need.shape or policies.instances.flavour.resources, policies.limits.max_per_host
    return min(places_now(world, host, policies, shape), most - count_on(world, host))


def none_left_for_new(builder: PlanBuilder) -> Reason | None:
    """Return that stopped work, perhaps still on its way to disk, will need all the room there is, if so."""
    seeking = seeking_room(builder)
    if not seeking:
        return None
    builder.awaits(Topic.ROOM)
    rooms, _ = open_hosts(builder.world, builder.policies, builder.policies.gaps.return_pays_s)
    places = sum(_places(builder, host) for host, _ in rooms)
    return None if places > len(seeking) else because(Code.ROOM_FOR_STOPPED, count=len(seeking))


def promised_rooms(builder: PlanBuilder) -> frozenset[str]:
    """Return names of nodes at work that take no new jobs: whose job ends first gives its room.

    Slurm would give it to the next job in its queue at once. Those that are closed already stay so, also
    once their job has ended: opened for a moment until it is let go, the node would get that job.
    """
    world = builder.world
    seeking = seeking_room(builder)
    needs = _lacking(builder, seeking)
    if not needs:
        return frozenset()
    builder.awaits(Topic.TIME)
    within_s = max(_left_s(builder, node) for node in seeking)
    likely: list[tuple[bool, float, str, float]] = []
    for name in world.fleet.in_phase(Phase.READY):
        node, seen = world.managed[name], world.nodes.get(name)
        if seen is None or not (world.job_index.any_on(name) or seen.drained_by_us):
            continue  # nobody's job there ends
        share, half_s = likely_to_end(builder, node, within_s)
        if share > 0.0 and any(_fits_instead(builder, node, need) for need in needs):
            likely.append((not seen.drained_by_us, half_s, name, share))
    found: list[str] = []
    shares: list[float] = []
    for *_, name, share in sorted(likely):
        if may_end(shares, len(needs)) >= _SURE:
            break
        found.append(name)
        shares.append(share)
    return frozenset(found)


def promised(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return that the node takes no new jobs because its room is for stopped work next, if so."""
    return because(Code.ROOM_PROMISED) if node.name in builder.world.queue.promised else None


def _left_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """Return for how long the jobs on a stopped node can still wait."""
    over_s = min(held.patience.over_s for held in node.held if held.patience is not None)
    return max(0.0, over_s - builder.now_s)


def _fits_instead(builder: PlanBuilder, node: ManagedNode, need: NodeNeed) -> bool:
    """Return True if what is needed would find room on the host of a node once that has gone."""
    world, policies = builder.world, builder.policies
    if node.job or node.fleet or need.functions or need.region_mb or need.network:
        return False  # somebody's own; or it takes more along than its CPUs and memory
    shut = closed(world, node.host, policies.limits)
    if shut or too_short(world, node.host, policies, policies.gaps.return_pays_s):
        return False
    there = room(world, node.host, policies) + policies.instances.flavour_of(node).resources
    shape = need.shape or policies.instances.flavour.resources
    return shape.cpus <= there.cpus and shape.memory_mb <= there.memory_mb


# --- for a job's own machines --------------------------------------------------------------------


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
        if fleet.state is not FleetState.WAITING or comes_first(builder, fleet):
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
