"""Who has to leave now although nobody takes the whole host: the needed victims, and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backfill.core.cluster import Job, Node
from backfill.core.fleet import Host
from backfill.core.foresight import end_s
from backfill.core.guards import Limits
from backfill.core.lifecycle import ABSENT, ON_CPU, ManagedNode, Phase, Rung
from backfill.core.policies.budgets import Of
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.victims import Candidate, Extent
from backfill.core.policy import PolicySet, Proof
from backfill.core.quantities import NOTHING, Resources
from backfill.core.world import World

_STEADY = (Phase.READY, Phase.DRAINING)
# So long is waited until Slurm shows the job behind a claim, as a share of the hook's patience.
_PATIENCE = 0.5


def leavers(world: World, policies: PolicySet, host: str) -> frozenset[str] | None:
    """Names of the steady nodes that must leave a host given to a job; None: every one of them.

    Empty while a job's hook has spoken and Slurm has not shown yet how much the job got.
    """
    names = frozenset(m.name for m in world.managed_on(host) if m.phase in _STEADY)
    if policies.victims.extent is Extent.HOST or not names:
        return None
    wanted = wanted_on(world, host)
    if wanted is None:
        return None if _waited_enough(world, policies, host) else frozenset()
    staying = [m for m in world.managed_on(host) if m.phase in _STEADY]
    shape = policies.instances.flavour.resources
    used = sum((shape for _ in staying), NOTHING)
    room = capacity(world.hosts[host], policies.limits) - wanted
    excess = used - room
    need = Resources(max(0, excess.cpus), max(0, excess.memory_mb))
    if need == NOTHING:
        return frozenset()
    candidates = [candidate(world, policies, m) for m in staying]
    return frozenset(policies.victims.choose(candidates, need, world.now_s))


def wanted_on(world: World, host: str) -> Resources | None:
    """What the jobs that hold a host's node got there; None: Slurm has not shown it yet."""
    node_name = world.hosts[host].node
    node = world.nodes.get(node_name) if node_name is not None else None
    if node is None or host in world.closed:
        return None
    holders = [j for j in world.jobs_on(node.name) if j.holds_nodes]
    known = {j.id for j in holders} | {str(j.raw_id) for j in holders}
    if any(job_id not in known for job_id in world.takers(host)):
        return None
    return _got(node, holders)


def _got(node: Node, holders: Iterable[Job]) -> Resources:
    """An exclusive job holds more than it asked for: the node's own count is the truth."""
    cpus = memory_mb = 0
    for job in holders:
        cpus += -(-job.cpus // max(1, job.num_nodes))
        memory_mb += job.memory_mb
    return Resources(max(cpus, node.cpus_allocated), memory_mb)


def fits_beside(world: World, policies: PolicySet, host: str) -> bool:
    """Whether what runs on a host leaves the jobs that got it all that they got there."""
    if policies.victims.extent is Extent.HOST:
        return False
    wanted = wanted_on(world, host)
    if wanted is None:
        return False
    there = world.instances_on(host)
    cpus = sum(i.resources.cpus for i in there if i.occupies_cpu)
    memory_mb = 0
    if policies.proof is Proof.MEMORY:
        memory_mb = sum(i.resources.memory_mb for i in there if i.occupies_memory)
    room = capacity(world.hosts[host], policies.limits) - wanted
    return cpus <= room.cpus and memory_mb <= room.memory_mb


def _waited_enough(world: World, policies: PolicySet, host: str) -> bool:
    """Whether the oldest claim on the host has waited so long that all must leave."""
    if host in world.closed:
        return True
    since_s = min((c.since_s for c in world.claims.values() if host in c.hosts), default=0.0)
    return world.now_s - since_s >= _PATIENCE * policies.answer_within_s


def decided_s(world: World, policies: PolicySet, host: str) -> float:
    """When to stop waiting for Slurm's word on the claims of a host."""
    since_s = min((c.since_s for c in world.claims.values() if host in c.hosts), default=0.0)
    return since_s + _PATIENCE * policies.answer_within_s


def capacity(host: Host, limits: Limits) -> Resources:
    """What a host has for jobs and instances together."""
    return host.capacity - Resources(limits.keep_cpus, limits.keep_memory_mb)


def candidate(world: World, policies: PolicySet, node: ManagedNode) -> Candidate:
    """One managed node as a possible victim."""
    jobs = [j for j in world.jobs_on(node.name) if j.active]
    instance = world.instances.get((node.host, node.name))
    shape = policies.instances.flavour.resources
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
        repeats=max([node.evictions, *(j.restarts for j in jobs)]),
    )


def present_rung(world: World, policies: PolicySet, node: ManagedNode) -> RungRule:
    """The present rung of a node: one that would start its jobs anew spares the protected."""
    ladder = policies.ladder
    place = 0 if node.stop is None else ladder.place(node.stop.rung, node.stop.kind)
    rule = ladder.rule(place)
    if rule.rung is not Rung.REQUEUE:
        return rule
    jobs = [j for j in world.jobs_on(node.name) if j.active]
    kept = policies.victims.keeps([j.restarts for j in jobs])
    if kept or any(not j.requeue for j in jobs):
        return RungRule(Rung.SUSPEND, within_s=rule.within_s)
    return rule


# --- budgets -------------------------------------------------------------------------------------


def most_instances(world: World, policies: PolicySet) -> int | None:
    """How many instances may be at work now by the budgets; None: they do not say."""
    if not policies.budgets.windows:
        return None
    clock_s = world.clock_s
    return policies.budgets.ceiling(Of.INSTANCES, _whole(policies), clock_s)


def most_disruptions(world: World, policies: PolicySet) -> int | None:
    """How many may be on their way out of our own accord; None: the budgets do not say."""
    if not policies.budgets.windows:
        return None
    present = world.count_in(*(phase for phase in Phase if phase not in ABSENT))
    clock_s = world.clock_s
    return policies.budgets.ceiling(Of.DISRUPTIONS, present, clock_s)


def budgets_change_s(world: World, policies: PolicySet) -> float:
    """When a budget begins or ceases to hold next, in our time; 0: never."""
    at_s = policies.budgets.changes_s(world.clock_s)
    return 0.0 if at_s is None else at_s + world.ahead_s


def _whole(policies: PolicySet) -> int:
    return min(policies.limits.max_instances, len(policies.instances.names))


def on_cpu(world: World) -> int:
    """How many instances are at work, or about to be."""
    return world.count_in(*ON_CPU)


def above_budget(world: World, policies: PolicySet) -> frozenset[str]:
    """Names of the steady nodes that must leave because a budget allows fewer now."""
    most = most_instances(world, policies)
    if most is None:
        return frozenset()
    excess = on_cpu(world) - most
    if excess <= 0:
        return frozenset()
    steady = [m for m in world.managed.values() if m.phase in _STEADY]
    one = Resources(1, 0)  # heads are counted here, whatever their size
    counted = [replace(candidate(world, policies, m), resources=one) for m in steady]
    return frozenset(policies.victims.choose(counted, Resources(excess, 0), world.now_s))
