"""Where instances may go: which hosts are open, for how long, and which of them comes first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from math import inf, nextafter
from typing import TypeVar

from backfill.core.model.cluster import Node, NodeBase, end_s
from backfill.core.model.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Reason, Words, because, limit, step_failed
from backfill.core.picture import Picture, stale, waits_for_fellows
from backfill.core.policies.limits import Limits
from backfill.core.policies.spread import Order
from backfill.core.policy import PolicySet
from backfill.core.queue import Touched, again_s
from backfill.core.room import (
    NOTHING_MORE,
    NodeNeed,
    forbidden,
    host_full,
    never,
    no_memory,
    numa_full,
    places_ever,
    room,
)

# In Slurm's long words. PLANNED is among them only where it is not known for when.
_POWER_FLAGS = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"})
_SHUT_FLAGS = frozenset({"MAINTENANCE", "RESERVED", "REBOOT_REQUESTED", "FAIL"}) | _POWER_FLAGS


# Why nothing more may come to a host that is in service all the same.
_IN_SERVICE = frozenset({Code.HOST_TAKEN, Code.HOST_FULL, Code.NUMA_FULL, Code.LIMIT, Code.GAP})


_MOST_ASKS = 6  # so many different demands on a host are kept


_MOST_WANTS = 50  # and so many of orders


def out_of_reach(world: Picture, host: str, limits: Limits) -> Reason | None:
    """Return why nothing may be made on `host` now, whoever has it, if nothing may."""
    known = world.hosts.get(host)
    if known is None:
        return because(Code.HOST_UNSEEN, host=host)
    if not known.reachable:
        return because(Code.HOST_UNREACHABLE, host=host, said=Words(known.problem))
    old = stale(world, host, limits)
    if old:
        return old
    if host in world.closed:
        return because(Code.CLOSED, subject=host, said=Words(world.closed[host]))
    return None


def closed(
    world: Picture, host: str, limits: Limits, node: ManagedNode | None = None, *, beside: bool = False
) -> Reason | None:
    """Return why no instance may come to `host` now, if none may; or that of this node go on there.

    `beside`: there is room for it beside the jobs that have the host.
    """
    why = out_of_reach(world, host, limits)
    if why is not None or (node is not None and world.inside(node)):
        return why
    if not beside and (takers := world.takers(host)):
        return because(Code.HOST_TAKEN, host=host, jobs=tuple(takers))
    return _shut(world, host, beside=beside)


def _shut(world: Picture, host: str, *, beside: bool) -> Reason | None:
    """Return why the host's own Slurm node forbids company, or company beside its jobs, if it does."""
    node_name = world.hosts[host].node
    if node_name is None:
        return None
    node = world.nodes.get(node_name)
    if node is None:
        return because(Code.NODE_UNKNOWN, host=host, node=node_name)
    planned = "PLANNED" in node.flags and not node.planned_s
    bases = (NodeBase.IDLE, NodeBase.MIXED) if beside else (NodeBase.IDLE,)
    if node.base not in bases or node.drained or planned or node.flags & _SHUT_FLAGS:
        said = Words(node.reason)
        return because(Code.NODE_SHUT, node=node_name, state=node.state_text, said=said)
    return None


def too_short(world: Picture, host: str, policies: PolicySet, pays_s: float) -> Reason | None:
    """Return why the time until the host is wanted again is not worth it, if it is not."""
    node = node_of(world, host)
    if node is None or not (node.planned_s or node.maintenance_s):
        return None  # nothing is known, which is so nearly always
    if node.maintenance_s and world.now_s >= policies.gaps.clear_at_s(node.maintenance_s):
        return because(Code.HOST_MAINTENANCE, host=host)
    why = policies.gaps.too_short(world.now_s, wanted_again_s(node), pays_s)
    return because(Code.GAP, host=host, why=why) if why else None


def count_on(world: Picture, host: str) -> int:
    """Count our nodes that are on a host or on their way to it."""
    return sum(1 for m in world.fleet.managed_on(host) if m.phase not in ABSENT)


def booting_on(world: Picture, host: str) -> int:
    """Count our nodes that are being made on a host, without those that only wait for their fellows."""
    booting = (m for m in world.fleet.managed_on(host) if m.phase is Phase.BOOTING)
    return sum(1 for m in booting if not waits_for_fellows(world, m))


def _enough(world: Picture, host: str, policies: PolicySet) -> Reason | None:
    """Return why no further instance may come however much room there is, if none may."""
    count, most = count_on(world, host), policies.limits.max_per_host
    if count >= most:
        return limit("limits.max_per_host", most, host)
    if booting_on(world, host) >= policies.cloning.at_once_per_host:
        most = policies.cloning.at_once_per_host
        return limit("cloning.at_once_per_host", most, host)
    if host in world.kept and count >= world.kept[host][0]:
        keep, said = world.kept[host]
        return because(Code.HOST_KEEPS, host=host, most=keep, said=Words(said))
    return None


Room = tuple[str, Resources]  # a host and what is left on it
Ask = tuple[float, Resources]  # for how long a host must not be wanted, and what an instance takes
Look = tuple[Resources | Reason, float]  # what is left on a host or why nobody may come; until when
Want = tuple[Resources, NodeNeed]  # the shape of an order's members, and what each takes besides
Opening = tuple[float, float]  # from when a host counts as open soon; until when that holds
Found = TypeVar("Found")
_ANY_NUMBER = 1_000_000
Rank = tuple[float, int, int]  # what the policy goes by, the lowest first; and the host's place in the file


def find_host(
    world: Picture,
    policies: PolicySet,
    pays_s: float,
    *,
    skip: str = "",
    need: NodeNeed = NOTHING_MORE,
    slow: Callable[[str], Reason | None] | None = None,
) -> tuple[str | None, dict[str, Reason]]:
    """Return the host that the policy prefers for one more instance; or None, and why, for each host.

    Hosts that have to prove themselves come last: with the most room, a broken one would have each try to
    itself, and with it those that show whether an image is well.

    `pays_s`: for so long the host must not be wanted again, as far as that is known. `skip` is no
    candidate. `slow` says why a host with room has to wait all the same, if it has.
    """
    rooms, ask = rooms_of(world, policies), _ask(policies, pays_s, need)
    barred: dict[str, Reason] = {}
    on_trial = partial(policies.readiness.on_trial, world.streaks)

    def is_open(found: Room) -> bool:
        host = found[0]
        if host == skip:
            return False
        bar = _lacks(world, policies, found, need)
        if bar is None and slow is not None:
            bar = slow(host)
        if bar is not None:
            barred[host] = bar
        return bar is None

    if policies.placement.order is Order.RANDOM:
        every = [found for found in rooms.open(world, ask) if is_open(found)]
        sound = [found for found in every if not on_trial(found[0])]
        host = policies.placement.draw(sound or every) if every else None
    else:
        names = (name for name, left in rooms.preferred(world, ask) if is_open((name, left)))
        host = _first(names, on_trial)
    if host is not None:
        return host, {}
    closed_ = rooms.closed(world, ask)
    return None, {
        **{name: why for name, why in closed_.items() if name != skip},
        **{name: barred[name] for name in policies.hosts if name in barred},
    }


def _first(names: Iterable[str], last: Callable[[str], bool]) -> str | None:
    """Return the first of these that is not to come last; else the first one; None: there is none."""
    found: str | None = None
    for name in names:
        if not last(name):
            return name
        found = found or name
    return found


def _ask(policies: PolicySet, pays_s: float, need: NodeNeed) -> Ask:
    return pays_s, need.shape or policies.instances.flavour.resources


def open_hosts(
    world: Picture, policies: PolicySet, pays_s: float, need: NodeNeed = NOTHING_MORE
) -> tuple[list[Room], dict[str, Reason]]:
    """Return all hosts with room in the order of the policy file, and for every other host why not."""
    rooms, ask = rooms_of(world, policies), _ask(policies, pays_s, need)
    open_, barred = rooms.open(world, ask), rooms.closed(world, ask)
    if need.particular:
        of_all = ((name, never(world.hosts[name], need, ask[1], policies)) for name, _ in open_)
        barred |= {name: why for name, why in of_all if why is not None}
    return [(name, left) for name, left in open_ if name not in barred], barred


def others_serve(world: Picture, policies: PolicySet, host: str, pays_s: float) -> bool:
    """Return True if any other host is in service: it has room, or lacks only that."""
    there = rooms_of(world, policies).in_service(world, _ask(policies, pays_s, NOTHING_MORE))
    return len(there) > (host in there)


def why_not_on(
    world: Picture, policies: PolicySet, host: str, pays_s: float, need: NodeNeed = NOTHING_MORE
) -> Reason | None:
    """Return why no further instance may come to the host, if none may."""
    found = rooms_of(world, policies).looks(world, _ask(policies, pays_s, need))[host][0]
    return found if isinstance(found, Reason) else _lacks(world, policies, (host, found), need)


def _lacks(world: Picture, policies: PolicySet, found: Room, need: NodeNeed) -> Reason | None:
    """Return what a host with room cannot give, if there is anything."""
    if not need.particular:
        return None
    host, left = found
    shape = need.shape or policies.instances.flavour.resources
    beside = left - shape
    few = never(world.hosts[host], need, shape, policies) or forbidden(world, policies, host, need)
    return few or no_memory(world, host, need.job, need.region_mb, beside)


class Rooms:
    """What new instances would find on every host, looked at again only where something changed."""

    def __init__(self, policies: PolicySet) -> None:
        self.policies = policies
        self.hosts = Touched()
        self.until_s = inf  # until then time changes nothing
        self._place = {host: place for place, host in enumerate(policies.hosts)}
        self.has_news = False  # found since `news` was asked; hosts that are still touched may bring more
        # Who asked what is not kept any more: each host, and when time alone may make a difference about it.
        self._unkept: dict[str, float] = {}
        self._looks: dict[Ask, dict[str, Look]] = {}  # by what is asked of a host
        self._ranks: dict[Ask, dict[str, Rank]] = {}  # of hosts with room
        self._sorted: dict[Ask, list[Rank]] = {}  # the same, the best first
        self._serving: dict[Ask, set[str]] = {}  # hosts in service
        self._openings = _Openings(policies)

    def forget(self) -> None:
        """Anything may have changed."""
        self.hosts.touched.update(self.policies.hosts)

    def looks(self, world: Picture, ask: Ask) -> dict[str, Look]:
        """Return what was found on each host, in the order of the policy file."""
        self._refresh(world)
        if ask not in self._looks:
            for old in list(self._looks)[:-_MOST_ASKS]:
                self._drop(old)
            found = {host: self._look(world, ask, host) for host in self.policies.hosts}
            looks = {host: look for host, (look, _) in found.items()}
            ranks = {host: rank for host, (_, rank) in found.items() if rank is not None}
            self._looks[ask], self._ranks[ask] = looks, ranks
            self._sorted[ask] = sorted(ranks.values())
            self._serving[ask] = {host for host, look in looks.items() if _serves(look)}
            self.until_s = min(self.until_s, *(until_s for _, until_s in looks.values()), inf)
        return self._looks[ask]

    def _drop(self, ask: Ask) -> None:
        for host, (_, until_s) in self._looks[ask].items():
            self._unkept[host] = min(until_s, self._unkept.get(host, inf))
        del self._looks[ask], self._ranks[ask], self._sorted[ask], self._serving[ask]

    def open(self, world: Picture, ask: Ask) -> list[Room]:
        """Return hosts with room, in the order of the policy file."""
        looks = self.looks(world, ask)
        return [(host, found) for host, (found, _) in looks.items() if not isinstance(found, Reason)]

    def closed(self, world: Picture, ask: Ask) -> dict[str, Reason]:
        """Return why no instance may come to the others."""
        looks = self.looks(world, ask)
        return {host: found for host, (found, _) in looks.items() if isinstance(found, Reason)}

    def in_service(self, world: Picture, ask: Ask) -> Collection[str]:
        """Return hosts that have room, or lack only that."""
        self.looks(world, ask)
        return self._serving[ask]

    def preferred(self, world: Picture, ask: Ask) -> Iterator[Room]:
        """Yield hosts with room, those first that the policy prefers."""
        looks, hosts = self.looks(world, ask), self.policies.hosts
        for *_, place in self._sorted[ask]:
            left = looks[hosts[place]][0]
            assert isinstance(left, Resources)
            yield hosts[place], left

    def places_soon(self, world: Picture, want: Want) -> tuple[list[int], float]:
        """Return how many such members each host that is open soon would carry if nothing were on it;
        and when more hosts are open soon, as far as time alone tells."""
        self._refresh(world)
        self.until_s = min(self.until_s, self._openings.begin(world))
        return self._openings.places(world, want)

    def places_ever(self, world: Picture, want: Want) -> list[int]:
        """Return how many such members each host would carry if nothing were on it, whoever has it now.

        Where that cannot be told it is any number: no order shall be refused for good for a defect.
        """
        self._refresh(world)
        places = self._openings.places_on(world, want, self.policies.hosts)
        return [_ANY_NUMBER if many is None else many for many in places]

    def news(self, world: Picture) -> bool:
        """Return True if somebody may find another room somewhere than when this was asked before.

        From now on these count as told: whoever waits for room asks anew.
        """
        self._refresh(world)
        news, self.has_news = self.has_news, False
        if news:
            self._unkept.clear()
        return news

    def _refresh(self, world: Picture) -> None:
        """Look again where something has changed."""
        if not self.hosts.touched:
            return
        hosts = self.hosts.taken()
        self.has_news = self.has_news or not hosts.isdisjoint(self._unkept)
        for ask, looks in self._looks.items():
            for host in hosts & looks.keys():
                old, (new, rank) = looks[host], self._look(world, ask, host)
                looks[host] = new
                self.has_news = self.has_news or old[0] != new[0]
                self.until_s = min(self.until_s, new[1])
                self._sort(ask, host, rank)
                (self._serving[ask].add if _serves(new) else self._serving[ask].discard)(host)
        news, until_s = self._openings.look_again(world, hosts)
        self.has_news, self.until_s = self.has_news or news, min(self.until_s, until_s)

    def _look(self, world: Picture, ask: Ask, host: str) -> tuple[Look, Rank | None]:
        """Return what is found on the host, and its rank if it has room."""

        def look() -> tuple[Look, Rank | None]:
            found = _look(self.policies, ask, host, world)
            if isinstance(found[0], Reason):
                return found, None
            rank = self.policies.placement.rank(found[0], world.hosts[host].busy)
            return found, (*rank, self._place[host])

        again = again_s(world.now_s)
        return _sparing(world, host, look, lambda error: ((step_failed(error, host), again), None))

    def _sort(self, ask: Ask, host: str, new: Rank | None) -> None:
        ranks, every = self._ranks[ask], self._sorted[ask]
        old = ranks.pop(host, None)
        if new is not None:
            ranks[host] = new
        if old != new:
            if old is not None:
                del every[bisect_left(every, old)]
            if new is not None:
                insort(every, new)

    def find_due(self, now_s: float) -> None:
        """Look again at hosts of which time alone may have made a difference."""
        if now_s < self.until_s:
            return
        every = [*self._openings.moments(), *self._unkept.items()]
        for looks in self._looks.values():
            every += ((host, until_s) for host, (_, until_s) in looks.items())
        self.hosts.touched.update(host for host, until_s in every if now_s >= until_s)
        self.until_s = min((until_s for _, until_s in every if until_s > now_s), default=inf)


class _Openings:
    """Which hosts are open soon, and what each would carry; nothing until an order asks."""

    def __init__(self, policies: PolicySet) -> None:
        self.policies = policies
        self._found: dict[str, Opening] = {}
        self._soon: list[str] = []  # hosts that are open soon
        self._more_s = -inf  # from when there are more of them
        self._places: dict[Want, dict[str, int | None]] = {}
        self._unkept = False  # what some orders want is not kept any more

    def moments(self) -> Iterator[tuple[str, float]]:
        """Yield each host, and when time alone may make a difference about it."""
        return ((host, until_s) for host, (_, until_s) in self._found.items())

    def begin(self, world: Picture) -> float:
        """Look at all hosts if none was looked at yet; return until when time changes nothing then."""
        if self._found:
            return inf
        self._found = {host: self._opening(world, host) for host in self.policies.hosts}
        return min((until_s for _, until_s in self._found.values()), default=inf)

    def places(self, world: Picture, want: Want) -> tuple[list[int], float]:
        """Return what `Rooms.places_soon` tells."""
        if world.now_s >= self._more_s:
            self._soon = [host for host, (soon_s, _) in self._found.items() if soon_s <= world.now_s]
            later = (soon_s for soon_s, _ in self._found.values() if soon_s > world.now_s)
            self._more_s = min(later, default=inf)
        return [many or 0 for many in self.places_on(world, want, self._soon)], self._more_s

    def places_on(self, world: Picture, want: Want, hosts: Sequence[str]) -> list[int | None]:
        """Return how many such members each of these would carry if nothing were on it; None: unknown."""
        if want not in self._places and len(self._places) == _MOST_WANTS:
            self._places.clear()
            self._unkept = True
        known = self._places.setdefault(want, {})
        for host in hosts if len(known) < len(self.policies.hosts) else ():
            if host not in known:
                known[host] = self._places_ever(world, host, want)
        return [known[host] for host in hosts]

    def look_again(self, world: Picture, hosts: set[str]) -> tuple[bool, float]:
        """Look at these once more; return whether that matters to an order, and until when it holds."""
        news, until_s = self._unkept, inf
        self._unkept = False
        for host in hosts & self._found.keys():
            old, new = self._found[host], self._opening(world, host)
            self._found[host], until_s = new, min(until_s, new[1])
            if old[0] != new[0]:
                news, self._more_s = True, -inf
        for want, known in self._places.items():
            for host in hosts & known.keys():
                old_places, known[host] = known[host], self._places_ever(world, host, want)
                news = news or known[host] != old_places
        return news, until_s

    def _opening(self, world: Picture, host: str) -> Opening:
        look = partial(_opening, self.policies, host, world)
        return _sparing(world, host, look, lambda _: (inf, again_s(world.now_s)))

    def _places_ever(self, world: Picture, host: str, want: Want) -> int | None:
        look = partial(places_ever, world, self.policies, host, *want)
        return _sparing(world, host, look, lambda _: None)


def rooms_of(world: Picture, policies: PolicySet) -> Rooms:
    """Return what new instances would find under these policies."""
    rooms = world.queue.rooms
    if rooms is None or rooms.policies is not policies:
        rooms = world.queue.rooms = Rooms(policies)
    return rooms


def _sparing(
    world: Picture, host: str, look: Callable[[], Found], otherwise: Callable[[Exception], Found]
) -> Found:
    """Look at a host; one of which nothing can be told takes nobody, and is in no other one's way."""
    try:
        return look()
    except MemoryError:
        raise
    except Exception as error:
        if not world.queue.spares:
            raise
        world.queue.set_aside(f"host {host}", error)
        return otherwise(error)


def _look(policies: PolicySet, ask: Ask, host: str, world: Picture) -> Look:
    """Return what is left on the host, or why no instance may come to it; and until when that holds."""
    reason = closed(world, host, policies.limits) or _unproven(world, host)
    if reason:
        return reason, inf
    pays_s, shape = ask
    until_s = _known_until_s(world, host, policies, pays_s)
    reason = too_short(world, host, policies, pays_s)
    if reason:
        return reason, nextafter(world.now_s, inf)  # it says how long, which is always another time
    reason = policies.readiness.open_breaker(world.streaks, world.now_s, host, policies.hosts)
    reason = reason or _tried(world, host, policies) or _enough(world, host, policies)
    if reason:
        return reason, until_s
    size = world.hosts[host].size_for(shape)
    if size is None:
        return because(Code.NO_SIZE, host=host, cpus=shape.cpus, memory_mb=shape.memory_mb), until_s
    left = room(world, host, policies)
    bar = never(world.hosts[host], NOTHING_MORE, size, policies)
    bar = bar or (None if size.fits(left) else host_full(host, left, size))
    return bar or numa_full(world, host, policies, size) or left, until_s


def _serves(look: Look) -> bool:
    """Return True if a host that looks like this is in service."""
    return not isinstance(look[0], Reason) or look[0].code in _IN_SERVICE


def _unproven(world: Picture, host: str) -> Reason | None:
    """Return why nothing new may come to the host; what is there already goes on, and comes back."""
    said = world.hosts[host].unproven
    return because(Code.HOST_UNPROVEN, host=host, said=Words(said)) if said else None


def _tried(world: Picture, host: str, policies: PolicySet) -> Reason | None:
    """Return why no other instance may come to a host on which a single one shows whether it is well."""
    if not policies.readiness.on_trial(world.streaks, host) or not booting_on(world, host):
        return None
    said = f"{world.streaks[host].count} instances in a row failed there, and a single one is tried now"
    return because(Code.HOST_UNPROVEN, host=host, said=Words(said))


def _opening(policies: PolicySet, host: str, world: Picture) -> Opening:
    """Return from when the host counts as open soon for orders that were passed over, and until when
    that holds: -inf where it takes new instances as soon as it has room, inf where nobody knows.

    How long jobs of low priority go on that are there does not count: nobody comes after them.
    """
    if out_of_reach(world, host, policies.limits) or _unproven(world, host):
        return inf, inf
    if world.takers(host):
        free_s = free_again_s(world, host)
        return (inf if free_s is None else free_s - policies.own_machines.passed_over_s), inf
    pays_s = policies.gaps.boot_pays_s
    shut = shut_for_long(world, policies, host, pays_s) is not None
    return inf if shut else -inf, _known_until_s(world, host, policies, pays_s)


def shut_for_long(world: Picture, policies: PolicySet, host: str, pays_s: float) -> Reason | None:
    """Return why no new instance may come to the host however much room it has, if none may.

    That others are just being made there is over soon.
    """
    reason = closed(world, host, policies.limits) or _unproven(world, host)
    reason = reason or too_short(world, host, policies, pays_s)
    return reason or policies.readiness.open_breaker(world.streaks, world.now_s, host, policies.hosts)


def _known_until_s(world: Picture, host: str, policies: PolicySet, pays_s: float) -> float:
    """Return when time alone may make a difference about a host."""
    moments = [inf]
    node = node_of(world, host)
    if node is not None and node.maintenance_s:
        moments.append(policies.gaps.clear_at_s(node.maintenance_s))
    if node is not None and (wanted_s := wanted_again_s(node)) is not None:
        moments.append(nextafter(wanted_s - pays_s, inf))  # at that very moment it still pays
    if host in world.streaks:
        moments.append(world.streaks[host].last_s + policies.readiness.rest_s)
    return min(at_s for at_s in moments if at_s > world.now_s)


def node_of(world: Picture, host: str) -> Node | None:
    """Return the host's own Slurm node as last seen; None for a host without one."""
    known = world.hosts.get(host)
    return world.nodes.get(known.node) if known is not None and known.node else None


def wanted_again_s(node: Node) -> float | None:
    """Return when Slurm will want the node, by reservations and planned starts; None: not known."""
    return min((at_s for at_s in (node.planned_s, node.maintenance_s) if at_s), default=None)


def free_again_s(world: Picture, host: str) -> float | None:
    """Return when, by their time limits, the jobs to which Slurm gave the host are over; None: unknown."""
    known = world.hosts.get(host)
    if known is None or known.node is None or host in world.closed:
        return None
    holders = {j.id: j for j in world.jobs_on(known.node) if j.holds_nodes}
    raw = {str(j.raw_id) for j in holders.values()}
    if any(job_id not in holders and job_id not in raw for job_id in world.takers(host)):
        return None  # a job of which only its hook has told
    ends = [end_s(job) for job in holders.values()]
    if None in ends:
        return None
    return max((end for end in ends if end is not None), default=world.now_s)
