"""Giving a host back: stop the instance first, then drain and suspend in Slurm, then wait."""

from __future__ import annotations

from backfill.core.actions import (
    CancelMove,
    MigrateInstance,
    PauseInstance,
    SuspendJob,
)
from backfill.core.cluster import Job, JobState, Node
from backfill.core.draft import Draft, Progress
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.hiding import hide
from backfill.core.ledger import Operation
from backfill.core.lifecycle import HeldJob, ManagedNode, Phase, Rung
from backfill.core.notice import tell
from backfill.core.placement import candidates, need_of, pick
from backfill.core.steps.devices import unplug_first
from backfill.core.steps.rungs import next_rung, on_rung, rule_after
from backfill.core.steps.taken import why_taken
from backfill.core.steps.throttle import held_back, hold_back
from backfill.core.steps.timing import drained, job_starts
from backfill.core.steps.to_disk import suspend

_PAUSED = "paused, because its node's hardware is needed; it goes on by itself and loses nothing"


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
    problem = draft.broken(node, instance)
    if problem:
        draft.become(node, Phase.REMOVING, problem, fail=True)
        return
    if not draft.stopped(instance):
        if instance.throttled and draft.rule(node).rung is Rung.THROTTLE and not node.checkpoint:
            held_back(draft, node)
            return
        free = draft.host_is_free(node.host) and node.name not in draft.world.closed
        free = free and not node.checkpoint
        if free and not node.doomed and not draft.budget_full():
            draft.become(node, Phase.RETURNING, f"host {node.host} was given back before the stop")
            return
        stop(draft, node)
        return
    rung = draft.rule(node).rung
    if rung is Rung.SUSPEND and instance.state is InstanceState.PAUSED and not node.doomed:
        suspend(draft, node, node.reason)
    if not draft.blind and not job_starts(draft, node):
        _tell_slurm(draft, node)


def _without_instance(draft: Draft, node: ManagedNode) -> None:
    """No instance is seen: one may still be in the making, so wait for that call to end."""
    if draft.busy_with(node):
        return
    found = draft.elsewhere(node)
    if found is not None:
        draft.note(node, f"found on {found.host}", host=found.host)
        return
    draft.become(node, Phase.REMOVING, f"its instance is not on {node.host}")


def stop(draft: Draft, node: ManagedNode) -> None:
    """Ask for the present rung; when it fails or takes too long, take the next one."""
    rule = draft.rule(node)
    reason = node.reason
    limit_s = draft.rung_since(node) + rule.within_s
    overdue = draft.now_s >= limit_s
    draft.wake_at(limit_s)
    match rule.rung:
        case Rung.THROTTLE if not node.checkpoint:
            progress = hold_back(draft, node)
        case _ if node.checkpoint or rule.rung in (Rung.PAUSE, Rung.SUSPEND):
            progress = _stand_still(draft, node, rule.rung)
        case Rung.MIGRATE:
            _migrate_away(draft, node)
            return
        case _:
            draft.become(node, Phase.REMOVING, f"{reason}; the ladder ends with {rule.rung}")
            return
    if progress is Progress.FINAL or overdue:
        climb(draft, node, f"{rule.rung} did not work within {rule.within_s:g} s")


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
    stale = judge(node.name, node.held, draft.world.jobs).stale
    if stale:  # it stood still before, and was to come back when its host was wanted again
        draft.become(node, Phase.REMOVING, f"{stale}: the copy here is destroyed")
        return
    if seen is None:
        draft.become(node, Phase.REMOVING, "Slurm does not know the node any more")
        return
    if not drained(draft, node, seen):
        return
    if node.drained_s == 0.0:
        draft.note(node, "stopped and drained", drained_s=draft.now_s)
        return
    if draft.world.node_read_s(node.name) <= node.drained_s:
        return  # a job may have been given to the node just before the drain: look once more
    jobs = [j for j in draft.world.jobs_on(node.name) if j.active]
    running = [j for j in jobs if j.state is not JobState.SUSPENDED]
    if running:
        suspend_jobs(draft, node, seen, running)
        return
    if node.doomed or not jobs:
        draft.become(node, Phase.REMOVING, f"{node.reason}; no job was on it")
        return
    tell(draft, node, (j.id for j in jobs), _PAUSED)
    draft.become(
        node,
        Phase.DISPLACED,
        node.reason,
        held=tuple(HeldJob(j.id, j.restarts) for j in jobs),
        suspended_s=draft.now_s,
        stuck_s=0.0,
        evictions=node.evictions + (not node.checkpoint),
    )


def suspend_jobs(draft: Draft, node: ManagedNode, seen: Node, running: list[Job]) -> None:
    """Hide the node first: a stop signal sent to a paused guest waits and comes after its return.

    To a node that cannot be found it is not sent at all, and the guest needs none.
    """
    if not seen.hidden:
        if hide(draft, node):
            # Slurm passes nothing on to the terminal of a job that is suspended already.
            tell(draft, node, (j.id for j in running if j.interactive), _PAUSED)
        return
    for job in running:
        reason = f"its instance stands still: {node.reason}"
        draft.do(SuspendJob(node.name, node.generation, job.id, reason))


def form_of(instance: Instance) -> str:
    """How a stopped instance is kept, for people."""
    return "on disk" if instance.state is InstanceState.SUSPENDED else "in memory"
