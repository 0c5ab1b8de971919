"""What a host can give to one more node: room, of all of it and of each NUMA node, and what it lends.

It lends virtual functions, and memory that the instances of one job share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from backfill.core.model.cluster import MachineRequest
from backfill.core.model.devices import DeviceLoan, Sharing
from backfill.core.model.fleet import Host, Instance
from backfill.core.model.lifecycle import ABSENT, ON_CPU, ManagedNode, Phase
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.numa import Share, fits, left_on, usable
from backfill.core.numa import places as places_on
from backfill.core.picture import Picture
from backfill.core.policies.spread import Larger
from backfill.core.policy import PolicySet

# Phases in which all of its room is a node's own: it may run at any moment, or does so.
_HOLDING = ON_CPU | {Phase.EVICTING, Phase.THROTTLED, Phase.MOVING}


_KEPT = _HOLDING | {Phase.PARKED}


# --- what a node takes, and what is lent to it ---------------------------------------------------


def own_loan(world: Picture, job_id: str) -> DeviceLoan | None:
    """Return what each of a job's own machines is lent, from the moment that it is made."""
    request = _request(world, job_id)
    if request is None or not (request.sriov or request.regions):
        return None
    return DeviceLoan("what its word asks for", request.sriov, request.regions)


def own_network(world: Picture, job_id: str) -> str:
    """Return the network of a job's own machines; empty: the usual one."""
    request = _request(world, job_id)
    return "" if request is None or request.network is None else request.network


def _request(world: Picture, job_id: str) -> MachineRequest | None:
    own, job = world.machines.get(job_id), world.jobs.get(job_id)
    return own.request if own is not None else None if job is None else job.machines


def functions_of(world: Picture, policies: PolicySet, host: str, node: ManagedNode) -> int:
    """Count virtual functions of the host that a node there holds, or offers to jobs."""
    instance = world.instances.get((host, node.name))
    held = 0 if instance is None else instance.functions
    if node.phase in ABSENT:
        return held
    loan = own_loan(world, node.job) if node.job else None
    return max(held, policies.devices.functions(node.devices), 0 if loan is None else loan.functions)


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """What a host must be able to give to one more node, and to whom else it may give some.

    `shape`: what it takes itself, None: as much as all. `job`: nodes that have devices for this one
    are no others. `owner`: the only user who wants them, where that is known. `region_mb`: memory
    that the instances of the job share there. `network`: to which it is connected, empty: the usual one.
    `image`: of which it is made, empty: of one that every host has.
    """

    functions: int = 0
    region_mb: int = 0
    sharing: Sharing = Sharing.ANYONE
    job: str = ""
    owner: str = ""
    shape: Resources | None = None
    network: str = ""
    image: str = ""

    @property
    def particular(self) -> bool:
        """Return True if room alone is not enough."""
        return replace(self, shape=None) != NodeNeed()


NOTHING_MORE = NodeNeed()


def own_need(world: Picture, job_id: str, shape: Resources | None, image: str) -> NodeNeed:
    """Return what each of a job's own machines takes of a host; `image`: as in `NodeNeed`."""
    loan, network = own_loan(world, job_id), own_network(world, job_id)
    if loan is None:
        return NodeNeed(shape=shape, network=network, image=image)
    lent = NodeNeed(loan.functions, loan.region_mb, loan.sharing, job_id)
    return replace(lent, shape=shape, network=network, image=image)


def never(host: Host, need: NodeNeed, shape: Resources, policies: PolicySet) -> Reason | None:
    """Return what a host can never give to an instance of that shape, whatever else is on it.

    Of one that does not answer nobody knows more than which images it has.
    """
    if policies.environments.lacks(host.name, need.image):
        return because(Code.NO_IMAGE, host=host.name, image=need.image)
    if not host.reachable:
        return None
    if host.size_for(shape) is None:
        return because(Code.NO_SIZE, host=host.name, cpus=shape.cpus, memory_mb=shape.memory_mb)
    if need.region_mb and not host.shares:
        return because(Code.NO_SHARING, host=host.name)
    if need.network and need.network not in host.networks:
        return because(Code.NO_NETWORK, host=host.name, network=need.network)
    if too_large_to_bind(host, shape, policies) and policies.placement.larger_than_numa is Larger.REFUSE:
        return because(Code.NUMA_SMALL, host=host.name, cpus=shape.cpus, memory_mb=shape.memory_mb)
    return None


def numa_whole(host: Host, policies: PolicySet) -> dict[int, Resources]:
    """Return what instances may take of each NUMA node; of none where they are not bound to one."""
    limits = policies.limits
    keep = Resources(limits.keep_cpus, limits.keep_memory_mb)
    return usable(host.numa, policies.placement.cpu_overcommit, keep)


def too_large_to_bind(host: Host, shape: Resources, policies: PolicySet) -> bool:
    """Return True if instances there are bound to NUMA nodes, and none could carry one of that shape."""
    return bool(host.numa) and not fits(numa_whole(host, policies), shape)


def need_of(world: Picture, policies: PolicySet, node: ManagedNode) -> NodeNeed:
    """Return what a node that moves takes along."""
    instance = world.instances.get((node.host, node.name))
    owners = {job.user for job in world.jobs_on(node.name)}
    return NodeNeed(
        functions_of(world, policies, node.host, node),
        0 if instance is None else instance.region_mb,
        policies.devices.sharing(node.devices),
        "" if instance is None else instance.devices_of,
        owners.pop() if len(owners) == 1 else "",
        None if node.flavour is None else node.flavour.resources,
        own_network(world, node.job) if node.job else "",
        policies.environments.somewhere(node.image),
    )


def forbidden(world: Picture, policies: PolicySet, host: str, need: NodeNeed) -> Reason | None:
    """Return why the host may not lend devices to one more node, if it may not."""
    few = _too_few(world, policies, host, need.functions)
    if few or need.sharing is Sharing.ANYONE:
        return few
    for node in world.fleet.managed_on(host):
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


def no_memory(world: Picture, host: str, job: str, region_mb: int, left: Resources) -> Reason | None:
    """Return why the host has no memory for what a job is to share there, if it has none."""
    if not region_mb or region_mb <= left.memory_mb:
        return None
    if job and any(i.devices_of == job and i.region_mb for i in world.fleet.instances_on(host)):
        return None  # it has its fellows' already
    if job and any(node.job == job and node.phase not in ABSENT for node in world.fleet.managed_on(host)):
        return None  # it is kept for them already
    left_mb = max(0, left.memory_mb)
    return because(Code.SHARED_MEMORY, host=host, left_mb=left_mb, region_mb=region_mb)


def functions_free(world: Picture, policies: PolicySet, host: str) -> int:
    """Count virtual functions of the host that no node there holds or offers."""
    used = sum(functions_of(world, policies, host, node) for node in world.fleet.managed_on(host))
    return max(0, world.hosts[host].functions - used)


def _too_few(world: Picture, policies: PolicySet, host: str, functions: int) -> Reason | None:
    """Return why the host cannot give so many more virtual functions, if it cannot."""
    every, free = world.hosts[host].functions, functions_free(world, policies, host)
    if functions <= free:
        return None
    return because(Code.DEVICES_FEW, host=host, free=free, every=every, functions=functions)


# --- room ----------------------------------------------------------------------------------------


def room(
    world: Picture, host: str, policies: PolicySet, *, kept: bool = True, without: Collection[str] = ()
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
    world: Picture, host: str, policies: PolicySet, *, kept: bool = True, without: Collection[str] = ()
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
    world: Picture, host: str, policies: PolicySet, *, kept: bool, without: Collection[str]
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


def _regions_mb(world: Picture, host: str) -> int:
    """Return how much memory the instances on a host share, or will."""
    regions = {job: loan.region_mb for job, loan in _awaited(world, host)}
    regions |= {i.devices_of: i.region_mb for i in world.fleet.instances_on(host)}
    return sum(regions.values())


def _awaited(world: Picture, host: str) -> Iterator[tuple[str, DeviceLoan]]:
    """Yield what the jobs' own machines that are being made on a host will be lent there."""
    for node in world.fleet.managed_on(host):
        if node.job and node.phase not in ABSENT and (loan := own_loan(world, node.job)) is not None:
            yield node.job, loan


def _still_there(world: Picture, host: str, node: ManagedNode, shape: Resources) -> Resources:
    """Return what a node that goes has on the host: also where a call may yet bring its instance there,
    and until a call of ours has left nothing of it: readings may have missed it."""
    instance = world.instances.get((host, node.name))
    if instance is not None:
        return _there(instance, shape)
    coming = any(o.running and o.host == host for o in world.calls.all_of(node.name))
    gone = world.destroyed_here(node.name, node.generation)
    missed = node.phase is Phase.REMOVING and host in node.hosts and not gone
    return shape if coming or missed else NOTHING


def unread_since(world: Picture, host: str, node: ManagedNode) -> bool:
    """Return True if nothing that was read of the host since the node's phase began tells of its instance."""
    source = world.sources.get(host)
    read_s = max(
        source.seen_s if source is not None else 0.0, world.seen_s("instance", f"{host}/{node.name}")
    )
    return read_s <= node.since_s


def places_ever(
    world: Picture, policies: PolicySet, host: str, shape: Resources, need: NodeNeed = NOTHING_MORE
) -> int:
    """Return how many instances of a shape the host would carry if there were nothing else on it.

    `need`: what each of them takes besides. Of a host that was not read yet, or does not answer,
    nobody knows what it cannot hold, but for the images that it lacks.
    """
    known, limits = world.hosts.get(host), policies.limits
    if policies.environments.lacks(host, need.image):
        return 0
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
    world: Picture,
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


def crowded(
    world: Picture, node: ManagedNode, instance: Instance | None, policies: PolicySet
) -> Reason | None:
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
    world: Picture, host: str, policies: PolicySet, shape: Resources, many: int = 1, *, kept: bool = True
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
