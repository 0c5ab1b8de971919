"""Where instances may go: which hosts are open, and how much room each has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, nextafter

from backfill.core.breakers import open_breaker
from backfill.core.cluster import NodeBase
from backfill.core.devices import Sharing
from backfill.core.fleet import Instance
from backfill.core.foresight import node_of, wanted_again_s
from backfill.core.guards import Limits, stale
from backfill.core.lifecycle import ABSENT, ON_CPU, ManagedNode, Phase
from backfill.core.policies.spread import Order
from backfill.core.policy import PolicySet
from backfill.core.quantities import NOTHING, Resources
from backfill.core.refusals import Code, Reason, Words, because, limit
from backfill.core.world import World

# PLANNED is among them only where it is not known for when.
_SHUT_FLAGS = frozenset({"MAINT", "RESERVED", "REBOOT_REQUESTED", "POWERED_DOWN", "FAIL"})
# Phases in which all of its room is a node's own: it may run at any moment, or does so.
_HOLDING = ON_CPU | {Phase.EVICTING, Phase.THROTTLED, Phase.MOVING}
_KEPT = _HOLDING | {Phase.PARKED}
_MOST_PAYS = 3  # so many different demands on a host's time are kept


def closed(world: World, host: str, limits: Limits) -> Reason | None:
    """Return why no instance may come to `host` now, if none may."""
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
    takers = world.takers(host)
    if takers:
        return because(Code.HOST_TAKEN, host=host, jobs=tuple(takers))
    return _shut(world, host, known.node)


def _shut(world: World, host: str, node_name: str | None) -> Reason | None:
    """Return why the host's own Slurm node forbids company, if it does."""
    if node_name is None:
        return None
    node = world.nodes.get(node_name)
    if node is None:
        return because(Code.NODE_UNKNOWN, host=host, node=node_name)
    planned = "PLANNED" in node.flags and not node.planned_s
    if node.base is not NodeBase.IDLE or node.drained or planned or node.flags & _SHUT_FLAGS:
        said = Words(node.reason)
        return because(Code.NODE_SHUT, node=node_name, state=node.state_text, said=said)
    return None


def too_short(world: World, host: str, policies: PolicySet, pays_s: float) -> Reason | None:
    """Return why the time until the host is wanted again is not worth it, if it is not."""
    node = node_of(world, host)
    if node is None or not (node.planned_s or node.maintenance_s):
        return None  # nothing is known, which is so nearly always
    if node.maintenance_s and world.now_s >= policies.gaps.clear_at_s(node.maintenance_s):
        return because(Code.HOST_MAINTENANCE, host=host)
    why = policies.gaps.too_short(world.now_s, wanted_again_s(node), pays_s)
    return because(Code.GAP, host=host, why=why) if why else None


def room(world: World, host: str, policies: PolicySet, *, kept: bool = True) -> Resources:
    """Resources of `host` that no node of ours uses or was promised.

    `kept`: CPUs and memory that stopped instances will want back there are not free either.
    Whoever comes anew has to ask so, or work that waits for its host would never find room again.
    """
    limits = policies.limits
    whole = world.hosts[host].capacity
    left = Resources(policies.placement.cpus(whole.cpus), whole.memory_mb) - Resources(
        limits.keep_cpus, limits.keep_memory_mb
    )
    shape = policies.instances.flavour.resources
    for _ in range(world.parents_starting(host)):
        left = left - shape
    holding = _KEPT if kept else _HOLDING
    for node in world.managed_on(host):
        if host == node.target or node.phase in holding:
            left = left - shape
        else:
            instance = world.instances.get((host, node.name))
            left = left - (NOTHING if instance is None else _there(instance, shape))
    regions: dict[str, int] = {}
    for instance in world.instances_on(host):
        regions[instance.devices_of] = instance.region_mb
        known = world.managed.get(instance.name)
        booked = known is not None and host in known.hosts
        if not booked and instance.occupies_memory:
            left = left - instance.resources  # our books do not have it there, but it is
    return left - Resources(0, sum(regions.values()))


def functions_of(world: World, policies: PolicySet, host: str, node: ManagedNode) -> int:
    """Virtual functions of the host that a node there holds, or offers to jobs."""
    instance = world.instances.get((host, node.name))
    held = 0 if instance is None else instance.functions
    offered = 0 if node.phase in ABSENT else policies.devices.functions(node.devices)
    return max(held, offered)


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What a host must be able to give to one more node, and to whom else it may give some.

    `job`: nodes that have devices for this one are no others. `owner`: the only user who wants
    them, where that is known. `region_mb`: memory that the instances of the job share there.
    """

    functions: int = 0
    region_mb: int = 0
    sharing: Sharing = Sharing.ANYONE
    job: str = ""
    owner: str = ""


NO_DEVICES = DeviceNeed()


def need_of(world: World, policies: PolicySet, node: ManagedNode) -> DeviceNeed:
    """What a node that moves takes along."""
    instance = world.instances.get((node.host, node.name))
    owners = {job.user for job in world.jobs_on(node.name)}
    return DeviceNeed(
        functions_of(world, policies, node.host, node),
        0 if instance is None else instance.region_mb,
        policies.devices.sharing(node.devices),
        "" if instance is None else instance.devices_of,
        owners.pop() if len(owners) == 1 else "",
    )


def _forbidden(world: World, policies: PolicySet, host: str, need: DeviceNeed) -> Reason | None:
    """Return why the host may not lend devices to one more node, if it may not."""
    few = _too_few(world, policies, host, need.functions)
    if few or need.sharing is Sharing.ANYONE:
        return few
    for node in world.managed_on(host):
        instance = world.instances.get((host, node.name))
        held_for = "" if instance is None else instance.devices_of
        offers = node.devices and node.phase not in ABSENT
        if (held_for and held_for != need.job) or (offers and not held_for):
            if need.sharing is Sharing.ONE_JOB:
                return because(Code.DEVICES_ONE_JOB, host=host, node=node.name)
            owners = {job.user for job in world.jobs_on(node.name)}
            if not need.owner or owners - {need.owner}:
                return because(Code.DEVICES_ONE_USER, host=host, node=node.name)
    return None


def no_memory(world: World, host: str, job: str, region_mb: int, left: Resources) -> Reason | None:
    """Return why the host has no memory for what a job is to share there, if it has none."""
    if not region_mb or region_mb <= left.memory_mb:
        return None
    if job and any(i.devices_of == job and i.region_mb for i in world.instances_on(host)):
        return None  # it has its fellows' already
    left_mb = max(0, left.memory_mb)
    return because(Code.SHARED_MEMORY, host=host, left_mb=left_mb, region_mb=region_mb)


def _too_few(world: World, policies: PolicySet, host: str, functions: int) -> Reason | None:
    """Return why the host cannot give so many more virtual functions, if it cannot."""
    every = world.hosts[host].functions
    used = sum(functions_of(world, policies, host, node) for node in world.managed_on(host))
    if functions <= every - used:
        return None
    free = max(0, every - used)
    return because(Code.DEVICES_FEW, host=host, free=free, every=every, functions=functions)


def _there(instance: Instance, shape: Resources) -> Resources:
    """What an instance that stands still, or is just leaving, still takes of its host."""
    return Resources(
        shape.cpus if instance.occupies_cpu else 0, shape.memory_mb if instance.occupies_memory else 0
    )


def crowded(world: World, node: ManagedNode, instance: Instance | None, policies: PolicySet) -> Reason | None:
    """Return that others have taken the room of a stopped node meanwhile, if they have."""
    shape = policies.instances.flavour.resources
    left = room(world, node.host, policies, kept=False)
    # The memory of one that is paused is its own already, however little is left.
    has_memory = instance is not None and instance.occupies_memory
    if shape.cpus <= left.cpus and (has_memory or shape.memory_mb <= left.memory_mb):
        return None
    return _no_room(node.host, left, shape)


def _no_room(host: str, left: Resources, shape: Resources) -> Reason:
    return because(
        Code.HOST_FULL,
        host=host,
        left_cpus=left.cpus,
        left_memory_mb=left.memory_mb,
        cpus=shape.cpus,
        memory_mb=shape.memory_mb,
    )


def count_on(world: World, host: str) -> int:
    """Number of our nodes that are on a host or on their way to it."""
    return sum(1 for m in world.managed_on(host) if m.phase not in ABSENT)


def booting_on(world: World, host: str) -> int:
    """Number of our nodes that are being made on a host."""
    return sum(1 for m in world.managed_on(host) if m.phase is Phase.BOOTING)


def _enough(world: World, host: str, policies: PolicySet) -> Reason | None:
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


def candidates(
    world: World,
    policies: PolicySet,
    pays_s: float,
    skip: frozenset[str] = frozenset(),
    need: DeviceNeed = NO_DEVICES,
) -> tuple[list[tuple[str, Resources]], dict[str, Reason]]:
    """Hosts with room for one more instance, and for every other host why not.

    `pays_s`: for so long the host must not be wanted again, as far as that is known.
    """
    rooms, why_not = _rooms_of(world, policies).found(world, pays_s)
    if need != NO_DEVICES:
        shape = policies.instances.flavour.resources
        bars = {
            host: _forbidden(world, policies, host, need)
            or no_memory(world, host, need.job, need.region_mb, left - shape)
            for host, left in rooms
        }
        why_not = why_not | {host: why for host, why in bars.items() if why}
        rooms = [(host, left) for host, left in rooms if not bars[host]]
    return (
        [(host, left) for host, left in rooms if host not in skip],
        {host: why for host, why in why_not.items() if host not in skip},
    )


def pick(world: World, policies: PolicySet, rooms: Sequence[tuple[str, Resources]]) -> str:
    """The host that the policy prefers among those with room."""
    if policies.placement.order is not Order.IDLE:
        return policies.placement.choose(rooms)
    seen = {host: world.hosts[host].busy for host, _ in rooms}
    return policies.placement.choose(rooms, {h: b for h, b in seen.items() if b is not None})


Look = tuple[Resources | Reason, float]  # what is left on a host or why nobody may come; until when


class Rooms:
    """What new instances would find on every host, looked at again only where something changed."""

    def __init__(self, policies: PolicySet) -> None:
        self.policies = policies
        self.touched: set[str] = set()  # hosts about which something has changed
        self.until_s = inf  # until then time changes nothing
        self._by_pays: dict[float, dict[str, Look]] = {}
        self._found: dict[float, tuple[list[tuple[str, Resources]], dict[str, Reason]]] = {}
        self._stale: set[str] = set()

    def touch(self, host: str) -> None:
        """Something about the host has changed."""
        self._stale.add(host)
        self.touched.add(host)

    def touch_again(self, hosts: Iterable[str]) -> None:
        """What was changed tentatively is as it was."""
        self._stale.update(hosts)
        self.touched = set()

    def forget(self) -> None:
        """Anything may have changed."""
        self._stale.update(self.policies.hosts)

    def found(self, world: World, pays_s: float) -> tuple[list[tuple[str, Resources]], dict[str, Reason]]:
        """Hosts with room in the order of the policy file, and for every other host why not."""
        self.refresh(world)
        if pays_s not in self._by_pays:
            for old in list(self._by_pays)[:-_MOST_PAYS]:
                del self._by_pays[old], self._found[old]
            looks = {host: _look(self.policies, pays_s, host, world) for host in self.policies.hosts}
            self._by_pays[pays_s] = looks
            self.until_s = min(self.until_s, *(until_s for _, until_s in looks.values()), inf)
            self._sort(pays_s)
        return self._found[pays_s]

    def refresh(self, world: World) -> bool:
        """Look again where something has changed; whether that makes a difference."""
        if world.now_s >= self.until_s:
            self._find_due(world.now_s)
        if not self._stale:
            return False
        hosts, self._stale = self._stale, set()
        changed = False
        for pays_s, looks in self._by_pays.items():
            different = False
            for host in hosts & looks.keys():
                old, new = looks[host], _look(self.policies, pays_s, host, world)
                looks[host] = new
                different = different or old[0] != new[0]
                self.until_s = min(self.until_s, new[1])
            if different:
                self._sort(pays_s)
                changed = True
        return changed

    def _find_due(self, now_s: float) -> None:
        every = [look for looks in self._by_pays.values() for look in looks.items()]
        self._stale.update(host for host, (_, until_s) in every if now_s >= until_s)
        self.until_s = min((until_s for _, (_, until_s) in every if until_s > now_s), default=inf)

    def _sort(self, pays_s: float) -> None:
        looks = [(host, found) for host, (found, _) in self._by_pays[pays_s].items()]
        self._found[pays_s] = (
            [(host, found) for host, found in looks if not isinstance(found, Reason)],
            {host: found for host, found in looks if isinstance(found, Reason)},
        )


def _rooms_of(world: World, policies: PolicySet) -> Rooms:
    rooms = world.queue.rooms
    if rooms is None or rooms.policies is not policies:
        rooms = world.queue.rooms = Rooms(policies)
    return rooms


def _look(policies: PolicySet, pays_s: float, host: str, world: World) -> Look:
    """What is left on the host, or why no instance may come to it; and until when that holds."""
    reason = closed(world, host, policies.limits)
    if reason:
        return reason, inf
    until_s = _known_until_s(world, host, policies, pays_s)
    reason = too_short(world, host, policies, pays_s)
    if reason:
        return reason, nextafter(world.now_s, inf)  # it says how long, which is always another time
    reason = open_breaker(world, host, policies.readiness, policies.hosts)
    reason = reason or _enough(world, host, policies)
    if reason:
        return reason, until_s
    shape, left = policies.instances.flavour.resources, room(world, host, policies)
    return left if shape.fits(left) else _no_room(host, left, shape), until_s


def _known_until_s(world: World, host: str, policies: PolicySet, pays_s: float) -> float:
    """When time alone may make a difference about a host."""
    moments = [inf]
    node = node_of(world, host)
    if node is not None and node.maintenance_s:
        moments.append(policies.gaps.clear_at_s(node.maintenance_s))
    if node is not None and (wanted_s := wanted_again_s(node)) is not None:
        moments.append(wanted_s - pays_s)
    if host in world.streaks:
        moments.append(world.streaks[host].last_s + policies.readiness.rest_s)
    return min(at_s for at_s in moments if at_s > world.now_s)
