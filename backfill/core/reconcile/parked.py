"""Waiting aside: go back when the host is free, move when another is, else climb the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from backfill.core.model.actions import RequeueJob
from backfill.core.model.cluster import Job, JobState, Node, left_s
from backfill.core.model.fence import Verdict, judge, unsure
from backfill.core.model.fleet import STILL, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import Cause, HeldJob, ManagedNode, Phase, Way, unwoken
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import Picture
from backfill.core.placement import closed, free_again_s, too_short
from backfill.core.policies.gaps import late
from backfill.core.policies.ladder import RungRule
from backfill.core.policy import Proof
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import NoMove, unplaced, whereto
from backfill.core.reconcile.builder import (
    PlanBuilder,
    Progress,
    answers,
    failed_suspends,
    kept_in_memory,
    ladder_of,
    suspend,
    tell,
)
from backfill.core.reconcile.checkpoints import awaits_state, step_ordered
from backfill.core.reconcile.condemn import end_overdue, kept_apart, lost, over, permit, stale
from backfill.core.reconcile.course import (
    climb,
    in_vain,
    not_worked,
    rule_after,
    rung_before,
    unsafe,
    waits_after_all,
)
from backfill.core.reconcile.held_jobs import (
    await_patience,
    being_requeued,
    mark_anew,
    put_drain_back,
    still_ours,
    stop_told_in,
    suspend_jobs,
    taken_over,
    unknown_to,
    way,
)
from backfill.core.reconcile.holding import keep_alive
from backfill.core.reconcile.own_machines import kept_off
from backfill.core.reconcile.pressure import has_room_beside, is_free_for, only_claimed, stop_where_wanted
from backfill.core.reconcile.reasons import drained_for_long, most_drained_s
from backfill.core.room import crowded


def step_parked(builder: PlanBuilder, node: ManagedNode) -> None:
    """Decide what becomes of one stopped instance now."""
    if builder.unread:
        return
    if _missed(builder, node):
        return
    instance = builder.instance(node)
    if awaits_state(builder, node):
        _await_state(builder, node)
    elif instance is None or instance.state not in STILL:
        _not_stopped(builder, node, instance)
    else:
        _stands_still(builder, node, instance)


def _missed(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if there was no daemon for a part of its rung's time, which does not count: noted now.

    Nobody could bring its work back then. By an old journal that was done, and it stands still by
    a later stop: where its drain tells of another one, the rung begins anew, and so does its jobs'
    patience, as of those that no journal knows. In doubt it is the same stop. Nor is its ladder's
    end carried out, if it was reached, before the rung before has lasted for that much longer.
    """
    stop, (from_s, to_s) = node.stopping, builder.world.away
    missed_s = to_s - max(from_s, stop.since_s)
    if missed_s <= 0.0 or (stop.counted_s or 0.0) >= to_s:
        return False
    reason = f"{missed_s:.0f} s without a daemon do not count"
    since_s, left_s, held = stop.since_s + missed_s, missed_s, node.held
    if _later_stop(builder, node):
        since_s, left_s, held = to_s, inf, tuple(one.standing_since(to_s) for one in held)
        reason = "its drain does not tell of the stop that the journal has: its rung begins anew"
    counted = rung_before(builder, node, left_s) or replace(stop, since_s=since_s)
    decided = None if node.condemned is None or node.condemned.cause is Cause.LADDER else node.condemned
    builder.note(node, reason, stop=replace(counted, counted_s=to_s), condemned=decided, held=held)
    return True


def _later_stop(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the drain of its node tells of another stop than its record has."""
    seen, told = builder.world.nodes.get(node.name), node.stopping.told
    return told is not None and seen is not None and seen.drained_by_us and stop_told_in(seen) != told


def _await_state(builder: PlanBuilder, node: ManagedNode) -> None:
    """Put a checkpoint back where there is no state to go on with, as long as Slurm holds its job."""
    verdict = judge(node.name, node.held, builder.world.jobs, builder.now_s)
    await_patience(builder, verdict.keep)
    if stale(builder, node, verdict):
        return
    if not verdict.keep:
        over(builder, node)
        return
    keep_alive(builder, node, verdict.keep)
    if not end_overdue(builder, node, verdict):
        step_ordered(builder, node, None)


def _stands_still(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    verdict = judge(node.name, node.held, builder.world.jobs, builder.now_s)
    await_patience(builder, verdict.keep)
    if not verdict.keep and _behind(builder, node, instance):
        return
    if stale(builder, node, verdict):
        return
    if not verdict.keep:
        over(builder, node)
    elif _pardoned(builder, node, verdict):
        return
    elif end_overdue(builder, node, verdict):
        keep_alive(builder, node, verdict.keep)
    elif verdict.mixed and node.order is None and not instance.frozen:
        _keep_apart(builder, node, instance, verdict)
    else:
        _keep(builder, node, instance, verdict.keep)


def _behind(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> bool:
    """Return True if others stand still with it than an old journal knows, of an earlier stop: noted now.

    Nobody else would let them go on, and until they end nothing becomes of the node.
    """
    late = () if builder.blind else unknown_to(builder, node, instance)
    if late:
        reason = f"job {', '.join(h.id for h in late)} stands still with it, which the journal did not know"
        builder.note(node, reason, held=(*node.held, *late))
    return bool(late)


def _keep_apart(builder: PlanBuilder, node: ManagedNode, instance: Instance, verdict: Verdict) -> None:
    """Keep one still that never runs again, whoever uses its host, for as long as the ladder says."""
    keep_alive(builder, node, verdict.keep)
    if kept_apart(builder, node, verdict) or _put_right(builder, node, verdict.keep):
        return
    if builder.world.busy(node.name):
        return  # it is just being written to disk
    if way(builder, verdict.keep) is Way.REQUEUE:
        _give_to_queue(builder, node)
    else:
        _climb(builder, node, instance)


def _keep(builder: PlanBuilder, node: ManagedNode, instance: Instance, kept: tuple[HeldJob, ...]) -> None:
    """Slurm holds these jobs for it."""
    keep_alive(builder, node, kept)
    doubt = unsure(kept)
    if doubt:
        builder.refuse(node.name, Goal.RETURN_TO, doubt, node.host)
        _put_right(builder, node, kept)
    elif node.order is not None:
        step_ordered(builder, node, instance)
    elif not _go_back(builder, node) and not _put_right(builder, node, kept):
        _wait_aside(builder, node, instance, way(builder, kept))


def _put_right(builder: PlanBuilder, node: ManagedNode, kept: Sequence[HeldJob]) -> bool:
    """Others may have undone what Slurm was told; resumed there, a job's time limit would run and
    Slurm would wait for it, and undrained the node would be given jobs that it cannot run."""
    seen = builder.world.nodes.get(node.name)
    if builder.blind or seen is None:
        return False
    if not seen.drained:
        put_drain_back(builder, node)
    jobs = [builder.world.jobs[held.id] for held in kept if not held.refused]
    going = [job for job in jobs if job.state is JobState.RUNNING]
    if going:
        _suspend_again(builder, node, seen, going)
    return bool(going) or not seen.drained


def _suspend_again(builder: PlanBuilder, node: ManagedNode, seen: Node, going: Sequence[Job]) -> None:
    """Whoever suspended them before: from now on they are suspended for this stop, by us."""
    held = taken_over(node, going)
    if held != node.held:
        mark_anew(builder, node, seen, held)
        builder.note(node, f"job {', '.join(j.id for j in going)} was resumed by others", held=held)
        return
    for job in going:
        resumed = because(Code.JOB_RESUMED, host=node.host)
        builder.refuse(node.name, Goal.JOB_GOES_ON, resumed, job.id)
    suspend_jobs(builder, node, seen, going)


def _wait_aside(builder: PlanBuilder, node: ManagedNode, instance: Instance, unsuspended: Way | None) -> None:
    """Its own host is busy: go on elsewhere, or by the ladder."""
    if waits_to_return(builder, node) and is_free_for(builder, node):
        return  # its host is not what it waits for
    if unsuspended is Way.REQUEUE:
        _give_to_queue(builder, node)
        return
    movable = ladder_of(builder.policies, node).migrates or unsuspended is Way.MOVE
    movable = movable and node.name not in builder.world.closed
    unmoved = kept_in_memory(instance) if movable else None
    if unmoved:
        builder.refuse(node.name, Goal.MOVE, unmoved)
    elif movable:
        at_once = unsuspended is Way.MOVE or in_vain(builder, node, node.held, doubtful=True) is not None
        unmoved = _move(builder, node, at_once=at_once)
        if unmoved is None:
            return
    _climb(builder, node, instance, unmoved)


def _not_stopped(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> None:
    """Somebody else changed it: never let it run on unasked."""
    if lost(builder, node, instance) or instance is None:
        return
    if instance.state is InstanceState.RUNNING:
        if builder.barred:
            stop_where_wanted(builder, instance)  # its new phase cannot be written now
        held, reason = still_ours(builder, node), "its instance was found running"
        builder.become(node, Phase.RETURNING, reason, held=held, proof=unwoken(node))


def _pardoned(builder: PlanBuilder, node: ManagedNode, verdict: Verdict) -> bool:
    """Return True if its jobs were to start over and do not: Slurm said no, or its host is free again."""
    if node.condemned is None or builder.world.busy(node.name):
        return False
    said_no = node.unconfirmed
    if said_no is None and (verdict.apart or not _host_is_free_again(builder, node)):
        return False
    why = node.reason if said_no is None else f"not given back to the queue: {said_no}"
    builder.note(node, why, condemned=None, unconfirmed=None)
    return True


def _host_is_free_again(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it can go back when some time is over: its jobs need not start over."""
    free = is_free_for(builder, node) and not builder.budget_full() and not drained_for_long(builder, node)
    return free and node.name not in builder.world.closed


def _go_back(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return to its own host once that has been free for long enough."""
    world, policies = builder.world, builder.policies
    beside = has_room_beside(builder, node)
    reason = closed(world, node.host, policies.limits, node, beside=beside)
    if builder.world.busy(node.name):
        return True  # it is just being written to disk: what comes next depends on the outcome
    if not reason and not world.inside(node):
        reason = too_short(world, node.host, policies, policies.gaps.return_pays_s)
        if reason:
            builder.awaits(Topic.TIME)
    reason = reason or builder.budget_full() or _unsettled(builder, node) or put_off_until(builder, node)
    reason = reason or crowded(world, node, builder.instance(node), policies) or kept_off(builder, node)
    if not reason and node.name in builder.world.closed:
        reason = because(Code.CLOSED, subject=node.name, said=Words(builder.world.closed[node.name]))
    if reason:
        builder.refuse(node.name, Goal.RETURN_TO, reason, node.host)
        return False
    why = f"host {node.host} has room again beside its jobs" if beside else f"host {node.host} is free again"
    builder.become(node, Phase.RETURNING, why, proof=unwoken(node))
    return True


def waits_to_return(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if a return of it came to nothing, and it is too early for the next one."""
    next_s = node.retry.not_before_s
    builder.wake_at(next_s or 0.0)
    return next_s is not None and builder.now_s < next_s


def put_off_until(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why its return is not tried again yet, if it is not."""
    next_s, returns = node.retry.not_before_s, node.retry.returns
    if next_s is None or builder.now_s >= next_s:
        return None
    builder.wake_at(next_s)
    wait_s = builder.policies.comeback.retry_after_s(max(1, returns))
    return because(Code.CAME_TO_NOTHING, times=returns, wait_s=wait_s, said=Words(node.reason))


def _free_since_s(world: Picture, host: str) -> float:
    """Return since when the host's own node is as free as it is now; 0 for a host without one."""
    known = world.hosts.get(host)
    if known is None or known.node is None:
        return 0.0
    return world.standing_since_s(known.node)


def _unsettled(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return that the host has been free for too short a time, if that is so."""
    settle_s = builder.policies.comeback.settle_s
    if not settle_s:
        return None
    due_s = _free_since_s(builder.world, node.host) + settle_s
    if builder.now_s >= due_s:
        return None
    builder.wake_at(due_s)
    return because(Code.HOST_UNSETTLED, host=node.host, settle_s=settle_s)


def _move(builder: PlanBuilder, node: ManagedNode, *, at_once: bool = False) -> Reason | None:
    """Move to another host that has room; return why not where it does not, which is said."""
    move_after_s = builder.policies.comeback.move_after_s
    if not at_once and builder.now_s < node.since_s + move_after_s:
        builder.wake_at(node.since_s + move_after_s)
        return because(Code.MOVES_LATER, after_s=move_after_s)
    target = whereto(builder, node)
    if isinstance(target, NoMove):
        builder.refuse(node.name, Goal.MOVE, target.why)
        return target.why
    reason = f"host {target} has room, {node.host} is busy"
    builder.become(node, Phase.MOVING, reason, stop=replace(node.stopping, target=target))
    return None


def _climb(
    builder: PlanBuilder, node: ManagedNode, instance: Instance, unmoved: Reason | None = None
) -> None:
    """Stay on the rung for its time, then take the next. `unmoved`: why it does not move, if it may."""
    rule = builder.rule(node)
    match rule.rung:
        case Rung.SUSPEND if instance.state is InstanceState.PAUSED:
            _suspend(builder, node)
            return
        case Rung.MIGRATE:
            _without_move(builder, node, instance, unmoved)
            return
        case Rung.REQUEUE | Rung.CANCEL:
            if not waits_after_all(builder, node):
                _give_to_queue(builder, node)
            return
        case _:
            pass
    hopeless = _hopeless(builder, node, rule)
    if hopeless:
        climb(builder, node, sentence(hopeless), foreseen=hopeless.code is Code.STAYS_REQUEUE)
        return
    if rule.for_s is None:
        return
    if builder.now_s >= node.stopping.since_s + rule.for_s:
        climb(builder, node, f"{rule.for_s:g} s of {rule.rung} are over")
    else:
        builder.wake_at(node.stopping.since_s + rule.for_s)


def _without_move(
    builder: PlanBuilder, node: ManagedNode, instance: Instance, unmoved: Reason | None
) -> None:
    """Go on to the rung after a move, unless the time for it comes, or it is known only soon where to."""
    kept = kept_in_memory(instance)
    why = kept or unmoved or because(Code.MOVES_NOT)
    over_s = node.stopping.since_s + builder.rule(node).within_s
    if why.code in (Code.MOVES_LATER, Code.CALL_FAILED) and builder.now_s < over_s:
        builder.wake_at(over_s)
        builder.refuse(node.name, Goal.MOVE, why)
    elif kept or unplaced(builder) is None:
        climb(builder, node, "no other host has room" if why.code is Code.NO_HOST else sentence(why))


def _hopeless(builder: PlanBuilder, node: ManagedNode, rule: RungRule) -> Reason | None:
    """Return why to wait on here would be in vain, as far as the hours ahead are known."""
    if is_free_for(builder, node):
        return None
    reason = unsafe(builder, node) or in_vain(builder, node, node.held)
    if reason:
        return reason
    world = builder.world
    free_s = free_again_s(world, node.host)
    over_s = None if rule.for_s is None else node.stopping.since_s + rule.for_s
    if builder.policies.gaps.pointless(over_s, free_s):
        return because(Code.HOST_BUSY_LONG, host=node.host, rung=rule.rung.value)
    if rule_after(builder, node).rung is Rung.REQUEUE:
        return None  # to start over takes longer still
    for job in (world.jobs[held.id] for held in judge(node.name, node.held, world.jobs).keep):
        builder.wake_at(job.deadline_s - left_s([job], node.since_s))
        if late(builder.now_s, left_s([job], node.since_s), free_s, job.deadline_s):
            return because(Code.DEADLINE, job=job.id, host=node.host)
    return None


def _suspend(builder: PlanBuilder, node: ManagedNode) -> None:
    """Write its memory to disk; where that does not work in time, or is refused, take the next rung."""
    kept, reason = kept_in_memory(builder.instance(node)), f"its memory goes to disk ({node.reason})"
    spared = kept is None and _may_stay(builder, node)
    progress = suspend(builder, node, f"stood still for long: {reason}", insist=spared)
    if progress is Progress.FINAL and not spared:
        climb(builder, node, sentence(kept) if kept else not_worked(builder, node))
        return
    limit_s = _suspended_in_s(builder, node)
    if limit_s is None or not builder.overdue(node.stopping.since_s, limit_s):
        return
    if progress is Progress.FINAL or (progress is Progress.WAITING and failed_suspends(builder, node) > 1):
        climb(builder, node, not_worked(builder, node, limit_s))


def _may_stay(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the next rung would lose its work while its memory is in nobody's way.

    No work is lost for a file server that is out, or that somebody may put right.
    """
    if rule_after(builder, node).rung not in (Rung.REQUEUE, Rung.CANCEL):
        return False
    wanted = builder.policies.proof is Proof.MEMORY and builder.taken_from(node)
    return not (wanted and answers(builder.world, node.host))


def _suspended_in_s(builder: PlanBuilder, node: ManagedNode) -> float | None:
    """Return in what time its memory has to be on disk, or the next rung is taken; None: it is tried on.

    What may stay where it is stands still for as long as on disk.
    """
    rule = builder.rule(node)
    if rule_after(builder, node).rung is Rung.PAUSE:
        return None
    if not _may_stay(builder, node):
        return rule.within_s
    return None if rule.for_s is None else max(rule.within_s, rule.for_s)


def _give_to_queue(builder: PlanBuilder, node: ManagedNode) -> None:
    """Take the last rung: the copy is destroyed and the jobs start over elsewhere."""
    verdict = judge(node.name, node.held, builder.world.jobs)
    kept = verdict.keep
    for held in kept:
        job = builder.world.jobs.get(held.id)
        if job is None or not job.requeue:
            builder.refuse(node.name, Goal.REQUEUE_JOB, because(Code.NO_REQUEUE), held.id)
            return  # never lose a job that cannot start again: it stays suspended
        if not held.ours and job.state is JobState.SUSPENDED:
            builder.refuse(node.name, Goal.REQUEUE_JOB, because(Code.SUSPENDED_BY_OTHERS), held.id)
            return
        if being_requeued(builder, node, job):
            return  # once more would end the new run that may have begun
    reason = "the end of the ladder is reached"
    if not _may_begin_anew(builder, node, verdict, reason):
        return
    begun = [
        builder.do(
            RequeueJob(
                subject=node.name,
                generation=node.generation,
                reason=reason,
                job_id=h.id,
                restarts=h.restarts,
                aside=True,
            )
        )
        for h in kept
    ]
    if Progress.BEGUN in begun:
        text = "starts over: it stood still for as long as the policy allows"
        tell(builder, node, (h.id for h in kept), text)
    elif all(p is Progress.FINAL for p in begun):
        builder.refuse(node.name, Goal.REQUEUE, because(Code.SLURM_REFUSES))


def _may_begin_anew(builder: PlanBuilder, node: ManagedNode, verdict: Verdict, reason: str) -> bool:
    if node.condemned is None and not verdict.apart and _host_is_free_again(builder, node):
        # Else this would be taken back at once; what is only in doubt waits for a person.
        beside = has_room_beside(builder, node)
        shut = closed(builder.world, node.host, builder.policies.limits, node, beside=beside)
        if shut is not None and not beside:
            most_s = most_drained_s(builder, node) or 0.0
            shut = because(Code.HOST_SHUT, host=node.host, why=shut, most_s=most_s)
        if shut is not None:
            builder.refuse(node.name, Goal.REQUEUE, shut.after(reason))
        return False
    unsure = only_claimed(builder, node)
    if unsure:
        builder.refuse(node.name, Goal.REQUEUE, unsure.after(reason))
        return False
    return permit(builder, node, Cause.LADDER, reason)
