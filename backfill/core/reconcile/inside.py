"""Machines within the allocation of a job that has bare-metal nodes: made on these, gone with it.

They are nodes of Slurm like all others of ours, kept for jobs of the same owner, so that whatever he
starts on them runs as himself and needs no key. The order that makes them is a fleet's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backfill.core.model.actions import EndInside, NameMachines, TellJob, UnpinJob
from backfill.core.model.cluster import OUR_REASON, Job
from backfill.core.model.fleet import Flavour, Fleet, FleetState
from backfill.core.model.job_machines import NONE_THERE, JobMachines, MachinesState, render
from backfill.core.model.lifecycle import ABSENT, ManagedNode
from backfill.core.model.plan import SetFleet, SetMachines
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import named
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, members
from backfill.core.reconcile.job_machines import (
    PLAIN,
    await_devices,
    become,
    decided_over,
    failed,
    pin_members,
    pinned,
    reclaim,
    taken_in,
)
from backfill.core.reconcile.own_machines import (
    allocation_over,
    awaits_job,
    disk_too_large,
    margin_mb,
    not_its_image,
    not_its_network,
    order_of,
    share,
    too_many_ever,
    too_many_now,
)
from backfill.core.room import NodeNeed, never, own_need, places_ever

# Nodes and jobs are read one after the other: by then each has been read since a job began.
_READ_S = 30.0


def plan_inside(builder: PlanBuilder) -> None:
    """Take in the jobs that have bare-metal nodes, ask for machines there, and have none yet."""
    world, policies = builder.world, builder.policies
    if builder.blind or not policies.own_machines.enabled or not policies.own_machines.inside:
        return
    for job_id in sorted(world.job_index.active_asking):
        job = world.jobs[job_id]
        if job_id in world.machines or not policies.own_machines.asks_inside(job):
            continue
        got, found = _got(builder, job), _found(builder, job)
        if got is None or found is None:
            continue  # some of them are taken over in a moment
        size, flavour = _size(builder, job, got)
        request = replace(job.machines or PLAIN, at=(), run=0)
        own = replace(taken_in(builder, job, size, flavour, request), inside=True)
        reason = own.reason
        if found:
            own = _taken_over(builder, own, found)
        builder.add(SetMachines(own, reason))


def _found(builder: PlanBuilder, job: Job) -> list[ManagedNode] | None:
    """Those of the job that a daemon without its journal has taken over; None: not all of them yet."""
    world, names = builder.world, () if job.machines is None else job.machines.at
    ours = [name for name in names if named(job, name)]
    if any(name not in world.managed and world.places_of(name) for name in ours):
        builder.awaits(Topic.READING)
        return None
    known = (world.managed.get(name) for name in ours)
    return [node for node in known if node is not None and node.inside and node.job == job.id]


def _taken_over(builder: PlanBuilder, own: JobMachines, found: list[ManagedNode]) -> JobMachines:
    """They go on as they are; where some are missing all are made anew once nothing runs in the others."""
    now_s, reason = float(builder.now_s), "they were found with our tag, and the job knows of them"
    fleet = Fleet(
        found[0].fleet,
        own.size,
        FleetState.READY,
        now_s,
        own.image,
        flavour=own.flavour,
        job=own.job,
        hosts=tuple(node.host for node in found),
        members=tuple(node.name for node in found),
        reason=reason,
    )
    builder.add(SetFleet(fleet, reason))
    return replace(
        own, state=MachinesState.ALLOCATED, fleet=fleet.id, orders=1, spawning_s=now_s, reason=reason
    )


def _got(builder: PlanBuilder, job: Job) -> tuple[int, int] | None:
    """Return CPUs and memory (MB) that the job got on the node with the fewest; None: not read yet.

    Slurm tells the job's CPUs on all nodes together, and how many of each node are given to anybody.
    Of the memory it got less there only where that is by the CPU.
    """
    (cpus, memory_mb), there = share(job), [_given(builder, job, name) for name in job.nodes]
    if sum(there) < job.cpus or 0 in there:
        builder.wake_at(job.start_s + _READ_S)
        builder.awaits(Topic.READING)
        return None if builder.now_s < job.start_s + _READ_S else (cpus, memory_mb)
    fewest = min(cpus, *there)
    return fewest, memory_mb * fewest // cpus if job.memory_by_cpu else memory_mb


def _given(builder: PlanBuilder, job: Job, name: str) -> int:
    """Return how many CPUs of the node the job has at most."""
    node = builder.world.nodes.get(name)
    if node is None:
        return 0
    others = (other for other in builder.world.jobs_on(name) if other.holds_nodes and other.id != job.id)
    known = (o.cpus for o in others if len(o.nodes) == 1 and builder.now_s >= o.start_s + _READ_S)
    return max(0, node.cpus_allocated - sum(known))


def _size(builder: PlanBuilder, job: Job, got: tuple[int, int]) -> tuple[int, Flavour]:
    """How many machines, and of what shape: what its word leaves open is an equal part of what it got."""
    usual, wanted = builder.policies.instances.flavour, job.machines or PLAIN
    cpus, memory_mb = got
    memory_mb = max(0, memory_mb - sum(wanted.regions))  # what they share is a part of it, too
    disk_gb = usual.disk_gb if wanted.disk_gb is None else -int(-wanted.disk_gb // 1)
    whole_mb = wanted.memory_mb or memory_mb // wanted.per_node or usual.memory_mb
    flavour = replace(
        usual,
        cpus=wanted.cpus or max(1, cpus // wanted.per_node),
        memory_mb=whole_mb,
        disk_gb=max(1, disk_gb),
        memory_margin_mb=margin_mb(usual, whole_mb),
    )
    return max(1, len(job.nodes)) * wanted.per_node, flavour


# --- one job's ------------------------------------------------------------------------------------


def step_inside(builder: PlanBuilder, own: JobMachines) -> None:
    """Take the machines within a job's allocation a step further."""
    if builder.blind or builder.unread:
        return
    if own.state is MachinesState.RECLAIMED:
        _step_reclaimed(builder, own)
    elif allocation_over(builder, own):
        if own.state is MachinesState.GIVEN_BACK:
            become(builder, own, MachinesState.GONE, "its job is over")
        else:
            reclaim(builder, own, "its job is over")
    elif not awaits_job(builder, own):
        _STEPS[own.state](builder, own, builder.world.jobs[own.job])


def _step_queued(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    never = _never(builder, own, job)
    if never is not None:
        reason = sentence(never)
        _refused_for_good(builder, own, reason)
        return
    fleet = builder.world.fleets.get(own.fleet) if own.fleet else None
    if not own.fleet:
        _order(builder, own, job)
    elif fleet is None or not fleet.growing:
        failed(builder, own, fleet)
    elif fleet.state is FleetState.MAKING:
        reason = f"{own.what} is being made" if own.size == 1 else f"{own.what} are being made"
        become(builder, own, MachinesState.SPAWNING, reason, spawning_s=float(builder.now_s))


def _refused_for_good(builder: PlanBuilder, own: JobMachines, reason: str) -> None:
    if own.fleet:
        become(builder, own, MachinesState.RECLAIMED, reason, after=MachinesState.GIVEN_BACK)
    else:
        _tell(builder, own, reason)
        become(builder, own, MachinesState.GIVEN_BACK, reason)


def _tell(builder: PlanBuilder, own: JobMachines, reason: str) -> None:
    said = f"{OUR_REASON} {NONE_THERE}: {reason}"
    why = "its owner may ask"
    builder.do(TellJob(subject=own.job, generation=own.restarts, reason=why, job_id=own.job, text=said))


def _order(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    hosts = _hosts(builder, job)
    why = too_many_now(builder, own) or _claimed(builder, hosts)
    if why is not None:
        builder.awaits(Topic.READING)
        builder.refuse(f"job {own.job}", Goal.MACHINES, why)
        return
    per_node = (own.request or PLAIN).per_node
    orders, reason = own.orders + 1, f"job {own.job} is to have them on its nodes"
    fleet = Fleet(
        order_of(own.job, orders),
        own.size,
        FleetState.WAITING,
        builder.now_s,
        own.image,
        flavour=own.flavour,
        job=own.job,
        hosts=tuple(host for host in hosts for _ in range(per_node)),
        reason=reason,
    )
    builder.add(SetFleet(fleet, reason))
    become(builder, own, own.state, "they are ordered", fleet=fleet.id, orders=orders)


def _hosts(builder: PlanBuilder, job: Job) -> list[str]:
    found = (builder.world.host_of_node(name) for name in job.nodes)
    return [host for host in found if host is not None]


def _claimed(builder: PlanBuilder, hosts: list[str]) -> Reason | None:
    """Return whose room is not proven free yet: what is still there has to leave before."""
    for host in hosts:
        if any(claim.waiting for claim in builder.world.claims_on(host)):
            return because(Code.MACHINES_CLAIMED, host=host)
    return None


def _step_spawning(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    fleet = builder.world.fleets.get(own.fleet)
    if fleet is None or fleet.state not in (FleetState.MAKING, FleetState.READY):
        failed(builder, own, fleet)
    elif fleet.state is FleetState.READY and pinned(builder, own, fleet):
        reason = f"{', '.join(fleet.members)} take jobs of {own.user} and no others"
        become(builder, own, MachinesState.SPAWNED, reason, spawned_s=float(builder.now_s))
    elif len(fleet.members) == fleet.size:
        pin_members(builder, own, fleet)


def _step_spawned(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    fleet = builder.world.fleets.get(own.fleet)
    if fleet is None or _lost(builder, own, fleet):
        failed(builder, own, fleet, because(Code.MACHINE_LOST))
    elif await_devices(builder, own, fleet):
        return
    elif job.machines is None or (job.machines.at, job.machines.run) != (fleet.members, own.restarts):
        builder.insist(_name(own, fleet.members), Goal.MACHINES)
    else:
        reason = f"job {own.job} knows of {', '.join(fleet.members)}"
        become(builder, own, MachinesState.ALLOCATED, reason, began_s=float(builder.now_s))


def _name(own: JobMachines, names: tuple[str, ...]) -> NameMachines:
    """Return the word by which `backfill run` finds them; no names: there are none any more."""
    why = "they take its owner's jobs" if names else own.reason
    said = f"{own.what} on its nodes: {', '.join(names)}" if names else f"its machines go: {own.reason}"
    word = render(replace(own.request or PLAIN, at=names, run=own.restarts if names else 0))
    text = f"{OUR_REASON} {said} {word}"
    return NameMachines(subject=own.job, generation=own.restarts, reason=why, job_id=own.job, text=text)


def _step_allocated(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    """One that was lost costs all of them, once nothing of the job is in the others."""
    fleet = builder.world.fleets.get(own.fleet)
    if fleet is None or (_lost(builder, own, fleet) and not _inner(builder, own)):
        failed(builder, own, fleet, because(Code.MACHINE_LOST))


def _lost(builder: PlanBuilder, own: JobMachines, fleet: Fleet) -> bool:
    nodes = [node for node in members(builder, fleet) if node.phase not in ABSENT]
    return len(nodes) < own.size


def _inner(builder: PlanBuilder, own: JobMachines) -> list[tuple[ManagedNode, Job]]:
    """Jobs in its machines."""
    fleet = builder.world.fleets.get(own.fleet)
    nodes = [] if fleet is None else members(builder, fleet)
    found = {j.id: (node, j) for node in nodes for j in builder.world.jobs_on(node.name) if j.active}
    return [found[job_id] for job_id in sorted(found)]


def _step_reclaimed(builder: PlanBuilder, own: JobMachines) -> None:
    """End what the job has in them together with it; then let them go, and who may have them."""
    over, fleet = allocation_over(builder, own), builder.world.fleets.get(own.fleet)
    if not over and not decided_over(own) and awaits_job(builder, own):
        return
    job = None if over else builder.world.jobs.get(own.job)
    over = job is None
    if job is not None and job.machines is not None and job.machines.at:
        builder.insist(_name(own, ()), Goal.MACHINES)
    for node, inner in _inner(builder, own) if over else ():
        reason = f"job {own.job}, on whose nodes {node.name} is, is over"
        builder.insist(
            EndInside(
                subject=node.name,
                generation=node.generation,
                reason=reason,
                job_id=inner.id,
                of=own.job,
                restarts=own.restarts,
                missing=builder.surely_gone(own.job),
            ),
            Goal.MACHINES,
            inner.id,
        )
    if fleet is not None:
        if fleet.state not in (FleetState.LEAVING, FleetState.UNDOING):
            end = FleetState.GONE if fleet.state is FleetState.FAILED else FleetState.LEAVING
            builder.add(SetFleet(replace(fleet, state=end, reason=own.reason), own.reason))
        return
    if own.spawning_s is not None and builder.world.pinned.get(own.job) != "":
        unpin = UnpinJob(subject=own.job, generation=own.restarts, reason=own.reason, job_id=own.job)
        builder.insist(unpin, Goal.MACHINES)
        return
    after = MachinesState.GONE if over else own.after
    if after is MachinesState.GIVEN_BACK:
        _tell(builder, own, own.reason)
    nothing = {"fleet": "", "spawning_s": None, "spawned_s": None, "released_s": None, "began_s": None}
    become(builder, own, after, own.reason, **nothing)


def _step_given_back(builder: PlanBuilder, own: JobMachines, job: Job) -> None:
    builder.refuse(f"job {own.job}", Goal.MACHINES, because(Code.MACHINES_GIVEN_BACK, said=own.reason))


_STEPS: dict[MachinesState, Callable[[PlanBuilder, JobMachines, Job], None]] = {
    MachinesState.QUEUED: _step_queued,
    MachinesState.SPAWNING: _step_spawning,
    MachinesState.SPAWNED: _step_spawned,
    MachinesState.ALLOCATED: _step_allocated,
    MachinesState.GIVEN_BACK: _step_given_back,
}


def _never(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why these machines can never be, if they cannot."""
    world, policies, wanted = builder.world, builder.policies, job.machines or PLAIN
    if job.machines_fault is not None:
        return job.machines_fault
    for name in job.nodes:
        if world.host_of_node(name) not in policies.hosts:
            return because(Code.MACHINES_ELSEWHERE, node=name)
    denied = not_its_image(builder, own, job) or not_its_network(builder, own, job)
    denied = denied or disk_too_large(builder, wanted) or too_many_ever(builder, own)
    if denied is not None:
        return denied
    (got_cpus, got_mb), many = _got(builder, job) or share(job), wanted.per_node
    cpus, memory_mb = own.flavour.cpus * many, own.flavour.memory_mb * many + sum(wanted.regions)
    if cpus > got_cpus or (got_mb and memory_mb > got_mb):
        got = {"got_cpus": got_cpus, "got_mb": got_mb or ""}
        return because(Code.MACHINES_BEYOND, many=many, cpus=cpus, memory_mb=memory_mb, **got)
    shape = own.flavour.resources
    need = own_need(world, own.job, shape, policies.environments.somewhere(own.image))
    few = _lacking(builder, job, need, shape) or _few_functions(builder, job, need.functions * many)
    if few is not None:
        return few
    places = min(places_ever(world, policies, host, shape, need) for host in _hosts(builder, job))
    if places < many:
        return because(Code.MACHINES_NEVER, what=own.what, places=places * len(job.nodes))
    return None


def _lacking(builder: PlanBuilder, job: Job, need: NodeNeed, shape: Resources) -> Reason | None:
    """Return what one of its hosts can never give to its machines there."""
    known = (builder.world.hosts.get(host) for host in _hosts(builder, job))
    lacks = (never(host, need, shape, builder.policies) for host in known if host is not None)
    return next(filter(None, lacks), None)


def _few_functions(builder: PlanBuilder, job: Job, functions: int) -> Reason | None:
    """Return which of its hosts has too few virtual functions for its machines there, if one has."""
    for host in _hosts(builder, job):
        known = builder.world.hosts.get(host)
        if known is not None and known.reachable and known.functions < functions:
            free = {"free": known.functions, "every": known.functions}
            return because(Code.FUNCTIONS_FREE, host=host, functions=functions, **free)
    return None
