"""What a job may have as its own machines: its share, its image, and what can never be had."""

from __future__ import annotations

from backfill.core.lending import never, own_need
from backfill.core.model.cluster import Job, MachineRequest
from backfill.core.model.company import Company
from backfill.core.model.fleet import Flavour
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.refusals import Code, Reason, because, limit, no_host
from backfill.core.placement import places_ever
from backfill.core.policy import PolicySet
from backfill.core.reconcile.builder import PlanBuilder


def image_for(policies: PolicySet, job: Job) -> str:
    """Return the master image of its machines: by its word, by its constraint, or that of all."""
    word = job.machines.image if job.machines is not None else None
    environments = policies.environments
    return (environments.image_of(word) if word else environments.asked(job)) or policies.instances.image


def share(job: Job) -> tuple[int, int]:
    """Return CPUs and memory (MB) of the job on each of its nodes."""
    return -(-job.cpus // max(1, job.num_nodes)), job.memory_mb


# A kernel keeps 64 bytes for each page of 4096, and some more that grows with memory.
_KEPT_OF = 32


def guest_mb(usual: Flavour, needed_mb: int) -> int:
    """Return the memory (MB) of a guest that gives its jobs so much."""
    whole_mb = needed_mb + usual.memory_margin_mb
    return whole_mb - min(0, (usual.memory_mb - whole_mb) // (_KEPT_OF - 1))


def margin_mb(usual: Flavour, memory_mb: int) -> int:
    """Return how much of a guest's memory (MB) is not promised: of a larger one its kernel takes more."""
    return usual.memory_margin_mb + max(0, memory_mb - usual.memory_mb) // _KEPT_OF


def too_many_now(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return why no more machines may belong to jobs now, or to those of its owner, if none may."""
    rule, ordered = builder.policies.own_machines, [o for o in builder.world.machines.values() if o.fleet]
    if sum(other.size for other in ordered) + own.size > rule.most:
        return limit("own_machines.most", rule.most)
    most = rule.most_per_user or rule.most
    if sum(other.size for other in ordered if other.user == own.user) + own.size > most:
        return limit("own_machines.most_per_user", most)
    return None


def never_own(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why these machines can never be, if they cannot."""
    wanted = job.machines or MachineRequest()
    if job.machines_fault is not None or wanted.per_node > 1:
        several = "several machines for each node outside an allocation"
        return job.machines_fault or because(Code.MACHINES_UNABLE, what=(several,))
    whose = not_its_image(builder, own, job) or not_its_network(builder, own, job)
    if whose is not None:
        return whose
    cpus, memory_mb = share(job)
    if own.flavour.cpus < cpus or own.flavour.node_memory_mb < memory_mb:
        shape, room = str(own.flavour.resources), own.flavour.node_memory_mb
        return because(Code.MACHINES_SMALL, shape=shape, memory_mb=room, cpus=cpus, needs_mb=memory_mb)
    many = too_many_ever(builder, own)
    if many is not None:
        return many
    return _places_ever(builder, own)


def _places_ever(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return that all hosts together could not carry them, if that is so."""
    world, policies = builder.world, builder.policies
    shape = own.flavour.resources
    need = own_need(world, own.job, shape)
    many = [places_ever(world, policies, host, shape, need) for host in policies.hosts]
    company = Company.ANY if own.request is None else own.request.company
    places = places_in(company, many)
    if places >= own.size:
        return None
    known = [host for name in policies.hosts if (host := world.hosts.get(name)) is not None]
    lacks = [why for host in known if (why := never(host, need, shape)) is not None]
    if lacks and len(lacks) == len(policies.hosts):
        return no_host(lacks)
    most = max((host.functions for host in known if host.reachable), default=0)
    if need.functions > most:
        return because(Code.MACHINES_FUNCTIONS, functions=need.functions, most=most)
    what = f"{own.what} on one host" if company is Company.TOGETHER else own.what
    what = f"{own.what}, each on another host," if company is Company.SPREAD else what
    return because(Code.MACHINES_NEVER, what=what, places=places)


def places_in(company: Company, places: list[int]) -> int:
    """Return how many machines fit on hosts with so many places, where they are to be as is asked for."""
    if company is Company.TOGETHER:
        return max(places, default=0)
    if company is Company.SPREAD:
        return sum(1 for many in places if many > 0)
    return sum(many for many in places if many > 0)


def not_its_image(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why the job cannot have its image, if it cannot."""
    environments = builder.policies.environments
    image = own.image or builder.policies.instances.image
    if environments.images and image not in environments.images:
        return because(Code.MACHINES_IMAGE, image=image, images=environments.images)
    return environments.refusal(job) or environments.keeps_out(image, job)


def not_its_network(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why the job cannot have its network, if it cannot."""
    network = "" if own.request is None else own.request.network or ""
    return builder.policies.own_machines.network_refusal(network, job)


def too_many_ever(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return which limit so many would always break, if there is one."""
    policies, rule = builder.policies, builder.policies.own_machines
    caps = {
        "own_machines.most": rule.most,
        "own_machines.most_per_user": rule.most_per_user or rule.most,
        "limits.max_instances": policies.limits.max_instances,
    }
    for key, most in caps.items():
        if own.size > most:
            return because(Code.MACHINES_MANY, what=own.what, key=key, most=most)
    return None
