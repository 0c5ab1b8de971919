"""Who has to leave a host now, and for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backfill.core.model.actions import PauseInstance, ThrottleInstance
from backfill.core.model.cluster import Job, Node, end_s
from backfill.core.model.fleet import Host, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.picture import Picture
from backfill.core.policies.budgets import Of
from backfill.core.policies.limits import Limits
from backfill.core.policies.victims import Candidate, Extent
from backfill.core.policy import PolicySet, Proof
from backfill.core.reconcile.builder import PlanBuilder, Progress, most_instances, on_cpu
from backfill.core.room import room

_STEADY = (Phase.READY, Phase.DRAINING)


# In these, a job's own machines on one host come back together or not at all.
_TOGETHER = (Phase.EVICTING, Phase.PARKED, Phase.RETURNING)


# So long is waited until Slurm shows the job behind a claim, as a share of the hook's patience.
_PATIENCE = 0.5


def leavers(world: Picture, policies: PolicySet, host: str) -> frozenset[str] | None:
    """Return names of the steady nodes that must leave a host given to a job; None: every one of them.

    Empty while a job's hook has spoken and Slurm has not shown yet how much the job got.
    """
    if policies.victims.extent is Extent.HOST:
        return None
    staying = [m for m in world.fleet.managed_on(host) if m.phase in _STEADY and not world.inside(m)]
    if not staying:
        return None
    wanted = wanted_on(world, policies, host)
    if wanted is None:
        return None if _waited_enough(world, policies, host) else frozenset()
    used = sum((policies.instances.flavour_of(m).resources for m in staying), NOTHING)
    room = capacity(world.hosts[host], policies.limits) - wanted
    excess = used - room
    need = Resources(max(0, excess.cpus), max(0, excess.memory_mb))
    if need == NOTHING:
        return frozenset()
    candidates = [candidate(world, policies, m) for m in staying]
    return frozenset(policies.victims.choose(candidates, need, world.now_s))


def wanted_on(world: Picture, policies: PolicySet, host: str) -> Resources | None:
    """Return what the jobs that hold a host's node got there; None: Slurm has not shown it yet.

    A job of which Slurm shows no memory may use all of it (`--mem=0`, or a site where Slurm counts
    none): where memory has to be free, that is what it got.
    """
    node_name = world.hosts[host].node
    node = world.nodes.get(node_name) if node_name is not None else None
    if node is None or host in world.closed:
        return None
    holders = world.jobs_on(node.name)
    if _unshown(world, host):
        return None
    got = _got(node, holders)
    if policies.proof is Proof.MEMORY and any(job.memory_mb == 0 for job in holders):
        return replace(got, memory_mb=world.hosts[host].capacity.memory_mb)
    return got


def _unshown(world: Picture, host: str) -> list[HostAllocation]:
    """Return the claims on a host whose jobs Slurm does not show on its node yet."""
    own = world.hosts[host].node
    holders = world.jobs_on(own) if own is not None else []
    known = {j.id for j in holders} | {str(j.raw_id) for j in holders}
    return [claim for claim in world.claims_on(host) if claim.job_id not in known]


def _got(node: Node, holders: Iterable[Job]) -> Resources:
    """Add up what jobs hold. An exclusive one holds more than it asked for: the node's count is true."""
    cpus = memory_mb = 0
    for job in holders:
        cpus += -(-job.cpus // max(1, job.num_nodes))
        memory_mb += job.memory_mb
    return Resources(max(cpus, node.cpus_allocated), memory_mb)


def fits_beside(world: Picture, policies: PolicySet, host: str) -> bool:
    """Return True if what runs on a host leaves the jobs that got it all that they got there."""
    if policies.victims.extent is Extent.HOST:
        return False
    wanted = wanted_on(world, policies, host)
    if wanted is None:
        return False
    return in_use(world, policies, host).fits(capacity(world.hosts[host], policies.limits) - wanted)


def in_use(world: Picture, policies: PolicySet, host: str) -> Resources:
    """Return what instances that are no part of a job's own take of a host, as far as that has to be free."""
    there = [i for i in world.fleet.instances_on(host) if not within(world, i)]
    cpus = sum(i.resources.cpus for i in there if i.occupies_cpu)
    if policies.proof is not Proof.MEMORY:
        return Resources(cpus, 0)
    return Resources(cpus, sum(i.resources.memory_mb for i in there if i.occupies_memory))


def within(world: Picture, instance: Instance) -> bool:
    """Return True if an instance is part of what a job got that has its host, and takes nothing besides."""
    node = world.managed.get(instance.name)
    ours = node is not None and instance.tag.generation == node.generation and instance.host == node.host
    return ours and node is not None and world.surely_inside(node)


def _waited_enough(world: Picture, policies: PolicySet, host: str) -> bool:
    """Return True if a claim on the host has waited so long for Slurm's word that all must leave."""
    return host in world.closed or world.now_s >= decided_s(world, policies, host)


def decided_s(world: Picture, policies: PolicySet, host: str) -> float:
    """Return when to stop waiting for Slurm's word on the claims of a host that it has not shown yet."""
    since_s = min((claim.since_s for claim in _unshown(world, host)), default=0.0)
    return since_s + _PATIENCE * policies.answer_within_s


def capacity(host: Host, limits: Limits) -> Resources:
    """Return what a host has for jobs and instances together."""
    return host.capacity - Resources(limits.keep_cpus, limits.keep_memory_mb)


def candidate(world: Picture, policies: PolicySet, node: ManagedNode) -> Candidate:
    """One managed node as a possible victim."""
    jobs = [j for j in world.jobs_on(node.name) if j.active]
    instance = world.instances.get((node.host, node.name))
    shape = policies.instances.flavour_of(node).resources
    memory_mb = instance.rss_mb if instance is not None else None
    ends = [end_s(j) for j in jobs]
    first = policies.ladder.rule(0).rung
    lost = first is Rung.REQUEUE  # a gentler rung keeps the work
    return Candidate(
        node.name,
        shape,
        idle=not jobs,
        priority=max((j.priority for j in jobs), default=0),
        started_s=max((j.start_s for j in jobs), default=node.since_s),
        end_s=None if not ends or None in ends else max(e for e in ends if e is not None),
        stake_core_s=sum((world.now_s - j.start_s) * j.cpus for j in jobs) if lost else 0.0,
        memory_mb=shape.memory_mb if memory_mb is None else memory_mb,
        repeats=_repeats(node, jobs),
    )


def _repeats(node: ManagedNode, jobs: Iterable[Job]) -> int:
    """Return how often a job of the node was pushed aside: within this run, or to start anew."""
    here = {(one.id, one.restarts): one.times for one in node.setbacks}
    return max((max(j.restarts, here.get((j.id, j.restarts), 0)) for j in jobs), default=0)


def must_leave(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if a node at work has to leave its host now."""
    world, policies = builder.world, builder.policies
    if node.name in world.closed or node.name in world.queue.above_budget:
        return True
    if node.inside and world.inside(node):
        return False
    if not world.taken(node.host):
        return builder.left(node.host)
    names = leavers(world, policies, node.host)
    if names == frozenset():
        awaits_word(builder, node.host)
    return names is None or node.name in names


def awaits_word(builder: PlanBuilder, host: str) -> bool:
    """Return True while Slurm is about to show how much of a host a job got whose hook has spoken."""
    world, policies = builder.world, builder.policies
    if policies.victims.extent is Extent.HOST or builder.left(host) or wanted_on(world, policies, host):
        return False
    if _waited_enough(world, policies, host):
        return False
    own = world.hosts[host].node
    builder.watch(*filter(None, (own,)))
    builder.wake_at(decided_s(world, policies, host))
    return True


def is_free_for(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if nobody but the node may use its host's CPUs now, or its part of them."""
    return not builder.unread and (not builder.taken_from(node) or has_room_beside(builder, node))


def has_room_beside(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the jobs that got the host leave the node all that it takes, and may be company.

    They get theirs whole: no CPU of theirs is given twice, nor memory that a guest holds which stands
    still. Where Slurm shows no memory of a job, it is only sure that the node takes no more than before.
    """
    world, policies, host = builder.world, builder.policies, node.host
    if policies.victims.extent is Extent.HOST or builder.left(host):
        return False
    wanted = wanted_on(world, policies, host)
    if wanted is None:
        return False
    known, instance = world.hosts[host], builder.instance(node)
    if (instance is None or not instance.occupies_memory) and _memory_unknown(world, known):
        return False
    there = world.fleet.managed_on(host)
    fellows = [
        m for m in there if m.name == node.name or (node.job and m.job == node.job and m.phase in _TOGETHER)
    ]
    inside = [m for m in there if world.inside(m)]  # in what their job got
    without = {m.name for m in (*fellows, *inside)}
    lent_twice = policies.placement.cpus(known.capacity.cpus) - known.capacity.cpus
    left = room(world, host, policies, kept=False, without=without) - wanted - Resources(lent_twice, 0)
    return sum((policies.instances.flavour_of(m).resources for m in fellows), NOTHING).fits(left)


def _memory_unknown(world: Picture, host: Host) -> bool:
    """Return True if a job on the host's own node may use more memory than Slurm shows."""
    return host.node is not None and any(job.memory_mb == 0 for job in world.jobs_on(host.node))


def most_disruptions(world: Picture, policies: PolicySet) -> int | None:
    """Return how many may be on their way out of our own accord; None: the budgets do not say."""
    if not policies.budgets.windows:
        return None
    present = world.fleet.count_in(*(phase for phase in Phase if phase not in ABSENT))
    clock_s = world.clock_s
    return policies.budgets.ceiling(Of.DISRUPTIONS, present, clock_s)


def above_budget(world: Picture, policies: PolicySet) -> frozenset[str]:
    """Return names of the nodes that must leave because a budget allows fewer now: first those that boot."""
    most = most_instances(world, policies)
    if most is None:
        return frozenset()
    excess = on_cpu(world) - most
    if excess <= 0:
        return frozenset()
    there = [m for m in world.managed.values() if m.phase in (Phase.BOOTING, *_STEADY)]
    there.sort(key=lambda m: m.phase is not Phase.BOOTING)
    one = Resources(1, 0)  # heads are counted here, whatever their size
    counted = [replace(candidate(world, policies, m), resources=one) for m in there]
    return frozenset(policies.victims.choose(counted, Resources(excess, 0), world.now_s))


def why_taken(builder: PlanBuilder, host: str) -> Reason | None:
    """Return to which jobs the host was given, or what else takes it as a whole, if anything."""
    if jobs := builder.world.takers(host):
        return because(Code.HOST_TAKEN, host=host, jobs=jobs)
    if host in builder.world.closed:
        return because(Code.CLOSED, subject=host, said=Words(builder.world.closed[host]))
    return because(Code.HOST_MAINTENANCE, host=host) if builder.left(host) else None


def only_claimed(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why work is not lost yet for a host of which nobody but a hook says it is taken.

    To stand still costs nothing, and for that a word is enough; Slurm shows soon who got the host.
    """
    world, host = builder.world, node.host
    if host in world.closed or node.name in world.closed or builder.left(host):
        return None
    known = world.hosts.get(host)
    own = None if known is None else known.node
    if own is None or not world.claims_on(host):
        return None
    if world.jobs_on(own):
        return None
    builder.watch(own)
    taken = why_taken(builder, host)
    return None if taken is None else because(Code.HOST_CLAIMED, why=taken)


def hold_back(builder: PlanBuilder, node: ManagedNode) -> Progress:
    """Leave it the rung's share of its CPUs."""
    percent = builder.rule(node).kept_percent
    return builder.do(
        ThrottleInstance(
            subject=node.name, generation=node.generation, reason=node.reason, host=node.host, percent=percent
        )
    )


def give_cpus(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> bool:
    """Return True if it has all of its CPUs; where it has not, that is changed."""
    if not instance.throttled:
        return True
    reason = f"host {node.host} is free again"
    action = ThrottleInstance(
        subject=node.name, generation=node.generation, reason=reason, host=node.host, percent=None
    )
    builder.insist(action, Goal.ALL_CPUS)
    return False


_OF_NOBODY = "nothing is known yet of this instance with our tag"


def stop_where_wanted(builder: PlanBuilder, instance: Instance, why: str = _OF_NOBODY) -> None:
    """Pause what nobody can take over now if its host is wanted: that costs it nothing but time."""
    host, name = instance.host, instance.name
    taken = builder.taken(host) and not within(builder.world, instance)
    if instance.state is InstanceState.RUNNING and taken:
        reason = f"host {host} is wanted, and {why}"
        builder.do(PauseInstance(subject=name, generation=instance.tag.generation, reason=reason, host=host))
