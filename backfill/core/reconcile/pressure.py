"""Who has to leave a host now, for whom, and by which rung of the ladder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from backfill.core.lending import need_of
from backfill.core.model.actions import PauseInstance, ThrottleInstance
from backfill.core.model.cluster import Job, JobState, Node, end_s
from backfill.core.model.fleet import Host, Instance, InstanceState
from backfill.core.model.lifecycle import (
    ABSENT,
    EvictionCause,
    HeldJob,
    ManagedNode,
    NodeStop,
    Phase,
    interrupted,
)
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.core.placement import find_host
from backfill.core.policies.budgets import Of
from backfill.core.policies.ladder import Rung, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.victims import Candidate, Extent
from backfill.core.policy import PolicySet, Proof
from backfill.core.reconcile.builder import PlanBuilder, Progress, ladder_of, most_instances, on_cpu
from backfill.core.world import World

_STEADY = (Phase.READY, Phase.DRAINING)


# So long is waited until Slurm shows the job behind a claim, as a share of the hook's patience.
_PATIENCE = 0.5


def leavers(world: World, policies: PolicySet, host: str) -> frozenset[str] | None:
    """Return names of the steady nodes that must leave a host given to a job; None: every one of them.

    Empty while a job's hook has spoken and Slurm has not shown yet how much the job got.
    """
    staying = [m for m in world.fleet.managed_on(host) if m.phase in _STEADY and not world.inside(m)]
    names = frozenset(m.name for m in staying)
    if policies.victims.extent is Extent.HOST or not names:
        return None
    wanted = wanted_on(world, host)
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


def wanted_on(world: World, host: str) -> Resources | None:
    """Return what the jobs that hold a host's node got there; None: Slurm has not shown it yet."""
    node_name = world.hosts[host].node
    node = world.nodes.get(node_name) if node_name is not None else None
    if node is None or host in world.closed:
        return None
    holders = world.jobs_on(node.name)
    known = {j.id for j in holders} | {str(j.raw_id) for j in holders}
    if any(job_id not in known for job_id in world.takers(host)):
        return None
    return _got(node, holders)


def _got(node: Node, holders: Iterable[Job]) -> Resources:
    """Add up what jobs hold. An exclusive one holds more than it asked for: the node's count is true."""
    cpus = memory_mb = 0
    for job in holders:
        cpus += -(-job.cpus // max(1, job.num_nodes))
        memory_mb += job.memory_mb
    return Resources(max(cpus, node.cpus_allocated), memory_mb)


def fits_beside(world: World, policies: PolicySet, host: str) -> bool:
    """Return True if what runs on a host leaves the jobs that got it all that they got there."""
    if policies.victims.extent is Extent.HOST:
        return False
    wanted = wanted_on(world, host)
    if wanted is None:
        return False
    there = [i for i in world.fleet.instances_on(host) if not within(world, i)]
    cpus = sum(i.resources.cpus for i in there if i.occupies_cpu)
    memory_mb = 0
    if policies.proof is Proof.MEMORY:
        memory_mb = sum(i.resources.memory_mb for i in there if i.occupies_memory)
    room = capacity(world.hosts[host], policies.limits) - wanted
    return cpus <= room.cpus and memory_mb <= room.memory_mb


def within(world: World, instance: Instance) -> bool:
    """Return True if an instance is part of what a job got that has its host, and takes nothing besides."""
    node = world.managed.get(instance.name)
    ours = node is not None and instance.tag.generation == node.generation and instance.host == node.host
    return ours and node is not None and world.surely_inside(node)


def _waited_enough(world: World, policies: PolicySet, host: str) -> bool:
    """Return True if the oldest claim on the host has waited so long that all must leave."""
    if host in world.closed:
        return True
    since_s = min((c.since_s for c in world.claims.values() if host in c.hosts), default=0.0)
    return world.now_s - since_s >= _PATIENCE * policies.answer_within_s


def decided_s(world: World, policies: PolicySet, host: str) -> float:
    """Return when to stop waiting for Slurm's word on the claims of a host."""
    since_s = min((c.since_s for c in world.claims.values() if host in c.hosts), default=0.0)
    return since_s + _PATIENCE * policies.answer_within_s


def capacity(host: Host, limits: Limits) -> Resources:
    """Return what a host has for jobs and instances together."""
    return host.capacity - Resources(limits.keep_cpus, limits.keep_memory_mb)


def candidate(world: World, policies: PolicySet, node: ManagedNode) -> Candidate:
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
        repeats=max([node.evictions, *(j.restarts for j in jobs)]),
    )


def must_leave(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if a node at work has to leave its host now."""
    world, policies = builder.world, builder.policies
    if node.name in world.closed or node.name in builder.above_budget():
        return True
    if not builder.taken_from(node):
        return False
    if not world.taken(node.host):
        return True  # it is left for its maintenance
    names = leavers(world, policies, node.host)
    if names == frozenset() and wanted_on(world, node.host) is None:
        own = world.hosts[node.host].node
        builder.watch(*filter(None, (own,)))  # how much did the job get there?
        builder.wake_at(decided_s(world, policies, node.host))
    return names is None or node.name in names


def most_disruptions(world: World, policies: PolicySet) -> int | None:
    """Return how many may be on their way out of our own accord; None: the budgets do not say."""
    if not policies.budgets.windows:
        return None
    present = world.fleet.count_in(*(phase for phase in Phase if phase not in ABSENT))
    clock_s = world.clock_s
    return policies.budgets.ceiling(Of.DISRUPTIONS, present, clock_s)


def above_budget(world: World, policies: PolicySet) -> frozenset[str]:
    """Return names of the steady nodes that must leave because a budget allows fewer now."""
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


# Rungs on which the work is in the host's memory, which no work on the host itself leaves alone.
_IN_MEMORY = (Rung.THROTTLE, Rung.PAUSE)


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


def unsafe(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why the node's work must not stay in its host's memory, if it must not.

    It may as well where the ladder has no rung to disk after this one: to stay is then less bad.
    """
    if not builder.left(node.host):
        return None
    rule, ladder = builder.rule(node), ladder_of(builder.policies, node)
    stop = node.stopping
    later = ladder.rungs[ladder.place(stop.rung, stop.kind) + 1 :]
    if rule.rung not in _IN_MEMORY or all(after.rung is not Rung.SUSPEND for after in later):
        return None
    return because(Code.MEMORY_TO_DISK, host=node.host)


def first_rung(
    builder: PlanBuilder, node: ManagedNode, *, cause: EvictionCause = EvictionCause.STOPPED
) -> NodeStop:
    """Make a stop that begins now."""
    return _stop(builder, _course(builder, node), cause)


def _stop(
    builder: PlanBuilder, course: Course, cause: EvictionCause | None, *, doomed: bool = False
) -> NodeStop:
    ladder = builder.policies.ladder_of(course.workload)
    return NodeStop(
        float(builder.now_s),
        course.rung,
        ladder.rule(course.rung).rung,
        doomed=doomed,
        cause=cause,
        workload=course.workload,
        first=course.rung,
        foreseen=course.why is not None,
    )


def next_rung(builder: PlanBuilder, node: ManagedNode) -> NodeStop:
    """Its stop, one rung further than now."""
    index = _place(builder, node) + 1
    kind = ladder_of(builder.policies, node).rule(index).rung
    return replace(node.stopping, since_s=float(builder.now_s), rung=index, kind=kind)


def rule_after(builder: PlanBuilder, node: ManagedNode) -> RungRule:
    """Return the rule of the next rung."""
    return ladder_of(builder.policies, node).rule(_place(builder, node) + 1)


def past_the_last(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if no rung is left but to stand still."""
    return ladder_of(builder.policies, node).over(_place(builder, node))


def _place(builder: PlanBuilder, node: ManagedNode) -> int:
    stop = node.stopping
    return ladder_of(builder.policies, node).place(stop.rung, stop.kind)


# --- by which rung a stop begins ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """With which rung of whose ladder a stop begins, and why not with the first one."""

    workload: str = ""
    rung: int = 0
    why: Reason | None = None


@dataclass(frozen=True, slots=True)
class Stay:
    """When a job is expected to give a host back, by its time limit and its owner's habits.

    A quarter of the owner's latest jobs would be gone by `soon_s`, nine in ten by `late_s`.
    """

    job: str
    soon_s: float
    late_s: float


_USUAL = Course()


def _course(builder: PlanBuilder, node: ManagedNode) -> Course:
    """Choose by how long the host is expected to be wanted, and how long its jobs can wait.

    A short stay is waited for. For a longer one the work goes on elsewhere, or here with next to no
    CPU; where neither can be, it is given back to the queue at once rather than lost later.
    """
    workloads = builder.policies.workloads
    if not workloads.entries:
        return _USUAL
    jobs = [job for job in builder.world.jobs_on(node.name) if job.active]
    found = workloads.shortest(jobs)
    if found is None:
        return _USUAL
    left = [_left_s(builder, node, job) for job in jobs]
    left_s = min((one_s for one_s in left if one_s is not None), default=None)
    ladder = builder.policies.ladder_of(found.name)
    if left_s is None or not ladder.rungs:
        return Course(found.name)
    stay = stay_on(builder.world, node.host)
    kinds = [rule.rung for rule in ladder.rungs]
    still = next((i for i, kind in enumerate(kinds) if kind in (Rung.PAUSE, Rung.SUSPEND)), 0)
    if stay is None:
        # It can be taken back in milliseconds, and keeps connections alive until more is known.
        return Course(found.name, 0 if _goes_on_slowly(builder, node, kinds) else still)
    code, rung = Code.STAYS_SHORT, still
    over_s = builder.now_s + left_s
    if stay.late_s > over_s:
        code, rung = _long_stay(builder, node, found.name, kinds, still)
        if code in (Code.STAYS_REQUEUE, Code.STAYS_LONG) and stay.soon_s <= over_s:
            code, rung = Code.STAYS_PERHAPS, still  # it may be lost, and otherwise it would be for sure
    return Course(found.name, rung, foreseen(builder, stay, found.name, left_s, code))


def of_workload(builder: PlanBuilder, node: ManagedNode) -> NodeStop | None:
    """Its stop, by the ladder of the workload of its jobs, also where Slurm had not shown these yet."""
    if not builder.policies.workloads.entries or node.stopping.workload:
        return node.stop
    course = _course(builder, node)
    stop = _stop(builder, course, node.stopping.cause, doomed=node.doomed)
    return replace(stop, drained_s=node.stopping.drained_s) if course.workload else node.stop


def change_course(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its stop goes another way than it began: by now it is known who has its host."""
    stop = node.stopping
    if not stop.workload or stop.foreseen or stop.rung != stop.first or node.order is not None:
        return False
    course = _course(builder, node)
    if course.why is None:
        return False
    phase = node.phase if course.rung == stop.rung else Phase.EVICTING
    after = _stop(builder, course, node.stopping.cause, doomed=node.doomed)
    if course.rung == stop.rung:
        after = replace(stop, foreseen=True)
    builder.become(node, phase, f"{node.reason}; {sentence(course.why)}", stop=after)
    return True


# So long an instance is only held back until Slurm has shown who got its host.
_WORD_S = 1.0


def holds(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it is held back for a moment: its hook has spoken, and Slurm shows soon for whom.

    From a pause there is no way to warn it, nor to let it go on slowly.
    """
    workload = builder.policies.workloads.named(node.stopping.workload)
    if workload is None or workload.terms.stand_still_s is None or node.order is not None:
        return False
    limit_s = node.stopping.since_s + _WORD_S
    known = builder.world.hosts[node.host].node
    waits = known is not None and builder.now_s < limit_s and builder.world.claims_on(node.host)
    if not waits or node.stopping.rung != node.stopping.first or stay_on(builder.world, node.host):
        return False
    builder.watch(*filter(None, (known,)))
    builder.wake_at(limit_s)
    instance = builder.instance(node)
    if instance is not None and instance.throttled:
        return True
    return hold_back(builder, node) in (Progress.BEGUN, Progress.RUNNING)


def held_back_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """For how long it may have been held back before its first rung was asked for."""
    stop, instance = node.stopping, builder.instance(node)
    waited = instance is not None and instance.throttled and stop.rung == stop.first
    return _WORD_S if waited and builder.rule(node).rung is not Rung.THROTTLE else 0.0


def _long_stay(
    builder: PlanBuilder, node: ManagedNode, workload: str, kinds: list[Rung], still: int
) -> tuple[Code, int]:
    """Return what is done where to stand still would be too long, and by which rung."""
    if Rung.MIGRATE in kinds and _room_elsewhere(builder, node):
        return Code.STAYS_MOVE, still  # its CPUs are free in milliseconds, and then it moves
    if _goes_on_slowly(builder, node, kinds) and _room_beside(builder, node.host):
        return Code.STAYS_THROTTLE, 0
    jobs = [job for job in builder.world.jobs_on(node.name) if job.active]
    workloads = builder.policies.workloads
    if Rung.REQUEUE in kinds and not any(workloads.waits(job, workload) for job in jobs):
        return Code.STAYS_REQUEUE, kinds.index(Rung.REQUEUE)
    return Code.STAYS_LONG, still


def _goes_on_slowly(builder: PlanBuilder, node: ManagedNode, kinds: list[Rung]) -> bool:
    """Return True if its jobs go on where it is throttled: one that Slurm has suspended stands still."""
    return kinds[0] is Rung.THROTTLE and not stand_still(builder, node)


def foreseen(builder: PlanBuilder, stay: Stay, workload: str, left_s: float, code: Code) -> Reason:
    """Return what was chosen for a stay, with what it was chosen by."""
    soon_s, late_s = (max(0.0, at_s - builder.now_s) for at_s in (stay.soon_s, stay.late_s))
    return because(code, job=stay.job, workload=workload, soon_s=soon_s, late_s=late_s, left_s=left_s)


def in_vain(
    builder: PlanBuilder, node: ManagedNode, held: Iterable[HeldJob], *, doubtful: bool = False
) -> Reason | None:
    """Return why jobs that stand still need not wait for their host any longer, if they need not.

    Who had the host was perhaps not known when they were stopped. `doubtful`: it is enough that
    they may wait in vain, and that they can go on elsewhere; otherwise their ladder has to end yet.
    """
    later = ladder_of(builder.policies, node).rungs[_place(builder, node) + 1 :]
    if not doubtful and all(rule.rung is not Rung.REQUEUE for rule in later):
        return None
    ends = [(one.patience.over_s, one) for one in held if one.patience is not None]
    if not ends or (stay := stay_on(builder.world, node.host)) is None:
        return None
    over_s, _ = min(ends, key=lambda end: end[0])
    if (stay.late_s if doubtful else stay.soon_s) <= over_s:
        return None
    left_s = max(0.0, over_s - builder.now_s)
    return foreseen(builder, stay, node.stopping.workload, left_s, Code.STAYS_REQUEUE)


def stand_still(builder: PlanBuilder, node: ManagedNode) -> tuple[HeldJob, ...]:
    """Return those of its held jobs that Slurm shows as suspended, whether its CPUs run or not."""
    jobs = builder.world.jobs
    return tuple(h for h in node.held if h.id in jobs and jobs[h.id].state is JobState.SUSPENDED)


def _left_s(builder: PlanBuilder, node: ManagedNode, job: Job) -> float | None:
    """For how long a job on the node can stand still from now on; None: without end."""
    patience_s = builder.policies.workloads.patience_s(job)
    if patience_s is None:
        return None
    run = (job.id, job.restarts)
    held = next((h for h in node.held if (h.id, h.restarts) == run and h.patience is not None), None)
    if held is not None and held.patience is not None:
        return max(0.0, held.patience.over_s - builder.now_s)
    owed_s = sum(one.owed_s(builder.now_s) for one in node.stood if (one.id, one.restarts) == run)
    return max(0.0, patience_s - owed_s)


def stay_on(world: World, host: str) -> Stay | None:
    """Return who is expected to keep the host for longest; None: nobody knows how long somebody stays."""
    known = world.hosts.get(host)
    if known is None or host in world.closed:
        return None
    found = {job.id: job for job in world.jobs_on(known.node)} if known.node else {}
    raw = {str(job.raw_id) for job in found.values()}
    for job_id in world.takers(host):
        if job_id not in found and job_id not in raw:
            job = world.jobs.get(job_id)  # its hook was quicker than Slurm's word
            if job is None:
                return None
            found[job_id] = job
    stays = [_stay(world, job) for job in found.values()]
    sure = [stay for stay in stays if stay is not None]
    return max(sure, key=lambda stay: stay.late_s) if sure and len(sure) == len(stays) else None


# By so much the clocks of two machines may differ.
_SKEW_S = 60.0


def _stay(world: World, job: Job) -> Stay | None:
    if job.time_limit_s is None:
        return None
    begun_s = job.start_s if job.holds_nodes and job.start_s > 0.0 else world.now_s
    if begun_s > world.now_s + _SKEW_S:
        return None  # a clock was set since: nothing is lost for what follows from that
    soon, late = world.habits.shares(job.user) or (1.0, 1.0)
    return Stay(job.id, begun_s + job.time_limit_s * soon, begun_s + job.time_limit_s * late)


def _room_elsewhere(builder: PlanBuilder, node: ManagedNode) -> bool:
    if node.name in builder.world.closed or builder.budget_full():
        return False
    pays_s, need = builder.policies.gaps.return_pays_s, need_of(builder.world, builder.policies, node)
    target, _ = find_host(builder.world, builder.policies, pays_s, skip=node.host, need=need)
    return target is not None


def _room_beside(builder: PlanBuilder, host: str) -> bool:
    """Return True if instances can keep their memory beside the jobs that have the host."""
    world, policies = builder.world, builder.policies
    if policies.proof is Proof.MEMORY or builder.left(host):
        return False
    wanted = wanted_on(world, host)
    if wanted is None or not wanted.memory_mb:
        return True  # a pause would keep as much
    held_mb = sum(i.resources.memory_mb for i in world.fleet.instances_on(host) if i.occupies_memory)
    return held_mb <= (capacity(world.hosts[host], policies.limits) - wanted).memory_mb


def begin_eviction(
    builder: PlanBuilder, node: ManagedNode, doomed: bool = False, why: Reason | None = None
) -> None:
    """Start to push `node` off its host; `why`: because of a fellow, and not for its host."""
    cause, reason = _wanted_by(builder, node) if why is None else (EvictionCause.FELLOW, sentence(why))
    course = _course(builder, node)
    if course.why is not None:
        reason = f"{reason}; {sentence(course.why)}"
    stop = _stop(builder, course, cause, doomed=doomed or node.doomed)
    returning = node.phase is Phase.RETURNING and not builder.stopped(builder.instance(node))
    builder.become(node, Phase.EVICTING, reason, stop=stop, **(interrupted(node) if returning else {}))


def _wanted_by(builder: PlanBuilder, node: ManagedNode) -> tuple[EvictionCause, str]:
    """For whom or what it is pushed aside, and the sentence for people."""
    world = builder.world
    if taken := why_taken(builder, node.host):
        return _taker(builder, node.host), f"host {sentence(taken)}"
    if by_hand := world.closed.get(node.name, ""):
        return EvictionCause.OPERATOR, f"it was closed by hand: {by_hand}"
    if node.name in builder.above_budget() and (budget := builder.budget_full()):
        return EvictionCause.BUDGET, sentence(budget)
    if node.order is not None:
        back = " back" if node.order.restoring else ""
        return EvictionCause.CHECKPOINT, f"checkpoint {node.order.id} was ordered{back}"
    return EvictionCause.STOPPED, "its instance was found stopped"


def _taker(builder: PlanBuilder, host: str) -> EvictionCause:
    """Return who takes a host that is taken: a job before a person, as it is the job that waits."""
    if builder.world.takers(host):
        return EvictionCause.JOB
    return EvictionCause.OPERATOR if host in builder.world.closed else EvictionCause.MAINTENANCE


def climb(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    """Go on to the next rung of the ladder."""
    after = rule_after(builder, node).rung
    builder.note(node, f"{why}; next rung: {after}", stop=next_rung(builder, node))


def hold_back(builder: PlanBuilder, node: ManagedNode) -> Progress:
    """Leave it the rung's share of its CPUs."""
    percent = builder.rule(node).cpu_percent
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


def stop_where_wanted(builder: PlanBuilder, instance: Instance) -> None:
    """Pause what nobody can take over now if its host is wanted: that costs it nothing but time."""
    host, name = instance.host, instance.name
    taken = builder.taken(host) and not within(builder.world, instance)
    if instance.state is InstanceState.RUNNING and taken:
        reason = f"host {host} is wanted, and nothing is known yet of this instance with our tag"
        builder.do(PauseInstance(subject=name, generation=instance.tag.generation, reason=reason, host=host))
