"""What hosts lend to nodes: virtual functions, and memory that the instances of one job share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backfill.core.model.cluster import MachineRequest
from backfill.core.model.devices import DeviceLoan, Sharing
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import ABSENT, ManagedNode
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.numa import fits, usable
from backfill.core.picture import Picture
from backfill.core.policies.spread import Larger
from backfill.core.policy import PolicySet


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
    """

    functions: int = 0
    region_mb: int = 0
    sharing: Sharing = Sharing.ANYONE
    job: str = ""
    owner: str = ""
    shape: Resources | None = None
    network: str = ""

    @property
    def particular(self) -> bool:
        """Return True if room alone is not enough."""
        return replace(self, shape=None) != NodeNeed()


NOTHING_MORE = NodeNeed()


def own_need(world: Picture, job_id: str, shape: Resources | None) -> NodeNeed:
    """Return what each of a job's own machines takes of a host."""
    loan, network = own_loan(world, job_id), own_network(world, job_id)
    if loan is None:
        return NodeNeed(shape=shape, network=network)
    return NodeNeed(loan.functions, loan.region_mb, loan.sharing, job_id, shape=shape, network=network)


def never(host: Host, need: NodeNeed, shape: Resources, policies: PolicySet) -> Reason | None:
    """Return what a host can never give to an instance of that shape, whatever else is on it.

    Nobody knows that of a host that does not answer.
    """
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
