"""Giving a host back: stop the instance first, then drain and suspend in Slurm, then wait."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.actions import CancelMove, MigrateInstance, PauseInstance, SuspendJob
from backfill.core.cluster import Job, JobState, Node
from backfill.core.condemn import clear, condemn, forgotten, lost, over, stale, work_on
from backfill.core.draft import Draft, Progress
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.hiding import hide
from backfill.core.ledger import Operation
from backfill.core.lifecycle import Cause, ManagedNode, Phase, Rung
from backfill.core.notice import tell
from backfill.core.placement import candidates, need_of, pick
from backfill.core.steps.devices import unplug_first
from backfill.core.steps.fellows import holding, others_drained
from backfill.core.steps.rungs import next_rung, on_rung, past_the_last, rule_after
from backfill.core.steps.taken import only_claimed, why_taken
from backfill.core.steps.throttle import held_back, hold_back
from backfill.core.steps.timing import drained, job_starts
from backfill.core.steps.to_disk import suspend
from backfill.core.steps.unsuspended import note_refused, tell_stopped

_PAUSED = (
    "paused, because its node's hardware is needed; its time limit stands still, and it is to go on by itself"
)
_PUT_OFF = "still paused, because its node did not come back well; it is tried again by itself"


def begin_eviction(draft: Draft, node: ManagedNode, doomed: bool = False) -> None:
    """Start to push `node` off its host."""
    taken = why_taken(draft, node.host)
    by_hand = draft.world.closed.get(node.name, "")
    reason = "its instance was found stopped"
    if taken:
        reason = f"host {node.host} {taken}"
    elif by_hand:
        reason = f"it was closed by hand: {by_hand}"
    elif node.name in draft.above_budget():
        reason = draft.budget_full()
    elif node.checkpoint:
        back = " back" if node.restoring else ""
        reason = f"checkpoint {node.checkpoint} was ordered{back}"
    draft.become(
        node,
        Phase.EVICTING,
        reason,
        drained_s=0.0,
        doomed=doomed or node.doomed,
        target="",
        **on_rung(draft, 0),
    )


def step_evicting(draft: Draft, node: ManagedNode) -> None:
    """Stop the instance by the present rung, then make Slurm's picture agree."""
    instance = draft.instance(node)
    if instance is None or draft.world.in_doubt(node.name):
        # After a call that failed it may be elsewhere: its hosts are just being read.
        _without_instance(draft, node)
        return
    if lost(draft, node, instance):
        return
    if not draft.stopped(instance):
        if instance.throttled and draft.rule(node).rung is Rung.THROTTLE and not node.checkpoint:
            held_back(draft, node)
            return
        if not _stays(draft, node):
            stop(draft, node)
        return
    _stands_still(draft, node, instance)


def _stands_still(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Its host's CPUs are free: what becomes of it there, and of its jobs in Slurm?"""
    rung = draft.rule(node).rung
    if rung is Rung.REQUEUE and _ends_still(draft, node):
        return
    if rung is Rung.SUSPEND and instance.state is InstanceState.PAUSED and not node.doomed:
        suspend(draft, node, node.reason)
    if not draft.blind and not job_starts(draft, node):
        _tell_slurm(draft, node)


def _stays(draft: Draft, node: ManagedNode) -> bool:
    """Whether it need not leave a host that was given back; one whose return has just come to
    nothing stands still there all the same."""
    free = draft.host_is_free(node.host) and node.name not in draft.world.closed
    if not free or node.checkpoint:
        return False
    if draft.now_s < node.not_before_s:
        draft.wake_at(node.not_before_s)
        _stand_still(draft, node, Rung.PAUSE)
        return True
    if node.doomed or draft.budget_full():
        return False
    draft.become(node, Phase.RETURNING, f"host {node.host} was given back before the stop")
    return True


def _without_instance(draft: Draft, node: ManagedNode) -> None:
    """No instance is seen: one may still be in the making, so wait for that call to end."""
    if draft.busy_with(node):
        return
    lost(draft, node, None)


def stop(draft: Draft, node: ManagedNode) -> None:
    """Ask for the present rung; when it fails or takes too long, take the next one."""
    rule = draft.rule(node)
    reason = node.reason
    limit_s = draft.rung_since(node) + rule.within_s
    overdue = draft.now_s >= limit_s
    draft.wake_at(limit_s)
    if draft.barred:
        _stop_unwritten(draft, node, rule.rung)
        return
    match rule.rung:
        case Rung.THROTTLE if not node.checkpoint:
            progress = hold_back(draft, node)
        case _ if node.checkpoint or rule.rung in (Rung.PAUSE, Rung.SUSPEND):
            progress = _stand_still(draft, node, rule.rung)
        case Rung.MIGRATE:
            _migrate_away(draft, node)
            return
        case _:
            why = f"{reason}; the ladder ends with {rule.rung}"
            if not _given_up(draft, node, why):
                _stand_still(draft, node, Rung.PAUSE)  # the host is given back all the same
            return
    if progress is Progress.FINAL or overdue:
        why = f"{rule.rung} did not work within {rule.within_s:g} s"
        if past_the_last(draft, node):
            _go_on_trying(draft, node, why, limit_s)
        else:
            climb(draft, node, why)


def _go_on_trying(draft: Draft, node: ManagedNode, why: str, limit_s: float) -> None:
    """No rung has worked: its work is not thrown away for that, and its stop is tried on and on."""
    failed = [o.problem for o in draft.world.operations_of(node.name) if o.problem]
    reason = f"no rung of the ladder has stopped it, {why}; that is tried again"
    draft.refuse(node.name, "its host's release", "; ".join([reason, *failed[-1:]]))
    if draft.now_s >= limit_s:
        draft.note(node, node.reason, rung_since_s=draft.now_s)


def _stop_unwritten(draft: Draft, node: ManagedNode, rung: Rung) -> None:
    """What may be done while nothing can be written: the host is wanted all the same."""
    if rung is Rung.THROTTLE and not node.checkpoint:
        hold_back(draft, node)
    else:
        draft.do(PauseInstance(node.name, node.generation, node.host, node.reason))


def _ends_still(draft: Draft, node: ManagedNode) -> bool:
    """Whether its work is lost for its host now that it stands still and the host is taken."""
    if draft.blind or not draft.taken(node.host) or not work_on(draft, node):
        return False
    return _given_up(draft, node, f"{node.reason}; the ladder ends with {draft.rule(node).rung}")


def _given_up(draft: Draft, node: ManagedNode, why: str) -> bool:
    """Whether its work is lost for its host now, as the ladder says."""
    unsure = only_claimed(draft, node)
    if unsure:
        draft.refuse(node.name, "removal", f"{why}; {unsure}")
        return False
    return condemn(draft, node, Cause.LADDER, why)


def _stand_still(draft: Draft, node: ManagedNode, rung: Rung) -> Progress:
    """Stop its CPUs."""
    if any(move.running for move in _moves_of(draft, node)):
        # A move keeps a pause away: until it is over it must not be disturbed.
        draft.do(CancelMove(node.name, node.generation, node.host, node.reason))
    if node.checkpoint or (rung is Rung.SUSPEND and not node.doomed):
        progress = unplug_first(draft, node)
        if progress is not None:
            return progress
    if rung is Rung.SUSPEND and not draft.world.hosts[node.host].saves_paused:
        return suspend(draft, node, node.reason)
    # Also on the way to disk: its CPUs are free in milliseconds, writing takes seconds.
    return draft.do(PauseInstance(node.name, node.generation, node.host, node.reason))


def _migrate_away(draft: Draft, node: ManagedNode) -> None:
    """Let it run on while it moves, where another host has room now; else the next rung."""
    pays_s = draft.policies.gaps.return_pays_s
    need = need_of(draft.world, draft.policies, node)
    rooms, _ = candidates(draft.world, draft.policies, pays_s, frozenset({node.host}), need)
    if node.name in draft.world.closed:
        climb(draft, node, "closed by hand, it shall not go on elsewhere")
        return
    failed = [o for o in _moves_of(draft, node) if o.problem]
    if not rooms or failed or draft.budget_full():
        climb(draft, node, failed[-1].problem if failed else "no other host has room")
        return
    target = pick(draft.world, draft.policies, rooms)
    draft.become(node, Phase.MOVING, f"{node.reason}; {target} has room", target=target)


def _moves_of(draft: Draft, node: ManagedNode) -> list[Operation]:
    """Its moves, in flight or failed."""
    start = f"{MigrateInstance.__name__}:{node.name}:{node.generation}:"
    return [o for o in draft.world.operations_of(node.name) if o.key.startswith(start)]


def climb(draft: Draft, node: ManagedNode, why: str) -> None:
    """Go on to the next rung of the ladder."""
    after = rule_after(draft, node).rung
    draft.note(node, f"{why}; next rung: {after}", **next_rung(draft, node))


def _tell_slurm(draft: Draft, node: ManagedNode) -> None:
    """The instance stands still: drain the node, suspend its jobs, then remember them."""
    seen = draft.world.nodes.get(node.name)
    draft.watch(node.name)
    # It may have stood still before, and was to come back when its host was wanted again.
    if stale(draft, node, judge(node.name, node.held, draft.world.jobs)):
        return
    if seen is None:
        forgotten(draft, node, fail=False)
        return
    if not drained(draft, node, seen):
        return
    if node.drained_s == 0.0:
        draft.note(node, "stopped and drained", drained_s=draft.now_s)
        return
    if draft.world.node_read_s(node.name) <= node.drained_s:
        return  # a job may have been given to the node just before the drain: look once more
    _suspend_in_slurm(draft, node, seen)


def _suspend_in_slurm(draft: Draft, node: ManagedNode, seen: Node) -> None:
    """Note whose jobs are to be suspended by us, suspend them, and then the node is aside."""
    jobs = [j for j in draft.world.jobs_on(node.name) if j.active]
    held = holding(draft, node, jobs)
    if held != node.held:
        draft.note(node, f"holds job {', '.join(j.id for j in jobs)}", held=held)
        return
    refused = {h.id for h in held if h.refused}
    running = [j for j in jobs if j.state is not JobState.SUSPENDED and j.id not in refused]
    if running:
        suspend_jobs(draft, node, seen, running)
        return
    if not jobs:
        _without_jobs(draft, node)
        return
    put_off = draft.now_s < node.not_before_s
    tell(draft, node, (h.id for h in held if h.ours), _PUT_OFF if put_off else _PAUSED)
    tell_stopped(draft, node, held)
    draft.become(
        node,
        Phase.DISPLACED,
        node.reason,
        held=tuple(h for h in held if h.id in {j.id for j in jobs}),
        suspended_s=draft.now_s,
        stuck_s=0.0,
        doomed=False,
        evictions=node.evictions + (not node.checkpoint and not put_off),
    )


def _without_jobs(draft: Draft, node: ManagedNode) -> None:
    """Slurm shows no job on it."""
    if node.held:
        over(draft, node)
    elif vanished := draft.world.vanished_on(node.name):
        ids = ", ".join(held.id for held in vanished)
        condemn(draft, node, Cause.MISSING, f"Slurm shows nothing of job {ids}, which was on it")
    else:
        clear(draft, node, f"{node.reason}; no job was on it")


def suspend_jobs(draft: Draft, node: ManagedNode, seen: Node, running: Sequence[Job]) -> None:
    """Hide the node first: a stop signal sent to a paused guest waits and comes after its return.

    To a node that cannot be found it is not sent at all, and the guest needs none.
    """
    if not seen.hidden:
        if hide(draft, node):
            # Slurm passes nothing on to the terminal of a job that is suspended already.
            tell(draft, node, (j.id for j in running if j.interactive), _PAUSED)
        return
    if not others_drained(draft, node, running) or note_refused(draft, node, running):
        return
    for job in running:
        reason = f"its instance stands still: {node.reason}"
        draft.do(SuspendJob(node.name, node.generation, job.id, reason))


def form_of(instance: Instance) -> str:
    """How a stopped instance is kept, for people."""
    return "on disk" if instance.state is InstanceState.SUSPENDED else "in memory"
