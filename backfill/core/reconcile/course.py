"""By which rung of which ladder an instance leaves its host, by how long that is expected to be wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from backfill.core.model.actions import (
    DriverAction,
    MigrateInstance,
    PauseInstance,
    SuspendInstance,
    ThrottleInstance,
    UnplugDevices,
)
from backfill.core.model.cluster import OUR_REASON, Job, JobState, Node
from backfill.core.model.fence import judge
from backfill.core.model.fleet import Instance, InstanceState, Rung
from backfill.core.model.lifecycle import (
    EvictionCause,
    HeldJob,
    ManagedNode,
    NodeStop,
    Phase,
    interrupted,
    unwoken,
)
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import Picture
from backfill.core.placement import find_host
from backfill.core.policies.ladder import RungRule
from backfill.core.policy import Proof
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress, budget_lifts_s, ladder_of, most_instances
from backfill.core.reconcile.held_jobs import marked_in, stop_told_in, unrecorded
from backfill.core.reconcile.pressure import capacity, hold_back, wanted_on, why_taken
from backfill.core.room import need_of

# Rungs on which the work is in the host's memory, which no work on the host itself leaves alone.
_IN_MEMORY = (Rung.THROTTLE, Rung.PAUSE)


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


def rung_before(builder: PlanBuilder, node: ManagedNode, left_s: float) -> NodeStop | None:
    """Return its stop on the rung before its ladder's end, with `left_s` left of its time, or all of it.

    None where it is on another rung, or where that one does not end by time.
    """
    index, ladder = _place(builder, node), ladder_of(builder.policies, node)
    if index == 0 or ladder.rule(index).rung not in (Rung.REQUEUE, Rung.CANCEL):
        return None
    rule = ladder.rule(index - 1)
    if rule.rung not in (Rung.PAUSE, Rung.SUSPEND) or rule.for_s is None:
        return None
    stop, since_s = node.stopping, builder.now_s - max(0.0, rule.for_s - left_s)
    return replace(stop, since_s=since_s, rung=index - 1, kind=rule.rung, first=min(stop.first, index - 1))


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

    A quarter of the owner's latest jobs would be gone by `soon_s`, nine in ten by `late_s`. `job`
    is empty for a budget: when it holds no more is certain, but another may make room before.
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
    stay = _stay_of(builder, node)
    kinds = [rule.rung for rule in ladder.rungs]
    still = ladder.still or 0
    if stay is None:
        # It can be taken back in milliseconds, and keeps connections alive until more is known.
        return Course(found.name, 0 if _goes_on_slowly(builder, node, kinds) else still)
    code, rung = Code.STAYS_SHORT, still
    over_s = builder.now_s + left_s
    if stay.late_s > over_s:
        code, rung = _long_stay(builder, node, found.name, kinds, still, left_s)
        if code in (Code.STAYS_REQUEUE, Code.STAYS_LONG) and stay.soon_s <= over_s:
            code, rung = Code.STAYS_PERHAPS, still  # it may be lost, and otherwise it would be for sure
    return Course(found.name, rung, foreseen(builder, stay, found.name, left_s, code))


def of_workload(builder: PlanBuilder, node: ManagedNode) -> NodeStop | None:
    """Its stop, by the ladder of the workload of its jobs, also where Slurm had not shown these yet."""
    if not builder.policies.workloads.entries or node.stopping.workload:
        return node.stop
    course = _course(builder, node)
    stop = _stop(builder, course, node.stopping.cause, doomed=node.doomed)
    known = node.stopping
    return replace(stop, drained_s=known.drained_s, told=known.told) if course.workload else node.stop


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


def waits_after_all(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its jobs were to start over for a stay that nobody expects any more: they wait on.

    Something else may keep it from its host, or it would just go back.
    """
    stop, ladder, place = node.stopping, ladder_of(builder.policies, node), _place(builder, node)
    course = [rule.rung for rule in ladder.rungs[stop.first : place + 1]]
    still = ladder.still
    chosen = stop.foreseen and course[-1:] == [Rung.REQUEUE] and not {*course} & {Rung.PAUSE, Rung.SUSPEND}
    if not chosen or still is None or builder.blind or builder.world.busy(node.name):
        return False
    jobs = [job for job in builder.world.jobs_on(node.name) if job.active]
    left = [_left_s(builder, node, job) for job in jobs]
    left_s = min((one_s for one_s in left if one_s is not None), default=0.0)
    stay = _stay_of(builder, node)
    builder.awaits(Topic.HABITS)
    # Told to end, its jobs run until somebody sees otherwise: only from then on they stand still.
    instance = builder.instance(node)
    runs = instance is not None and instance.state is InstanceState.RUNNING
    ran_s = builder.world.source_read_s(node.host) if runs else None
    if runs:
        builder.awaits(Topic.READING)
    from_s = builder.now_s if ran_s is None else ran_s
    if left_s <= 0.0 or (stay is not None and stay.soon_s > from_s + left_s):
        return False
    kind = ladder.rule(still).rung
    after = replace(stop, since_s=float(builder.now_s), rung=still, kind=kind, first=still, foreseen=False)
    if ran_s is not None:
        after = replace(after, ran_s=ran_s)
    reason = f"nobody is expected any more to keep {node.host} for longer than its jobs can wait"
    builder.note(node, reason, stop=after, condemned=None)
    return True


# So long an instance is only held back until Slurm has shown who got its host.
WORD_S = 1.0


def holds(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it is held back for a moment: its hook has spoken, and Slurm shows soon for whom.

    From a pause there is no way to warn it, nor to let it go on slowly.
    """
    stop = node.stopping
    workload = builder.policies.workloads.named(stop.workload)
    if workload is None or workload.terms.stand_still_s is None or node.order is not None:
        return False
    limit_s = stop.since_s + WORD_S
    known = builder.world.hosts[node.host].node
    waits = known is not None and builder.now_s < limit_s and builder.world.claims_on(node.host)
    if not waits or stop.rung != stop.first or stay_on(builder.world, node.host):
        return False
    builder.watch(*filter(None, (known,)))
    builder.wake_at(limit_s)
    instance = builder.instance(node)
    if instance is not None and instance.throttled:
        return True
    return hold_back(builder, node) in (Progress.BEGUN, Progress.RUNNING)


def rung_s(rule: RungRule, stop: NodeStop, instance: Instance) -> float:
    """Return how long a rung may take: it may have been held back for a moment before its first one."""
    waited = instance.throttled and stop.rung == stop.first and rule.rung is not Rung.THROTTLE
    return rule.within_s + (WORD_S if waited else 0.0)


def _long_stay(
    builder: PlanBuilder, node: ManagedNode, workload: str, kinds: list[Rung], still: int, left_s: float
) -> tuple[Code, int]:
    """Return what is done where to stand still would be too long, and by which rung."""
    if Rung.MIGRATE in kinds and _room_elsewhere(builder, node):
        return Code.STAYS_MOVE, still  # its CPUs are free in milliseconds, and then it moves
    if _goes_on_slowly(builder, node, kinds) and _room_beside(builder, node.host):
        return Code.STAYS_THROTTLE, 0
    if Rung.MIGRATE in kinds and _room_soon(builder, node, left_s):
        return Code.STAYS_ROOM, still
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
    whose = {"job": stay.job} if stay.job else {"budget": "a budget"}
    return because(code, **whose, workload=workload, soon_s=soon_s, late_s=late_s, left_s=left_s)


def in_vain(
    builder: PlanBuilder, node: ManagedNode, held: Sequence[HeldJob], *, doubtful: bool = False
) -> Reason | None:
    """Return why jobs that stand still need not wait for their host any longer, if they need not.

    Who had the host was perhaps not known when they were stopped. `doubtful`: it is enough that
    they may wait in vain, and that they can go on elsewhere; otherwise their ladder has to end yet.
    """
    later = ladder_of(builder.policies, node).rungs[_place(builder, node) + 1 :]
    if not doubtful and all(rule.rung is not Rung.REQUEUE for rule in later):
        return None
    kept = judge(node.name, held, builder.world.jobs).keep  # of a stale copy nothing waits any more
    ends = [(one.patience.over_s, one) for one in kept if one.patience is not None]
    if not ends or (stay := stay_on(builder.world, node.host)) is None:
        return None
    builder.awaits(Topic.HABITS)
    over_s, _ = min(ends, key=lambda end: end[0])
    if (stay.late_s if doubtful else stay.soon_s) <= over_s:
        return None
    left_s = max(0.0, over_s - builder.now_s)
    if not doubtful and ladder_of(builder.policies, node).migrates and _room_soon(builder, node, left_s):
        builder.awaits(Topic.TIME)
        return None
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


def stay_on(world: Picture, host: str) -> Stay | None:
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


def _stay_of(builder: PlanBuilder, node: ManagedNode) -> Stay | None:
    """Return for how long the node is expected to have to be away; None: nobody knows."""
    world = builder.world
    others = builder.taken_from(node) or node.name in world.closed
    budget = node.name in world.queue.above_budget or node.stopping.cause is EvictionCause.BUDGET
    return _budget_stay(builder) if budget and not others else stay_on(world, node.host)


def _budget_stay(builder: PlanBuilder) -> Stay | None:
    """Return for how long a budget allows no more instances at work than now."""
    most = most_instances(builder.world, builder.policies)
    lifts_s = budget_lifts_s(builder.world, builder.policies)
    if most is None or lifts_s is None:
        return None
    return Stay("", builder.now_s if most else lifts_s, lifts_s)


# By so much the clocks of two machines may differ.
_SKEW_S = 60.0


def _stay(world: Picture, job: Job) -> Stay | None:
    if job.time_limit_s is None:
        return None
    begun_s = job.start_s if job.holds_nodes and job.start_s > 0.0 else world.now_s
    if begun_s > world.now_s + _SKEW_S:
        return None  # a clock was set since: nothing is lost for what follows from that
    soon, late = world.owners.habits.shares(job.user) or (1.0, 1.0)
    return Stay(job.id, begun_s + job.time_limit_s * soon, begun_s + job.time_limit_s * late)


def _room_elsewhere(builder: PlanBuilder, node: ManagedNode) -> bool:
    if node.name in builder.world.closed or builder.budget_full():
        return False
    pays_s, need = builder.policies.gaps.return_pays_s, need_of(builder.world, builder.policies, node)
    target, _ = find_host(builder.world, builder.policies, pays_s, skip=node.host, need=need)
    return target is not None


# So likely room must be for work to wait for it: without, it is lost for sure.
_PERHAPS = 0.25


def _room_soon(builder: PlanBuilder, node: ManagedNode, left_s: float) -> bool:
    """Return True if jobs on other hosts of ours may end in time, one more than others wait for."""
    world = builder.world
    if node.name in world.closed or builder.budget_full():
        return False
    rate, shape = world.rates.get(node.host), builder.policies.instances.flavour_of(node)
    wakes_s = rate.predict_s(shape.memory_mb) if rate is not None else None
    within_s = left_s - (wakes_s or 0.0)  # it is read from there as quickly as it was written
    names = sorted(world.fleet.in_phase(Phase.READY, Phase.DRAINING, Phase.REMOVING))
    others = [m for name in names if (m := world.managed[name]).host != node.host]
    free = (m for m in others if not builder.taken(m.host))
    shares = [likely_to_end(builder, m, within_s)[0] if m.phase is Phase.READY else 1.0 for m in free]
    return may_end(shares, _ahead_of(builder, node) + 1) >= _PERHAPS


def _ahead_of(builder: PlanBuilder, node: ManagedNode) -> int:
    """Count others that have waited for longer, and may need the next room."""
    aside = (builder.world.managed[n] for n in builder.world.fleet.in_phase(Phase.EVICTING, Phase.PARKED))
    waiting = (m for m in aside if m.stopping.workload and builder.rule(m).rung in (Rung.PAUSE, Rung.SUSPEND))
    mine = node.stopping.since_s if node.phase in (Phase.EVICTING, Phase.PARKED) else inf
    return sum(1 for m in waiting if (m.stopping.since_s, m.name) < (mine, node.name))


def likely_to_end(builder: PlanBuilder, node: ManagedNode, within_s: float) -> tuple[float, float]:
    """Return how likely all jobs on a node end within a time, by how long such jobs ran lately; and when.

    That is in how many seconds half of such jobs had ended; infinite where that is not known.
    """
    likely, half_s = 1.0, 0.0
    for job in builder.world.jobs_on(node.name):
        left_s = builder.world.owners.run_times.left_s(job.user, builder.now_s - job.start_s)
        likely *= sum(1 for one_s in left_s if one_s <= within_s) / max(1, len(left_s))
        half_s = max(half_s, left_s[len(left_s) // 2] if left_s else inf)
    return likely, half_s


def may_end(shares: Sequence[float], count: int) -> float:
    """Return how likely at least so many of these happen, each of which happens with its own likelihood."""
    fewer = [1.0] + [0.0] * (count - 1)  # how likely exactly so many do
    for share in shares:
        for at in range(count - 1, -1, -1):
            fewer[at] = fewer[at] * (1.0 - share) + (fewer[at - 1] * share if at else 0.0)
    return 1.0 - sum(fewer)


def _room_beside(builder: PlanBuilder, host: str) -> bool:
    """Return True if instances can keep their memory beside the jobs that have the host."""
    world, policies = builder.world, builder.policies
    if policies.proof is Proof.MEMORY or builder.left(host):
        return False
    wanted = wanted_on(world, policies, host)
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
    stopped = builder.stopped(node)
    fields = interrupted(node) if node.phase is Phase.RETURNING and not stopped else {}
    if stopped and node.stop is None:
        fields = {"held": (*node.held, *unrecorded(builder, node))}
    builder.become(node, Phase.EVICTING, reason, stop=stop, **fields)


WAITS_FOR = " waits for "  # in the reason of a drain for a job of another node
NOT_PROVEN = f"{OUR_REASON} not proven yet"  # the reason of a drain until a new node has proven itself


def seen_drained(builder: PlanBuilder, node: ManagedNode, seen: Node) -> NodeStop:
    """Return its stop now that its node is seen drained, with what that drain tells of it.

    A drain from before its stop, for a job of another node or a proof, tells nothing of it.
    """
    other = WAITS_FOR in seen.reason or seen.reason == NOT_PROVEN or not seen.drained_by_us
    told = None if other else stop_told_in(seen)
    return replace(node.stopping, drained_s=float(builder.now_s), told=told)


def was_throttled(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Return True if its stop, whatever the journal knows, was to be slow: its jobs went on.

    Who stood still gets all of its CPUs back before Slurm can reach it again, and is opened after that.
    """
    instance = builder.instance(node)
    if node.held or node.stop is not None or instance is None or instance.state is not InstanceState.RUNNING:
        return False
    return instance.throttled and seen.drained_by_us and not seen.hidden


def stop_forgotten(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Return True if a stop of ours shows in Slurm of which the journal, a copy, knows nothing.

    Opened to others now, the node would get a second job onto the CPUs of the one that is
    suspended; and nobody else would let that one go on. So its return is done from the beginning.
    """
    known = node.held or node.stop is not None or (node.check is not None and node.check.kicked)
    if known or not seen.drained_by_us:
        return False
    if WAITS_FOR in seen.reason or seen.reason == NOT_PROVEN:
        return False  # closed for a job of another node, or by this daemon just now: it has not stood still
    if was_throttled(builder, node, seen):
        return False
    jobs = [j for j in builder.world.jobs_on(node.name) if j.active]
    if all(job.state is not JobState.SUSPENDED for job in jobs):
        return False
    marked = marked_in(seen, node.generation)
    held = tuple(marked.get(job.id, HeldJob(job.id, job.restarts)) for job in jobs)
    reason = "Slurm shows a stop of ours that the journal does not know"
    stop = first_rung(builder, node)
    builder.become(node, Phase.EVICTING, reason, held=held, proof=unwoken(node), stop=stop)
    return True


# By why a host is taken: who takes it.
_TAKERS = {
    Code.HOST_TAKEN: EvictionCause.JOB,
    Code.CLOSED: EvictionCause.OPERATOR,
    Code.HOST_MAINTENANCE: EvictionCause.MAINTENANCE,
}


def _wanted_by(builder: PlanBuilder, node: ManagedNode) -> tuple[EvictionCause, str]:
    """For whom or what it is pushed aside, and the sentence for people."""
    world = builder.world
    if taken := why_taken(builder, node.host):
        return _TAKERS[taken.code], f"host {sentence(taken)}"
    if by_hand := world.closed.get(node.name, ""):
        return EvictionCause.OPERATOR, f"it was closed by hand: {by_hand}"
    if node.name in world.queue.above_budget and (budget := builder.budget_full()):
        return EvictionCause.BUDGET, sentence(budget)
    if node.order is not None:
        back = " back" if node.order.restoring else ""
        return EvictionCause.CHECKPOINT, f"checkpoint {node.order.id} was ordered{back}"
    return EvictionCause.STOPPED, "its instance was found stopped"


def climb(builder: PlanBuilder, node: ManagedNode, why: str, *, foreseen: bool = False) -> None:
    """Go on to the next rung of the ladder. `foreseen`: because of how long its host will be wanted."""
    after, stop = rule_after(builder, node).rung, next_rung(builder, node)
    if foreseen:
        stop = replace(stop, first=stop.rung, foreseen=True)
    builder.note(node, f"{why}; next rung: {after}", stop=stop)


# By which calls each rung is taken.
_CALLS: dict[Rung, tuple[type[DriverAction], ...]] = {
    Rung.THROTTLE: (ThrottleInstance,),
    Rung.PAUSE: (PauseInstance,),
    Rung.SUSPEND: (UnplugDevices, PauseInstance, SuspendInstance),
    Rung.MIGRATE: (MigrateInstance,),
}


def not_worked(builder: PlanBuilder, node: ManagedNode, within_s: float | None = None) -> str:
    """Say that its rung did not work in its time, or that it was refused, and what the last call said."""
    rung = builder.rule(node).rung
    kinds = {action.__name__ for action in _CALLS.get(rung, ())}
    calls = builder.world.calls.all_of(node.name)
    said = [one.problem for one in calls if one.problem and one.key.partition(":")[0] in kinds]
    how = "was refused" if within_s is None else f"did not work within {within_s:g} s"
    return f"{rung} {how}" + (f": {said[-1]}" if said else "")
