"""Giving a host back: stop the instance first, then drain and suspend in Slurm, then wait.

Or hold it back: it goes on with next to no CPU, and gets that back afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.actions import CancelMove, MigrateInstance, PauseInstance, ThrottleInstance, WarnJob
from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.fence import judge
from backfill.core.model.fleet import STILL, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import Cause, JobCheck, ManagedNode, NodeStop, Phase, set_back, unwoken
from backfill.core.model.operations import Operation
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.core.placement import closed
from backfill.core.policies.workloads import WarnBy, Workload
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import NoMove, unplaced, whereto
from backfill.core.reconcile.builder import PlanBuilder, Progress, ladder_of, suspend, tell
from backfill.core.reconcile.checkpoints import lost_order, order_back, place_elsewhere
from backfill.core.reconcile.condemn import clear, condemn, forgotten, lost, over, permit, stale, work_on
from backfill.core.reconcile.course import (
    change_course,
    climb,
    holds,
    next_rung,
    not_worked,
    of_workload,
    past_the_last,
    rung_s,
    seen_drained,
    stand_still,
    unsafe,
    waits_after_all,
)
from backfill.core.reconcile.devices import unplug_first
from backfill.core.reconcile.held_jobs import PAUSED, await_patience, drained, mark_anew, went_on_before
from backfill.core.reconcile.holding import active_jobs, all_suspended, job_starts, tell_stopped
from backfill.core.reconcile.own_machines import kept_off
from backfill.core.reconcile.pressure import has_room_beside, hold_back, is_free_for, only_claimed, why_taken
from backfill.core.reconcile.reasons import not_lost_yet, out_of_service

_PUT_OFF = "still paused, because its node did not come back well; it is tried again by itself"


def step_evicting(builder: PlanBuilder, node: ManagedNode) -> None:
    """Stop the instance by the present rung, then make Slurm's picture agree."""
    instance = builder.instance(node)
    if instance is None or node.name in builder.world.doubts:
        # After a call that failed it may be elsewhere: its hosts are just being read.
        _without_instance(builder, node)
        return
    if lost(builder, node, instance) or (not builder.blind and went_on_before(builder, node, instance)):
        return
    if instance.state not in STILL:
        if instance.throttled and builder.rule(node).rung is Rung.THROTTLE and node.order is None:
            held_back(builder, node)
            return
        if not _stays(builder, node):
            _take_rung(builder, node, instance)
        return
    _stands_still(builder, node, instance)


def step_lost(builder: PlanBuilder, node: ManagedNode) -> None:
    """Its host is off for good: its job goes on from its last checkpoint on others, or starts over."""
    why = f"its host {node.host} is off for good"
    if node.order is None or not node.order.restoring:
        if order_back(builder, node) is Progress.FINAL:
            condemn(builder, node, Cause.HOST_OFF, why)
        return
    given_up = lost_order(builder, node)
    if given_up:
        condemn(builder, node, Cause.HOST_OFF, f"{why}; {given_up}")
    elif node.phase is Phase.PARKED:
        place_elsewhere(builder, node)
    elif node.phase is not Phase.EVICTING:
        builder.become(node, Phase.EVICTING, why, stop=NodeStop(float(builder.now_s)))
    elif not builder.blind:
        _tell_slurm(builder, node)


def _stands_still(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Its host's CPUs are free: what becomes of it there, and of its jobs in Slurm?"""
    if _worked_late(builder, node, instance):
        return
    rung = builder.rule(node).rung
    if rung is Rung.REQUEUE and (waits_after_all(builder, node) or _ends_still(builder, node)):
        return
    if rung is Rung.SUSPEND and instance.state is InstanceState.PAUSED and not node.doomed:
        suspend(builder, node, node.reason)
    if not builder.blind and not job_starts(builder, node):
        _tell_slurm(builder, node)


_STANDS_BY = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}


def _worked_late(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> bool:
    """Return True if it stands still by a rung that was given up because it took long: it is on that again.

    What comes after that rung is for who cannot be stopped, or has stood there for its time.
    """
    stop = node.stopping
    if builder.rule(node).rung not in (Rung.MIGRATE, Rung.REQUEUE):
        return False
    ladder, kind = ladder_of(builder.policies, node), _STANDS_BY[instance.state]
    passed = ladder.rungs[stop.first : ladder.place(stop.rung, stop.kind)]
    found = next((i for i, rule in enumerate(passed, stop.first) if rule.rung is kind), None)
    if found is None:
        return False
    back = replace(stop, rung=found, kind=kind, since_s=float(builder.now_s))
    builder.note(node, f"{kind} has worked after all", stop=back)
    return True


def _stays(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it need not leave a host that was given back; one whose return has just come to
    nothing stands still there all the same."""
    free = is_free_for(builder, node) and node.name not in builder.world.closed
    if not free or node.order is not None or kept_off(builder, node) is not None:
        return False
    next_s = node.retry.not_before_s
    if next_s is not None and builder.now_s < next_s:
        builder.wake_at(next_s)
        _stand_still(builder, node, Rung.PAUSE)
        return True
    if node.doomed or builder.budget_full():
        return False
    if judge(node.name, node.held, builder.world.jobs, builder.now_s).mixed:
        _stand_still(builder, node, Rung.PAUSE)
        return True
    builder.become(node, Phase.RETURNING, f"host {node.host} was given back before the stop")
    return True


def _without_instance(builder: PlanBuilder, node: ManagedNode) -> None:
    """No instance is seen: one may still be in the making, so wait for that call to end."""
    world = builder.world
    if world.busy(node.name):
        return
    new = node.doomed and node.proof.proven_s is None and not (node.found or work_on(builder, node))
    if new and not world.places_of(node.name) and world.hosts[node.host].reachable:
        clear(builder, node, f"{node.reason}; it was not made yet")
        return
    lost(builder, node, None)


def _take_rung(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Ask for the present rung; when it fails or takes too long, take the next one."""
    rule, stop = builder.rule(node), node.stopping
    overdue = builder.overdue(stop.since_s, rung_s(rule, stop, instance))
    if builder.barred:
        _stop_unwritten(builder, node, rule.rung)
        return
    # Only jobs of a workload care for how long they stand still.
    if (stop.workload or stop.foreseen) and _waits_otherwise(builder, node):
        return
    match rule.rung:
        case Rung.THROTTLE if node.order is None:
            progress = hold_back(builder, node)
        case _ if node.order is not None or rule.rung in (Rung.PAUSE, Rung.SUSPEND):
            progress = _stand_still(builder, node, rule.rung)
        case Rung.MIGRATE:
            _migrate_away(builder, node, overdue=overdue)
            return
        case _:
            _end(builder, node, f"{node.reason}; the ladder ends with {rule.rung}")
            return
    if progress is Progress.FINAL or overdue:
        if past_the_last(builder, node):
            _go_on_trying(builder, node, overdue=overdue)
        else:
            climb(builder, node, not_worked(builder, node, rule.within_s if overdue else None))


def _waits_otherwise(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it does not take its rung now, by what is known of who has its host."""
    return change_course(builder, node) or waits_after_all(builder, node) or holds(builder, node)


def _end(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    """Its work is given back to the queue, after its jobs were told where there is time for that."""
    instance, stop = builder.instance(node), node.stopping
    if instance is not None and _drains(builder, node, instance, why):
        return
    cause = Cause.LADDER if stop.rung == stop.first else Cause.UNSTOPPED
    if not _given_up(builder, node, cause, why):
        _stand_still(builder, node, Rung.PAUSE)  # the host is given back all the same


def _go_on_trying(builder: PlanBuilder, node: ManagedNode, *, overdue: bool) -> None:
    """No rung has worked: its work is not thrown away for that, and its stop is tried on and on."""
    failed = [o.problem for o in builder.world.calls.all_of(node.name) if o.problem]
    rule, said = builder.rule(node), Words(failed[-1] if failed else "")
    why = because(Code.NO_RUNG_WORKED, rung=rule.rung.value, within_s=rule.within_s, said=said)
    builder.refuse(node.name, Goal.HOST_RELEASE, why)
    if overdue:
        builder.note(node, node.reason, stop=replace(node.stopping, since_s=float(builder.now_s)))


def _stop_unwritten(builder: PlanBuilder, node: ManagedNode, rung: Rung) -> None:
    """Do what may be done while nothing can be written: the host is wanted all the same."""
    if rung is Rung.THROTTLE and node.order is None:
        hold_back(builder, node)
    else:
        builder.do(
            PauseInstance(subject=node.name, generation=node.generation, reason=node.reason, host=node.host)
        )


def _ends_still(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its work is lost for its host now that it stands still and the host is taken."""
    if builder.blind or not builder.taken_from(node) or not work_on(builder, node):
        return False
    why = f"{node.reason}; the ladder ends with {builder.rule(node).rung}"
    return _given_up(builder, node, Cause.LADDER, why)


def _given_up(builder: PlanBuilder, node: ManagedNode, cause: Cause, why: str) -> bool:
    """Return True if its work is lost for its host now, as the ladder says."""
    # A job may just have come that no reading shows yet: a hook's word alone only stops the instance.
    unsure = not_lost_yet(builder, node) if work_on(builder, node) else only_claimed(builder, node)
    if unsure:
        builder.refuse(node.name, Goal.REMOVAL, unsure.after(why))
        return False
    if builder.policies.workloads.entries:
        if not _closed_to_jobs(builder, node):
            return False  # one that has just come may be of another workload, and wait longer
        stop = of_workload(builder, node)
        if stop != node.stop:
            builder.note(node, "by the ladder of the jobs that have just come", stop=stop)
            return False
    return condemn(builder, node, cause, why)


def _stand_still(builder: PlanBuilder, node: ManagedNode, rung: Rung) -> Progress:
    """Stop its CPUs."""
    if any(move.running for move in _moves_of(builder, node)):
        # A move keeps a pause away: until it is over it must not be disturbed.
        builder.do(
            CancelMove(subject=node.name, generation=node.generation, reason=node.reason, host=node.host)
        )
    if node.order is not None or (rung is Rung.SUSPEND and not node.doomed):
        progress = unplug_first(builder, node)
        if progress is not None:
            return progress
    if rung is Rung.SUSPEND and not builder.world.hosts[node.host].saves_paused:
        return suspend(builder, node, node.reason)
    # Also on the way to disk: its CPUs are free in milliseconds, writing takes seconds.
    calm = _freezes(builder, node)
    return builder.do(
        PauseInstance(
            subject=node.name, generation=node.generation, reason=node.reason, host=node.host, freeze=calm
        )
    )


def _migrate_away(builder: PlanBuilder, node: ManagedNode, *, overdue: bool) -> None:
    """Let it run on while it moves, where another host has room now; else the next rung.

    A move that failed is tried again while the rung's time lasts; one that was refused for good is not.
    """
    if node.name in builder.world.closed:
        climb(builder, node, "closed by hand, it shall not go on elsewhere")
        return
    unseen = unplaced(builder)
    if unseen is not None:
        builder.refuse(node.name, Goal.MOVE, unseen)
        _stand_still(builder, node, Rung.PAUSE)  # the host is given back all the same
        return
    target = whereto(builder, node)
    if overdue:
        climb(builder, node, not_worked(builder, node, builder.rule(node).within_s))
    elif not isinstance(target, NoMove):
        stop = replace(node.stopping, target=target)
        builder.become(node, Phase.MOVING, f"{node.reason}; {target} has room", stop=stop)
    elif target.again:
        builder.refuse(node.name, Goal.MOVE, target.why)
    else:
        full = target.why.code is Code.NO_HOST
        climb(builder, node, "no other host has room" if full else sentence(target.why))


def _moves_of(builder: PlanBuilder, node: ManagedNode) -> list[Operation]:
    """Its moves, in flight or failed."""
    start = f"{MigrateInstance.__name__}:{node.name}:{node.generation}:"
    return [o for o in builder.world.calls.all_of(node.name) if o.key.startswith(start)]


def _tell_slurm(builder: PlanBuilder, node: ManagedNode) -> None:
    """Drain the node whose instance stands still, suspend its jobs, then remember them."""
    seen = builder.world.nodes.get(node.name)
    builder.watch(node.name)
    # It may have stood still before, and was to come back when its host was wanted again.
    # Jobs that came meanwhile are noted below, and then it is kept for them.
    if stale(builder, node, judge(node.name, work_on(builder, node), builder.world.jobs, builder.now_s)):
        return
    if seen is None:
        forgotten(builder, node, fail=False)
        return
    if not drained(builder, node, seen):
        return
    drained_s = node.stopping.drained_s
    if drained_s is None:
        builder.note(node, "stopped and drained", stop=seen_drained(builder, node, seen))
        return
    if builder.world.node_read_s(node.name) <= drained_s:
        builder.awaits(Topic.READING)
        return  # a job may have been given to the node just before the drain: look once more
    _suspend_in_slurm(builder, node, seen)


def _suspend_in_slurm(builder: PlanBuilder, node: ManagedNode, seen: Node) -> None:
    """Note whose jobs are to be suspended by us, suspend them, and then the node is aside."""
    if not all_suspended(builder, node, seen):
        return
    jobs, held = active_jobs(builder, node), node.held
    if not jobs:
        _without_jobs(builder, node)
        return
    # One that Slurm does not show at this moment is not known to have ended: it stays on the books.
    unseen = {h.id for h in held if h.id not in builder.world.jobs}
    kept = unseen.union((j.id for j in jobs), (h.id for h in judge(node.name, held, builder.world.jobs).lost))
    put_off = node.retry.not_before_s is not None and builder.now_s < node.retry.not_before_s
    tell(builder, node, (h.id for h in held if h.ours), _PUT_OFF if put_off else PAUSED)
    tell_stopped(builder, node, held)
    held = tuple(h for h in held if h.id in kept)
    mark_anew(builder, node, seen, held)  # our own call may have found one suspended by others
    counts = node.order is None and not put_off
    builder.become(
        node,
        Phase.PARKED,
        node.reason,
        held=held,
        check=JobCheck(float(builder.now_s), kicked=node.check.kicked if node.check else ()),
        stop=replace(node.stopping, doomed=False),
        evictions=node.evictions + counts,
        setbacks=set_back(node, ((h.id, h.restarts) for h in held)) if counts else node.setbacks,
    )


def _without_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Slurm shows no job on it."""
    if node.held:
        over(builder, node)
    elif vanished := builder.world.vanished_on(node.name):
        ids = ", ".join(held.id for held in vanished)
        condemn(builder, node, Cause.MISSING, f"Slurm shows nothing of job {ids}, which was on it")
    elif (seen := builder.world.nodes.get(node.name)) is not None and seen.hidden:
        # Only for jobs that stand still do we hide a node, and no record of ours tells of which.
        condemn(builder, node, Cause.MISSING, "Slurm shows no job on it, and it is hidden as for one")
    else:
        clear(builder, node, f"{node.reason}; no job was on it")


def held_back(builder: PlanBuilder, node: ManagedNode) -> None:
    """Keep new jobs from a node that is throttled and thus slow; those there go on."""
    if builder.blind:
        return
    seen = builder.world.nodes.get(node.name)
    builder.watch(node.name)
    if seen is None:
        forgotten(builder, node, fail=False)
        return
    if not drained(builder, node, seen):
        return
    runs = ((job.id, job.restarts) for job in builder.world.jobs_on(node.name) if job.active)
    fields = {"evictions": node.evictions + 1, "setbacks": set_back(node, runs)}
    builder.become(node, Phase.THROTTLED, node.reason, **fields)


def step_throttled(builder: PlanBuilder, node: ManagedNode) -> None:
    """Wait for the host; after the rung's time the next rung is taken."""
    if builder.unread:
        return
    instance = builder.instance(node)
    if lost(builder, node, instance) or instance is None:
        return
    if instance.state in STILL or not instance.throttled:
        builder.become(node, Phase.EVICTING, f"{node.reason}; it was no longer throttled")
        return
    if _stands_too_long(builder, node):
        return
    if node.doomed:
        _climb(builder, node, "it is not to come back")
        return
    busy = _wanted(builder, node)
    if busy:
        builder.refuse(node.name, Goal.ALL_CPUS, busy)
        _wait(builder, node)
    else:
        builder.become(node, Phase.RETURNING, f"host {node.host} is free again", proof=unwoken(node))


def _stands_too_long(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if jobs that Slurm had suspended before have stood still there for too long."""
    verdict = judge(node.name, stand_still(builder, node), builder.world.jobs, builder.now_s)
    await_patience(builder, verdict.keep)
    if stale(builder, node, verdict):
        return True
    if verdict.overdue:
        _climb(builder, node, sentence(verdict.stale) if verdict.stale else node.reason)
    return bool(verdict.overdue)


def _wanted(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return what keeps its CPUs from it, if anything: all that would throttle it again."""
    beside = has_room_beside(builder, node)
    busy = closed(builder.world, node.host, builder.policies.limits, node, beside=beside)
    if busy is not None and busy.code is Code.NODE_SHUT and out_of_service(builder, node.host):
        busy = None  # as for who is at work when its host is drained: nobody has it
    if not busy and not is_free_for(builder, node):
        busy = why_taken(builder, node.host)
    if not busy and node.name in builder.world.closed:
        busy = because(Code.CLOSED, subject=node.name, said=Words(builder.world.closed[node.name]))
    return busy or builder.budget_full()


def _wait(builder: PlanBuilder, node: ManagedNode) -> None:
    """Stay on the rung for its time."""
    rule = builder.rule(node)
    danger = unsafe(builder, node)
    if danger:
        _climb(builder, node, sentence(danger))
        return
    if change_course(builder, node):
        return
    if rule.for_s is None or rule.rung is not Rung.THROTTLE:
        return
    over_s = node.stopping.since_s + rule.for_s
    if builder.now_s >= over_s:
        _climb(builder, node, f"{rule.for_s:g} s of {rule.rung} are over")
    else:
        builder.wake_at(over_s)


def _climb(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    reason = f"{node.reason}; {why}"
    builder.become(node, Phase.EVICTING, reason, stop=next_rung(builder, node))


# --- told before the end ------------------------------------------------------------------------


def _freezes(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its guest has time to freeze its jobs first: no job waits for the host."""
    workloads, world = builder.policies.workloads, builder.world
    if not workloads.entries:
        return False
    own = world.hosts[node.host].node
    if (own is not None and world.job_index.any_on(own)) or world.claims_on(node.host):
        return False
    return any(workloads.patience_s(job) is not None for job in world.jobs_on(node.name) if job.active)


def _closed_to_jobs(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if no job can come to the node any more and all that came are known; else see to it."""
    seen, drained_s = builder.world.nodes.get(node.name), node.stopping.drained_s
    builder.watch(node.name)
    if seen is None:
        return True
    if not drained(builder, node, seen):
        return False
    if drained_s is None:
        builder.note(node, "drained", stop=seen_drained(builder, node, seen))
        return False
    builder.awaits(Topic.READING)
    return builder.world.node_read_s(node.name) > drained_s


def _drains(builder: PlanBuilder, node: ManagedNode, instance: Instance, why: str) -> bool:
    """Return True while its jobs, which are to start over, may still end by themselves.

    The job that has the host begins meanwhile: they keep a share of the CPUs' time only.
    """
    workload = builder.policies.workloads.named(node.stopping.workload)
    seen = builder.world.nodes.get(node.name)
    if workload is None or not workload.terms.warns or builder.blind or seen is None:
        return False
    jobs = [job for job in builder.world.jobs_on(node.name) if job.state is JobState.RUNNING]
    if not jobs:
        return False
    if node.stopping.warned_s is not None:
        over_s = node.stopping.warned_s + workload.terms.drain_s
        builder.wake_at(over_s)
        builder.watch(node.name)
        return builder.now_s < over_s
    if builder.taken_from(node) and not instance.throttled:
        return _held_back(builder, node, workload)
    unsure = not_lost_yet(builder, node)
    if unsure:
        builder.refuse(node.name, Goal.REMOVAL, unsure.after(why))
    elif _closed_to_jobs(builder, node) and permit(builder, node, Cause.LADDER, why):
        _warn(builder, node, workload, jobs)
    return True


def _held_back(builder: PlanBuilder, node: ManagedNode, workload: Workload) -> bool:
    """Return True while its CPUs are being taken from it; where they cannot be there is no time."""
    percent = workload.drain_percent
    action = ThrottleInstance(
        subject=node.name, generation=node.generation, reason=node.reason, host=node.host, percent=percent
    )
    return builder.do(action) in (Progress.BEGUN, Progress.RUNNING)


def _warn(builder: PlanBuilder, node: ManagedNode, workload: Workload, jobs: list[Job]) -> None:
    """Tell all of its jobs that are of a workload which is told; best effort, nothing waits for it."""
    if builder.taken_from(node):
        _held_back(builder, node, workload)  # it may have had less than that until now
    for job in jobs:
        found = builder.policies.workloads.of(job)
        if found is not None and found.terms.warns:
            builder.do(_warning(builder, node, job, found))
    stop = replace(node.stopping, warned_s=float(builder.now_s))
    builder.note(node, f"{node.reason}; its jobs have {workload.terms.drain_s:g} s to end", stop=stop)


def _warning(builder: PlanBuilder, node: ManagedNode, job: Job, workload: Workload) -> WarnJob:
    terms, guest = workload.terms, node.host if workload.terms.warn is not WarnBy.SIGNAL else ""
    ends_s = builder.world.clock_s + terms.drain_s  # its guest goes by the machine's clock
    return WarnJob(
        subject=node.name,
        generation=node.generation,
        reason=node.reason,
        job_id=job.id,
        host=guest,
        number=job.raw_id,
        user=job.user,
        signal=workload.signal.value if terms.warn is WarnBy.SIGNAL else "",
        command=workload.command if terms.warn is WarnBy.COMMAND else (),
        ends_s=ends_s,
    )
