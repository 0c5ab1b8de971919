"""How much room a host has left: of all of it, and of each of its NUMA nodes where instances are bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from backfill.core.lending import NOTHING_MORE, NodeNeed, never, numa_whole, own_loan, too_large_to_bind
from backfill.core.model.devices import DeviceLoan
from backfill.core.model.fleet import Instance
from backfill.core.model.lifecycle import ABSENT, ON_CPU, ManagedNode, Phase
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.numa import Share, fits, left_on
from backfill.core.numa import places as places_on
from backfill.core.policy import PolicySet
from backfill.core.world import World

# Phases in which all of its room is a node's own: it may run at any moment, or does so.
_HOLDING = ON_CPU | {Phase.EVICTING, Phase.THROTTLED, Phase.MOVING}


_KEPT = _HOLDING | {Phase.PARKED}


def room(
    world: World, host: str, policies: PolicySet, *, kept: bool = True, without: Collection[str] = ()
) -> Resources:
    """Resources of `host` that no node of ours uses or was promised, but for the nodes named `without`.

    `kept`: CPUs and memory that stopped instances will want back there are not free either.
    Whoever comes anew has to ask so, or work that waits for its host would never find room again.
    """
    limits = policies.limits
    whole = world.hosts[host].capacity
    left = Resources(policies.placement.cpus(whole.cpus), whole.memory_mb) - Resources(
        limits.keep_cpus, limits.keep_memory_mb
    )
    for share in _shares(world, host, policies, kept=kept, without=without):
        left = left - share.takes
    return left - Resources(0, _regions_mb(world, host))


def numa_room(
    world: World, host: str, policies: PolicySet, *, kept: bool = True, without: Collection[str] = ()
) -> dict[int, Resources] | None:
    """Return the same of each of its NUMA nodes, by its number; None where nothing is bound to one.

    Memory that is shared comes from any of them, so that it is not counted as free on any.
    """
    known = world.hosts[host]
    if not known.numa:
        return None
    shares = _shares(world, host, policies, kept=kept, without=without)
    left = left_on(numa_whole(known, policies), shares)
    shared = Resources(0, _regions_mb(world, host))
    return {number: room_ - shared for number, room_ in left.items()}


def _shares(
    world: World, host: str, policies: PolicySet, *, kept: bool, without: Collection[str]
) -> Iterator[Share]:
    """Yield what is taken of the host, or promised there, and on which NUMA node."""
    for _ in range(world.parents_starting(host)):
        yield Share(policies.instances.flavour.resources)
    holding = _KEPT if kept else _HOLDING
    for node in world.fleet.managed_on(host):
        if node.name in without:
            continue
        shape = policies.instances.flavour_of(node).resources
        instance = world.instances.get((host, node.name))
        if host != node.target and node.phase not in holding:
            shape = _still_there(world, host, node, shape)
        if shape != NOTHING:
            yield Share(shape, None if instance is None else instance.numa)
    for instance in world.fleet.instances_on(host):
        known = world.managed.get(instance.name)
        booked = known is not None and host in known.hosts
        if not booked and instance.occupies_memory:
            yield Share(instance.resources, instance.numa)  # our books do not have it there, but it is


def _regions_mb(world: World, host: str) -> int:
    """Return how much memory the instances on a host share, or will."""
    regions = {job: loan.region_mb for job, loan in _awaited(world, host)}
    regions |= {i.devices_of: i.region_mb for i in world.fleet.instances_on(host)}
    return sum(regions.values())


def _awaited(world: World, host: str) -> Iterator[tuple[str, DeviceLoan]]:
    """Yield what the jobs' own machines that are being made on a host will be lent there."""
    for node in world.fleet.managed_on(host):
        if node.job and node.phase not in ABSENT and (loan := own_loan(world, node.job)) is not None:
            yield node.job, loan


def _still_there(world: World, host: str, node: ManagedNode, shape: Resources) -> Resources:
    """Return what a node that goes has on the host: also where a call may yet bring its instance there,
    and where the one reading for which it goes may have missed it."""
    instance = world.instances.get((host, node.name))
    if instance is not None:
        return _there(instance, shape)
    coming = any(o.running and o.host == host for o in world.calls.all_of(node.name))
    unread = node.phase is Phase.REMOVING and host in node.hosts and unread_since(world, host, node)
    return shape if coming or unread else NOTHING


def unread_since(world: World, host: str, node: ManagedNode) -> bool:
    """Return True if nothing that was read of the host since the node's phase began tells of its instance."""
    source = world.sources.get(host)
    read_s = max(
        source.seen_s if source is not None else 0.0, world.seen_s("instance", f"{host}/{node.name}")
    )
    return read_s <= node.since_s


def places_ever(
    world: World, policies: PolicySet, host: str, shape: Resources, need: NodeNeed = NOTHING_MORE
) -> int:
    """Return how many instances of a shape the host would carry if there were nothing else on it.

    `need`: what each of them takes besides. Of a host that was not read yet, or does not answer,
    nobody knows what it cannot hold.
    """
    known, limits = world.hosts.get(host), policies.limits
    if known is None or not known.reachable:
        return limits.max_per_host
    size = known.size_for(shape)
    if size is None or never(known, need, shape, policies) is not None:
        return 0
    cpus = policies.placement.cpus(known.capacity.cpus) - limits.keep_cpus
    memory_mb = known.capacity.memory_mb - limits.keep_memory_mb
    memory_mb -= need.region_mb
    places = [cpus // size.cpus, memory_mb // size.memory_mb, limits.max_per_host]
    if need.functions:
        places.append(known.functions // need.functions)
    whole = numa_whole(known, policies)
    if fits(whole, size):
        shared = Resources(0, need.region_mb)
        places.append(places_on({n: room_ - shared for n, room_ in whole.items()}, size))
    return max(0, min(places))


def places_now(
    world: World,
    host: str,
    policies: PolicySet,
    size: Resources,
    shared_mb: int = 0,
    without: Collection[str] = (),
) -> int:
    """Return how many instances that each take `size` fit there beside all that is kept, and `shared_mb`.

    `without`: names of nodes that do not count.
    """
    shared = Resources(0, shared_mb)
    left = room(world, host, policies, without=without) - shared
    most = max(0, min(left.cpus // size.cpus, left.memory_mb // size.memory_mb))
    nodes = numa_room(world, host, policies, without=without)
    if nodes is None or too_large_to_bind(world.hosts[host], size, policies):
        return most
    return min(most, places_on({n: room_ - shared for n, room_ in nodes.items()}, size))


def _there(instance: Instance, shape: Resources) -> Resources:
    """Return what an instance that stands still, or is just leaving, still takes of its host.

    One that is throttled works at full speed again as soon as it is spared.
    """
    return Resources(shape.cpus if instance.runs else 0, shape.memory_mb if instance.occupies_memory else 0)


def crowded(world: World, node: ManagedNode, instance: Instance | None, policies: PolicySet) -> Reason | None:
    """Return that others have taken the room of a stopped node meanwhile, if they have."""
    shape = policies.instances.flavour_of(node).resources
    left = room(world, node.host, policies, kept=False)
    # The memory of one that is paused is its own already, however little is left.
    has_memory = instance is not None and instance.occupies_memory
    if shape.cpus > left.cpus or not (has_memory or shape.memory_mb <= left.memory_mb):
        return host_full(node.host, left, shape)
    if not has_memory:
        return numa_full(world, node.host, policies, shape, kept=False)
    nodes = numa_room(world, node.host, policies, kept=False) or {}
    its_own = None if instance is None or instance.numa is None else nodes.get(instance.numa)
    if its_own is None or shape.cpus <= its_own.cpus:
        return None
    return because(Code.NUMA_FULL, host=node.host, cpus=shape.cpus, memory_mb=shape.memory_mb)


def numa_full(
    world: World, host: str, policies: PolicySet, shape: Resources, many: int = 1, *, kept: bool = True
) -> Reason | None:
    """Return that no NUMA node has room for so many of that shape, where they are bound to one.

    What is too large for every one of them is bound to none, if it may be made there at all.
    """
    nodes = numa_room(world, host, policies, kept=kept)
    if nodes is None or too_large_to_bind(world.hosts[host], shape, policies):
        return None
    if places_on(nodes, shape) >= many:
        return None
    return because(Code.NUMA_FULL, host=host, cpus=shape.cpus, memory_mb=shape.memory_mb)


def host_full(host: str, left: Resources, shape: Resources) -> Reason:
    """Return that so little is left on a host that this does not fit."""
    return because(
        Code.HOST_FULL,
        host=host,
        left_cpus=left.cpus,
        left_memory_mb=left.memory_mb,
        cpus=shape.cpus,
        memory_mb=shape.memory_mb,
    )
