"""Giving a host back: stop the instance first, then drain and suspend in Slurm, then wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backfill.core.actions import CancelMove, MigrateInstance, PauseInstance, SuspendJob
from backfill.core.cluster import Job, JobState, Node
from backfill.core.condemn import clear, condemn, forgotten, lost, over, stale, work_on
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.hiding import hide
from backfill.core.ledger import Operation
from backfill.core.lifecycle import Cause, JobCheck, ManagedNode, Phase, Rung
from backfill.core.notice import tell
from backfill.core.placement import candidates, need_of, pick
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.queue import Topic
from backfill.core.refusals import Code, Goal, Words, because
from backfill.core.sentences import sentence
from backfill.core.steps.devices import unplug_first
from backfill.core.steps.fellows import holding, others_drained
from backfill.core.steps.rungs import first_rung, next_rung, past_the_last, rule_after
from backfill.core.steps.taken import only_claimed, why_taken
from backfill.core.steps.throttle import held_back, hold_back
from backfill.core.steps.timing import drained, job_starts
from backfill.core.steps.to_disk import suspend
from backfill.core.steps.unsuspended import note_refused, tell_stopped

_PAUSED = (
    "paused, because its node's hardware is needed; its time limit stands still, and it is to go on by itself"
)
_PUT_OFF = "still paused, because its node did not come back well; it is tried again by itself"


def begin_eviction(builder: PlanBuilder, node: ManagedNode, doomed: bool = False) -> None:
    """Start to push `node` off its host."""
    taken = why_taken(builder, node.host)
    by_hand = builder.world.closed.get(node.name, "")
    reason = "its instance was found stopped"
    if taken:
        reason = f"host {sentence(taken)}"
    elif by_hand:
        reason = f"it was closed by hand: {by_hand}"
    elif node.name in builder.above_budget() and (budget := builder.budget_full()):
        reason = sentence(budget)
    elif node.order is not None:
        back = " back" if node.order.restoring else ""
        reason = f"checkpoint {node.order.id} was ordered{back}"
    builder.become(node, Phase.EVICTING, reason, stop=first_rung(builder, doomed=doomed or node.doomed))


def step_evicting(builder: PlanBuilder, node: ManagedNode) -> None:
    """Stop the instance by the present rung, then make Slurm's picture agree."""
    instance = builder.instance(node)
    if instance is None or builder.world.in_doubt(node.name):
        # After a call that failed it may be elsewhere: its hosts are just being read.
        _without_instance(builder, node)
        return
    if lost(builder, node, instance):
        return
    if not builder.stopped(instance):
        if instance.throttled and builder.rule(node).rung is Rung.THROTTLE and node.order is None:
            held_back(builder, node)
            return
        if not _stays(builder, node):
            stop(builder, node)
        return
    _stands_still(builder, node, instance)


def _stands_still(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Its host's CPUs are free: what becomes of it there, and of its jobs in Slurm?"""
    rung = builder.rule(node).rung
    if rung is Rung.REQUEUE and _ends_still(builder, node):
        return
    if rung is Rung.SUSPEND and instance.state is InstanceState.PAUSED and not node.doomed:
        suspend(builder, node, node.reason)
    if not builder.blind and not job_starts(builder, node):
        _tell_slurm(builder, node)


def _stays(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether it need not leave a host that was given back; one whose return has just come to
    nothing stands still there all the same."""
    free = builder.host_is_free(node.host) and node.name not in builder.world.closed
    if not free or node.order is not None:
        return False
    next_s = node.retry.not_before_s
    if next_s is not None and builder.now_s < next_s:
        builder.wake_at(next_s)
        _stand_still(builder, node, Rung.PAUSE)
        return True
    if node.doomed or builder.budget_full():
        return False
    builder.become(node, Phase.RETURNING, f"host {node.host} was given back before the stop")
    return True


def _without_instance(builder: PlanBuilder, node: ManagedNode) -> None:
    """No instance is seen: one may still be in the making, so wait for that call to end."""
    if builder.busy_with(node):
        return
    lost(builder, node, None)


def stop(builder: PlanBuilder, node: ManagedNode) -> None:
    """Ask for the present rung; when it fails or takes too long, take the next one."""
    rule = builder.rule(node)
    reason = node.reason
    limit_s = builder.rung_since(node) + rule.within_s
    overdue = builder.now_s >= limit_s
    builder.wake_at(limit_s)
    if builder.barred:
        _stop_unwritten(builder, node, rule.rung)
        return
    match rule.rung:
        case Rung.THROTTLE if node.order is None:
            progress = hold_back(builder, node)
        case _ if node.order is not None or rule.rung in (Rung.PAUSE, Rung.SUSPEND):
            progress = _stand_still(builder, node, rule.rung)
        case Rung.MIGRATE:
            _migrate_away(builder, node)
            return
        case _:
            why = f"{reason}; the ladder ends with {rule.rung}"
            if not _given_up(builder, node, why):
                _stand_still(builder, node, Rung.PAUSE)  # the host is given back all the same
            return
    if progress is Progress.FINAL or overdue:
        why = f"{rule.rung} did not work within {rule.within_s:g} s"
        if past_the_last(builder, node):
            _go_on_trying(builder, node, limit_s)
        else:
            climb(builder, node, why)


def _go_on_trying(builder: PlanBuilder, node: ManagedNode, limit_s: float) -> None:
    """No rung has worked: its work is not thrown away for that, and its stop is tried on and on."""
    failed = [o.problem for o in builder.world.operations_of(node.name) if o.problem]
    rule, said = builder.rule(node), Words(failed[-1] if failed else "")
    why = because(Code.NO_RUNG_WORKED, rung=rule.rung.value, within_s=rule.within_s, said=said)
    builder.refuse(node.name, Goal.HOST_RELEASE, why)
    if builder.now_s >= limit_s:
        builder.note(node, node.reason, stop=replace(node.stopping, since_s=float(builder.now_s)))


def _stop_unwritten(builder: PlanBuilder, node: ManagedNode, rung: Rung) -> None:
    """What may be done while nothing can be written: the host is wanted all the same."""
    if rung is Rung.THROTTLE and node.order is None:
        hold_back(builder, node)
    else:
        builder.do(PauseInstance(node.name, node.generation, node.reason, node.host))


def _ends_still(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether its work is lost for its host now that it stands still and the host is taken."""
    if builder.blind or not builder.taken(node.host) or not work_on(builder, node):
        return False
    return _given_up(builder, node, f"{node.reason}; the ladder ends with {builder.rule(node).rung}")


def _given_up(builder: PlanBuilder, node: ManagedNode, why: str) -> bool:
    """Whether its work is lost for its host now, as the ladder says."""
    unsure = only_claimed(builder, node)
    if unsure:
        builder.refuse(node.name, Goal.REMOVAL, unsure.after(why))
        return False
    return condemn(builder, node, Cause.LADDER, why)


def _stand_still(builder: PlanBuilder, node: ManagedNode, rung: Rung) -> Progress:
    """Stop its CPUs."""
    if any(move.running for move in _moves_of(builder, node)):
        # A move keeps a pause away: until it is over it must not be disturbed.
        builder.do(CancelMove(node.name, node.generation, node.reason, node.host))
    if node.order is not None or (rung is Rung.SUSPEND and not node.doomed):
        progress = unplug_first(builder, node)
        if progress is not None:
            return progress
    if rung is Rung.SUSPEND and not builder.world.hosts[node.host].saves_paused:
        return suspend(builder, node, node.reason)
    # Also on the way to disk: its CPUs are free in milliseconds, writing takes seconds.
    return builder.do(PauseInstance(node.name, node.generation, node.reason, node.host))


def _migrate_away(builder: PlanBuilder, node: ManagedNode) -> None:
    """Let it run on while it moves, where another host has room now; else the next rung."""
    pays_s = builder.policies.gaps.return_pays_s
    need = need_of(builder.world, builder.policies, node)
    builder.awaits(Topic.ROOM)
    rooms, _ = candidates(builder.world, builder.policies, pays_s, frozenset({node.host}), need)
    if node.name in builder.world.closed:
        climb(builder, node, "closed by hand, it shall not go on elsewhere")
        return
    failed = [o for o in _moves_of(builder, node) if o.problem]
    if not rooms or failed or builder.budget_full():
        climb(builder, node, failed[-1].problem if failed else "no other host has room")
        return
    target = pick(builder.world, builder.policies, rooms)
    builder.become(
        node, Phase.MOVING, f"{node.reason}; {target} has room", stop=replace(node.stopping, target=target)
    )


def _moves_of(builder: PlanBuilder, node: ManagedNode) -> list[Operation]:
    """Its moves, in flight or failed."""
    start = f"{MigrateInstance.__name__}:{node.name}:{node.generation}:"
    return [o for o in builder.world.operations_of(node.name) if o.key.startswith(start)]


def climb(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    """Go on to the next rung of the ladder."""
    after = rule_after(builder, node).rung
    builder.note(node, f"{why}; next rung: {after}", stop=next_rung(builder, node))


def _tell_slurm(builder: PlanBuilder, node: ManagedNode) -> None:
    """The instance stands still: drain the node, suspend its jobs, then remember them."""
    seen = builder.world.nodes.get(node.name)
    builder.watch(node.name)
    # It may have stood still before, and was to come back when its host was wanted again.
    if stale(builder, node, judge(node.name, node.held, builder.world.jobs)):
        return
    if seen is None:
        forgotten(builder, node, fail=False)
        return
    if not drained(builder, node, seen):
        return
    drained_s = node.stopping.drained_s
    if drained_s is None:
        stop = replace(node.stopping, drained_s=float(builder.now_s))
        builder.note(node, "stopped and drained", stop=stop)
        return
    if builder.world.node_read_s(node.name) <= drained_s:
        builder.awaits(Topic.READING)
        return  # a job may have been given to the node just before the drain: look once more
    _suspend_in_slurm(builder, node, seen)


def _suspend_in_slurm(builder: PlanBuilder, node: ManagedNode, seen: Node) -> None:
    """Note whose jobs are to be suspended by us, suspend them, and then the node is aside."""
    jobs = [j for j in builder.world.jobs_on(node.name) if j.active]
    held = holding(builder, node, jobs)
    if held != node.held:
        builder.note(node, f"holds job {', '.join(j.id for j in jobs)}", held=held)
        return
    refused = {h.id for h in held if h.refused}
    running = [j for j in jobs if j.state is not JobState.SUSPENDED and j.id not in refused]
    if running:
        suspend_jobs(builder, node, seen, running)
        return
    if not jobs:
        _without_jobs(builder, node)
        return
    put_off = node.retry.not_before_s is not None and builder.now_s < node.retry.not_before_s
    tell(builder, node, (h.id for h in held if h.ours), _PUT_OFF if put_off else _PAUSED)
    tell_stopped(builder, node, held)
    builder.become(
        node,
        Phase.PARKED,
        node.reason,
        held=tuple(h for h in held if h.id in {j.id for j in jobs}),
        check=JobCheck(float(builder.now_s), kicked=node.check.kicked if node.check else ()),
        stop=replace(node.stopping, doomed=False),
        evictions=node.evictions + (node.order is None and not put_off),
    )


def _without_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Slurm shows no job on it."""
    if node.held:
        over(builder, node)
    elif vanished := builder.world.vanished_on(node.name):
        ids = ", ".join(held.id for held in vanished)
        condemn(builder, node, Cause.MISSING, f"Slurm shows nothing of job {ids}, which was on it")
    else:
        clear(builder, node, f"{node.reason}; no job was on it")


def suspend_jobs(builder: PlanBuilder, node: ManagedNode, seen: Node, running: Sequence[Job]) -> None:
    """Hide the node first: a stop signal sent to a paused guest waits and comes after its return.

    To a node that cannot be found it is not sent at all, and the guest needs none.
    """
    if not seen.hidden:
        if hide(builder, node):
            # Slurm passes nothing on to the terminal of a job that is suspended already.
            tell(builder, node, (j.id for j in running if j.interactive), _PAUSED)
        return
    if not others_drained(builder, node, running) or note_refused(builder, node, running):
        return
    for job in running:
        reason = f"its instance stands still: {node.reason}"
        builder.do(SuspendJob(node.name, node.generation, reason, job.id))
