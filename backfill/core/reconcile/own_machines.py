"""A job's own machines as the others see them: which jobs get some, how many, and what they are for.

They are made by an order of instances, as a fleet that a person asks for: what such an order wants, and
whose turn it is, is here as well. How far a job's machines are is decided in `job_machines.py`, or in
`inside.py` where they are within its allocation; how far an order is, in `fleets.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from backfill.core.model.cluster import Job, MachineRequest
from backfill.core.model.company import Company
from backfill.core.model.fleet import Flavour, Fleet, FleetState
from backfill.core.model.job_machines import JobMachines, MachinesState
from backfill.core.model.lifecycle import ABSENT, OVER, ManagedNode, Phase
from backfill.core.model.refusals import Code, Goal, Reason, because, limit, no_host
from backfill.core.picture import Picture, named
from backfill.core.placement import rooms_of
from backfill.core.policy import PolicySet
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, budgets_change_s, members, most_instances
from backfill.core.reconcile.names import names_of, tried_again_s
from backfill.core.reconcile.pressure import is_free_for
from backfill.core.room import NodeNeed, functions_free, never, own_need, own_network, places_now

# --- which jobs, in which order ------------------------------------------------------------------


def asks(policies: PolicySet, job: Job) -> bool:
    """Return True if a job is to have machines of its own, so that no other instance is made for it."""
    priorities = policies.priorities
    by_qos = job.qos in priorities.low_qos and job.partition not in priorities.high
    return policies.own_machines.asks(job, low=by_qos or job.partition in priorities.low)


def kinds_waiting(world: Picture, policies: PolicySet) -> Iterator[tuple[Job, Collection[str]]]:
    """Pending jobs that count as low, a whole kind at a time: the queue may be very long."""
    priorities = policies.priorities
    kinds = world.job_index.kinds_pending(priorities.low)
    yield from (kind for kind in kinds if not asks(policies, kind[0]))
    if priorities.low_qos:
        others = sorted(world.job_index.partitions_waiting() - {*priorities.low, *priorities.high})
        kinds = (kind for kind in world.job_index.kinds_pending(others) if kind[0].qos in priorities.low_qos)
        yield from (kind for kind in kinds if not asks(policies, kind[0]))


def order_of(job_id: str, number: int) -> str:
    """Return the id of one of the orders of a job's machines."""
    return f"job-{job_id}-{number}"


# --- how large, how many -------------------------------------------------------------------------


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


def fellows(builder: PlanBuilder, own: JobMachines) -> list[JobMachines]:
    """Return what the other components of a heterogeneous job are to have: they begin together."""
    return builder.world.machine_index.fellows(own.job)


def too_many_now(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return why no more machines may belong to jobs now, or to those of its owner, if none may.

    Where the other components of the job have none yet, these must be allowed as well: all are of no use
    without them.
    """
    if (why := _too_many_of_user(builder, own)) is not None:
        return why
    index, most = builder.world.machine_index, builder.policies.own_machines.most
    if index.ordered() + index.lacking(own) <= most:
        return None
    builder.awaits(Topic.TURN)
    return limit("own_machines.most", most)


def _too_many_of_user(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return why its owner may have no more of them now, whatever others have, if that is so."""
    index, most = builder.world.machine_index, builder.policies.own_machines.most_per_user
    if most and index.ordered(own.user) + index.lacking(own) > most:
        return limit("own_machines.most_per_user", most)
    return None


def never_own(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why these machines can never be, if they cannot."""
    wanted = job.machines or MachineRequest()
    if job.machines_fault is not None or wanted.per_node > 1:
        several = "several machines for each node outside an allocation"
        return job.machines_fault or because(Code.MACHINES_UNABLE, what=(several,))
    denied = not_its_image(builder, own, job) or not_its_network(builder, own, job)
    denied = denied or disk_too_large(builder, wanted)
    if denied is not None:
        return denied
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
    need = own_need(world, own.job, shape, policies.environments.somewhere(own.image))
    many = rooms_of(world, policies).places_ever(world, (shape, need))
    company = Company.ANY if own.request is None else own.request.company
    places = places_in(company, many)
    if places >= own.size:
        return None
    known = [host for name in policies.hosts if (host := world.hosts.get(name)) is not None]
    lacks = [why for host in known if (why := never(host, need, shape, policies)) is not None]
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
    image = _image(builder, own)
    if environments.images and image not in environments.images:
        return because(Code.MACHINES_IMAGE, image=image, images=environments.images)
    return environments.refusal(job) or environments.keeps_out(image, job)


def not_its_network(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why the job cannot have its network, if it cannot."""
    network = "" if own.request is None else own.request.network or ""
    return builder.policies.own_machines.network_refusal(network, job)


def disk_too_large(builder: PlanBuilder, wanted: MachineRequest) -> Reason | None:
    """Return that the job asks for a larger disk than it may have, if it does."""
    policies = builder.policies
    return policies.own_machines.disk_refusal(wanted.disk_gb, policies.instances.flavour)


def too_many_ever(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return which limit so many would always break, those of its fellows included, if there is one."""
    policies, rule, others = builder.policies, builder.policies.own_machines, fellows(builder, own)
    size = own.size + sum(other.size for other in others)
    what = f"{size} machines for all components of its job" if others else own.what
    caps = {
        "own_machines.most": rule.most,
        "own_machines.most_per_user": rule.most_per_user or rule.most,
        "limits.max_instances": policies.limits.max_instances,
    }
    for key, most in caps.items():
        if size > most:
            return because(Code.MACHINES_MANY, what=what, key=key, most=most)
    return _too_many_alike(builder, own, others, what)


def _too_many_alike(
    builder: PlanBuilder, own: JobMachines, others: list[JobMachines], what: str
) -> Reason | None:
    """Return that there are too few names for so many, or that their image may never have so much."""
    policies, image = builder.policies, _image(builder, own)
    alike = [own, *(other for other in others if _image(builder, other) == image)]
    names = _names_for(builder, own)
    sharing = [own, *(other for other in others if _names_for(builder, other) <= names)]
    rule = policies.environments.rule(image)
    wanted = {
        "names for them in instances.names": (sum(o.size for o in sharing), len(names)),
        f"CPUs for image {image}": (sum(o.size * o.flavour.cpus for o in alike), rule.most_cpus),
        f"MB for image {image}": (sum(o.size * o.flavour.memory_mb for o in alike), rule.most_memory_mb),
    }
    for key, (much, most) in wanted.items():
        if much > most and (most or key.startswith("names")):
            return because(Code.MACHINES_MANY, what=what, key=key, most=most)
    return None


def _names_for(builder: PlanBuilder, own: JobMachines) -> frozenset[str]:
    """Return the names that they may have, in use or not."""
    network = own_network(builder.world, own.job)
    return names_of(builder.world, builder.policies).meant_for(_image(builder, own), network)


def _image(builder: PlanBuilder, own: JobMachines) -> str:
    return own.image or builder.policies.instances.image


# --- one of them ---------------------------------------------------------------------------------


_STANDS = (Phase.EVICTING, Phase.PARKED)


def kept_off(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return which fellow of a job's own machine stands still while its host is wanted, if one does.

    They stand still together, and go on together: a connection between them outlives that.
    """
    own = builder.world.machines.get(node.job) if node.job else None
    fleet = None if own is None else builder.world.fleets.get(own.fleet)
    if own is None or fleet is None or own.state is not MachinesState.ALLOCATED or fleet.size < 2:
        return None
    for other in members(builder, fleet):
        away = other.name != node.name and other.phase in _STANDS
        if away and (not is_free_for(builder, other) or other.name in builder.world.closed):
            return because(Code.FELLOW_KEPT_OFF, node=other.name, host=other.host)
    return None


def is_over(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the allocation in which a machine is has ended: it goes, and does not come back.

    `node` is within one.
    """
    own, job = builder.world.machines.get(node.job), builder.world.jobs.get(node.job)
    if own is not None:
        return allocation_over(builder, own)
    if job is None:
        return builder.surely_gone(node.job)
    return not job.active or not named(job, node.name)


def allocation_over(builder: PlanBuilder, own: JobMachines) -> bool:
    """Return True if the run of the job for which they were made is surely over: Slurm shows that, or has
    not shown the job for long.
    """
    job = builder.world.jobs.get(own.job)
    if job is None:
        return builder.surely_gone(own.job)
    return job.restarts != own.restarts or not job.active


def let_in(builder: PlanBuilder, node: ManagedNode, job: Job) -> bool:
    """Return True if another job may be in a machine within an allocation: one of the same owner.

    Where nobody knows whose it is, because Slurm does not show its job at this moment, that is waited for.
    """
    if not node.inside:
        return False
    outer = builder.world.jobs.get(node.job) or builder.world.machines.get(node.job)
    return not builder.surely_gone(node.job) if outer is None else job.user == outer.user


def awaits_job(builder: PlanBuilder, own: JobMachines) -> bool:
    """Return True while Slurm does not show the job, and it may still be there: nothing is done then."""
    if own.job in builder.world.jobs or builder.surely_gone(own.job):
        return False
    builder.refuse(f"job {own.job}", Goal.MACHINES, because(Code.JOB_MISSING, job=own.job))
    return True


# --- orders of instances --------------------------------------------------------------------------


def in_turn(builder: PlanBuilder) -> list[Fleet]:
    """Return all orders, the earliest first."""
    return sorted(builder.world.fleets.values(), key=lambda f: (f.ordered_s, f.id))


def all_begun(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if none of its members has to be begun, or begun once more."""
    there = members(builder, fleet)
    return len(fleet.members) == fleet.size and all(m.phase is not Phase.FAILED for m in there)


def image_of_order(builder: PlanBuilder, fleet: Fleet) -> str:
    """Return the master image of its members."""
    return fleet.image or builder.policies.instances.image


def need_of_member(builder: PlanBuilder, fleet: Fleet) -> NodeNeed:
    """Return what each of its members takes of a host."""
    shape = None if fleet.flavour is None else fleet.flavour.resources
    image = builder.policies.environments.somewhere(fleet.image)
    if fleet.job:
        return own_need(builder.world, fleet.job, shape, image)
    return NodeNeed(shape=shape, image=image)


def places_on(builder: PlanBuilder, fleet: Fleet, host: str, without: Collection[str] = ()) -> int:
    """Return how many of its members fit on a host that is open, if nodes named `without` were gone."""
    need = need_of_member(builder, fleet)
    shape = fleet.flavour or builder.policies.instances.flavour
    every = (m for m in builder.world.fleet.managed_on(host) if m.phase not in ABSENT)
    there = [m for m in every if m.name not in without]
    known = builder.world.hosts[host]
    size = known.size_for(shape.resources)
    if size is None or never(known, need, shape.resources, builder.policies) is not None:
        return 0
    shared_mb = 0 if any(m.job == fleet.job for m in there) else need.region_mb
    places = [places_now(builder.world, host, builder.policies, size, shared_mb, without)]
    if need.functions:
        places.append(functions_free(builder.world, builder.policies, host) // need.functions)
    return min(*places, builder.policies.limits.max_per_host - len(there))


def free_names(builder: PlanBuilder, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Yield names that nothing uses, inside Slurm or outside, with their addresses.

    Those that have failed come last, once they may be tried again, the first that failed before others.
    """
    world = builder.world
    failed: list[tuple[float, str, str]] = []
    for name, address in names_of(world, builder.policies).free(world):
        if world.places_of(name) or not may_have(builder, fleet, name):
            continue
        node = world.managed.get(name)
        if node is None:
            if name not in world.nodes:
                yield name, address
        elif _serves_again(builder, node):
            failed.append((node.since_s, name, address))
    yield from ((name, address) for _, name, address in sorted(failed))


def names_soon(builder: PlanBuilder, fleet: Fleet) -> int:
    """Return how many names its members could have if whatever works under them were gone.

    Under a name that has failed nothing works that goes: until it may be tried again, nobody has it. And a
    node of somebody else's stays.
    """
    world = builder.world
    names = names_of(world, builder.policies)
    network = own_network(world, fleet.job) if fleet.job else ""
    meant = names.meant_for(image_of_order(builder, fleet), network)
    failed = {n for n in world.fleet.in_phase(Phase.REMOVING) if world.managed[n].fail}
    failed |= {n for n in world.fleet.in_phase(*OVER) if not _serves_again(builder, world.managed[n])}
    return len(meant - names.strays(world) - failed)


def _serves_again(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if an order may have a name that has failed; another order's is tried again by that."""
    if node.fleet:
        return False
    again_s = tried_again_s(builder, node)
    builder.wake_at(again_s)
    return builder.now_s >= again_s


def may_have(builder: PlanBuilder, fleet: Fleet, name: str) -> bool:
    """Return True unless the name is for other images, or for other networks."""
    network = own_network(builder.world, fleet.job) if fleet.job else ""
    return not builder.policies.name_reserved(name, image_of_order(builder, fleet), network)


# --- whose turn it is -----------------------------------------------------------------------------


def lacks_room(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if machines of a job's own wait to be begun: all of them, or some (once more)."""
    if not fleet.job or fleet.state is not FleetState.MAKING:
        return bool(fleet.job) and fleet.state is FleetState.WAITING
    due_s = [m.retry.not_before_s or 0.0 for m in members(builder, fleet) if m.phase is Phase.FAILED]
    first_s = min(due_s, default=inf)
    builder.wake_at(first_s)
    return len(fleet.members) < fleet.size or builder.now_s >= first_s


def first_of_all(builder: PlanBuilder) -> Fleet | None:
    """Return the order of a job's own machines before which no others are made, if there is one."""
    for fleet in builder.world.fleets.values():
        if not fleet.hosts and lacks_room(builder, fleet) and comes_first(builder, fleet):
            return fleet
    return None


def comes_first(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if an order of a job's has been passed over for long enough, and can soon be served.

    Room that is kept free for it serves nobody while hosts that it needs are given away for long, or dead,
    while names that it needs are not to be had, or a budget allows fewer instances than that.
    """
    due_s = fleet.ordered_s + builder.policies.own_machines.passed_over_s
    builder.wake_at(due_s)
    if builder.now_s < due_s:
        return False
    if fleet.state is not FleetState.WAITING:
        return True
    if names_soon(builder, fleet) < fleet.size or _above_budget(builder, fleet):
        return False
    builder.awaits(Topic.ROOM)
    shape = (fleet.flavour or builder.policies.instances.flavour).resources
    rooms, need = rooms_of(builder.world, builder.policies), need_of_member(builder, fleet)
    places, more_s = rooms.places_soon(builder.world, (shape, need))
    builder.wake_at(more_s)
    return places_in(fleet.company, places) >= fleet.size


def _above_budget(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if a budget forbids so many now, whoever else makes way."""
    most = most_instances(builder.world, builder.policies)
    builder.wake_at(budgets_change_s(builder.world, builder.policies))
    return most is not None and fleet.size > most
