"""Waiting aside: go back when the host is free, move when another is, else climb the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.actions import DrainNode, MigrateInstance, RequeueJob
from backfill.core.adopting import unsure
from backfill.core.cluster import OUR_REASON, Job, JobState, Node
from backfill.core.condemn import lost, over, permit, stale
from backfill.core.draft import Draft, Progress
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.foresight import free_again_s, free_since_s, left_s
from backfill.core.lifecycle import Cause, HeldJob, ManagedNode, Phase, Rung
from backfill.core.notice import tell
from backfill.core.placement import candidates, closed, crowded, need_of, pick, too_short
from backfill.core.policies.gaps import late
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.unsuspendable import Way
from backfill.core.steps.evict import climb, suspend_jobs
from backfill.core.steps.fellows import being_requeued, taken_over
from backfill.core.steps.put_back import step_ordered
from backfill.core.steps.rungs import next_rung, rule_after
from backfill.core.steps.taken import only_claimed, unsafe
from backfill.core.steps.to_disk import kept_in_memory, suspend
from backfill.core.steps.unsuspended import keep_alive, way


def step_displaced(draft: Draft, node: ManagedNode) -> None:
    """Decide what becomes of one stopped instance now."""
    if draft.unread:
        return
    instance = draft.instance(node)
    if instance is None or not draft.stopped(instance):
        _not_stopped(draft, node, instance)
        return
    verdict = judge(node.name, node.held, draft.world.jobs)
    if stale(draft, node, verdict):
        return
    if not verdict.keep:
        over(draft, node)
    elif not _pardoned(draft, node):
        _keep(draft, node, instance, verdict.keep)


def _keep(draft: Draft, node: ManagedNode, instance: Instance, kept: tuple[HeldJob, ...]) -> None:
    """Slurm holds these jobs for it."""
    keep_alive(draft, node, kept)
    doubt = unsure(kept)
    if doubt:
        draft.refuse(node.name, f"return to {node.host}", doubt)
        _put_right(draft, node, kept)
    elif node.checkpoint:
        step_ordered(draft, node, instance)
    elif not _go_back(draft, node) and not _put_right(draft, node, kept):
        _wait_aside(draft, node, instance, way(draft, kept))


def _put_right(draft: Draft, node: ManagedNode, kept: Sequence[HeldJob]) -> bool:
    """Others may have undone what Slurm was told; resumed there, a job's time limit would run and
    Slurm would wait for it, and undrained the node would be given jobs that it cannot run."""
    seen = draft.world.nodes.get(node.name)
    if draft.blind or seen is None:
        return False
    if not seen.drained:
        draft.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {node.reason}"))
    jobs = [draft.world.jobs[held.id] for held in kept if not held.refused]
    going = [job for job in jobs if job.state is JobState.RUNNING]
    if going:
        _suspend_again(draft, node, seen, going)
    return bool(going) or not seen.drained


def _suspend_again(draft: Draft, node: ManagedNode, seen: Node, going: Sequence[Job]) -> None:
    """Whoever suspended them before: from now on they are suspended for this stop, by us."""
    held = taken_over(node, going)
    if held != node.held:
        draft.note(node, f"job {', '.join(j.id for j in going)} was resumed by others", held=held)
        return
    for job in going:
        reason = (
            "somebody resumed it in Slurm, but its instance stands still: it is suspended again, "
            f"and goes on when {node.host} is free"
        )
        draft.refuse(node.name, f"job {job.id} going on", reason)
    suspend_jobs(draft, node, seen, going)


def _wait_aside(draft: Draft, node: ManagedNode, instance: Instance, unsuspended: Way | None) -> None:
    """Its own host is busy: go on elsewhere, or by the ladder."""
    if draft.now_s < node.not_before_s and draft.host_is_free(node.host):
        return  # its host is not what it waits for
    if unsuspended is Way.REQUEUE:
        _give_to_queue(draft, node)
        return
    movable = draft.policies.ladder.migrates or unsuspended is Way.MOVE
    movable = movable and node.name not in draft.world.closed
    kept = kept_in_memory(instance) if movable else ""
    if kept:
        draft.refuse(node.name, "move", kept)
    elif movable and _move(draft, node, at_once=unsuspended is Way.MOVE):
        return
    _climb(draft, node, instance)


def _not_stopped(draft: Draft, node: ManagedNode, instance: Instance | None) -> None:
    """Somebody else changed it: never let it run on unasked."""
    if lost(draft, node, instance) or instance is None:
        return
    if instance.state is InstanceState.RUNNING:
        draft.become(node, Phase.RETURNING, "its instance was found running", woken_s=0.0)


def _pardoned(draft: Draft, node: ManagedNode) -> bool:
    """Whether its jobs were to start anew and do not: Slurm said no, or its host is free again."""
    if node.condemned is None or draft.busy_with(node):
        return False
    free = draft.host_is_free(node.host) and not draft.budget_full()
    if not node.unconfirmed and (not free or node.name in draft.world.closed):
        return False
    why = f"not given back to the queue: {node.unconfirmed}" if node.unconfirmed else node.reason
    draft.note(node, why, condemned=None, condemned_s=0.0, unconfirmed="")
    return True


def _go_back(draft: Draft, node: ManagedNode) -> bool:
    """Return to its own host once that has been free for long enough."""
    world, policies = draft.world, draft.policies
    reason = closed(world, node.host, policies.limits)
    if draft.busy_with(node):
        return True  # it is just being written to disk: what comes next depends on the outcome
    if not reason:
        reason = too_short(world, node.host, policies, policies.gaps.return_pays_s)
    reason = reason or draft.budget_full() or _unsettled(draft, node) or put_off_until(draft, node)
    given = draft.returning.count(node.host)
    reason = reason or crowded(world, node, draft.instance(node), policies, given)
    if not reason and node.name in draft.world.closed:
        reason = f"{node.name} was closed by hand: {draft.world.closed[node.name]}"
    if reason:
        draft.refuse(node.name, f"return to {node.host}", reason)
        return False
    draft.become(node, Phase.RETURNING, f"host {node.host} is free again", woken_s=0.0)
    return True


def put_off_until(draft: Draft, node: ManagedNode) -> str:
    """Say why its return is not tried again yet, or return an empty text."""
    if draft.now_s >= node.not_before_s:
        return ""
    draft.wake_at(node.not_before_s)
    tries = f"{node.returns} in a row" if node.returns > 1 else "once"
    wait_s = draft.policies.comeback.retry_after_s(max(1, node.returns))
    return f"that came to nothing {tries}, and is tried again after {wait_s:.0f} s: {node.reason}"


def _unsettled(draft: Draft, node: ManagedNode) -> str:
    """Say since when too short a time the host has been free, or return an empty text."""
    settle_s = draft.policies.comeback.settle_s
    if not settle_s:
        return ""
    due_s = free_since_s(draft.world, node.host) + settle_s
    if draft.now_s >= due_s:
        return ""
    draft.wake_at(due_s)
    return f"{node.host} has not been free for comeback.settle_s = {settle_s:g} s yet"


def _move(draft: Draft, node: ManagedNode, *, at_once: bool = False) -> bool:
    """Move to another host that has room; say why where none has."""
    ready_s = node.since_s + draft.policies.comeback.move_after_s
    if not at_once and draft.now_s < ready_s:
        draft.wake_at(ready_s)
        return False
    pays_s, full = draft.policies.gaps.return_pays_s, draft.budget_full()
    need = need_of(draft.world, draft.policies, node)
    rooms, why_not = candidates(draft.world, draft.policies, pays_s, frozenset({node.host}), need)
    if not rooms or full:
        for reason in [full] if full else why_not.values():
            draft.refuse(node.name, "move", reason)
        return False
    target = pick(draft.world, draft.policies, rooms)
    operation = draft.operation(MigrateInstance(node.name, node.generation, node.host, target, ""))
    if operation is not None and (operation.final or draft.now_s < operation.not_before_s):
        draft.refuse(node.name, f"move to {target}", operation.problem)
        return False
    draft.become(node, Phase.MOVING, f"host {target} has room, {node.host} is busy", target=target)
    return True


def _climb(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Stay on the rung for its time, then take the next."""
    rule = draft.rule(node)
    match rule.rung:
        case Rung.SUSPEND if instance.state is InstanceState.PAUSED:
            _suspend(draft, node)
            return
        case Rung.MIGRATE:
            climb(draft, node, kept_in_memory(instance) or "no other host has room")
            return
        case Rung.REQUEUE | Rung.CANCEL:
            _give_to_queue(draft, node)
            return
        case _:
            pass
    hopeless = _hopeless(draft, node, rule)
    if hopeless:
        climb(draft, node, hopeless)
        return
    if rule.for_s is None:
        return
    if draft.now_s >= node.rung_since_s + rule.for_s:
        climb(draft, node, f"{rule.for_s:g} s of {rule.rung} are over")
    else:
        draft.wake_at(node.rung_since_s + rule.for_s)


def _hopeless(draft: Draft, node: ManagedNode, rule: RungRule) -> str:
    """Say why to wait on here would be in vain, as far as the hours ahead are known, or ""."""
    if not draft.taken(node.host):
        return ""
    danger = unsafe(draft, node)
    if danger:
        return danger
    world = draft.world
    free_s = free_again_s(world, node.host)
    over_s = None if rule.for_s is None else node.rung_since_s + rule.for_s
    if draft.policies.gaps.pointless(over_s, free_s):
        return f"{node.host} is busy, by its jobs' limits, until after {rule.rung} is over"
    if rule_after(draft, node).rung is Rung.REQUEUE:
        return ""  # to start anew takes longer still
    for job in (world.jobs[held.id] for held in judge(node.name, node.held, world.jobs).keep):
        if late(draft.now_s, left_s([job], node.since_s), free_s, job.deadline_s):
            return f"job {job.id} would miss its deadline if it waited for {node.host}"
    return ""


def _suspend(draft: Draft, node: ManagedNode) -> None:
    rule = draft.rule(node)
    reason = f"stood still for long: its memory goes to disk ({node.reason})"
    progress = suspend(draft, node, reason)
    draft.wake_at(node.rung_since_s + rule.within_s)
    if progress is Progress.FINAL:
        climb(draft, node, kept_in_memory(draft.instance(node)) or "suspend did not work")


def _give_to_queue(draft: Draft, node: ManagedNode) -> None:
    """The last rung: the copy is destroyed and the jobs start anew elsewhere."""
    kept = judge(node.name, node.held, draft.world.jobs).keep
    for held in kept:
        job = draft.world.jobs.get(held.id)
        if job is None or not job.requeue:
            draft.refuse(node.name, f"requeue of job {held.id}", "it was submitted as --no-requeue")
            return  # never lose a job that cannot start again: it stays suspended
        if not held.ours and job.state is JobState.SUSPENDED:
            reason = "somebody else suspended it: requeued it would begin at once"
            draft.refuse(node.name, f"requeue of job {held.id}", reason)
            return
        if being_requeued(draft, node, job):
            return  # once more would end the new run that may have begun
    reason = "the end of the ladder is reached"
    if not _may_begin_anew(draft, node, reason):
        return
    begun = [
        draft.do(RequeueJob(node.name, node.generation, h.id, reason, h.restarts, aside=True)) for h in kept
    ]
    if Progress.BEGUN in begun:
        text = "starts anew: it stood still for as long as the policy allows"
        tell(draft, node, (h.id for h in kept), text)
    elif all(p is Progress.FINAL for p in begun):
        draft.refuse(node.name, "requeue", "Slurm refuses to requeue its jobs")


def _may_begin_anew(draft: Draft, node: ManagedNode, reason: str) -> bool:
    unsure = only_claimed(draft, node)
    if unsure:
        draft.refuse(node.name, "requeue", f"{reason}; {unsure}")
        return False
    return permit(draft, node, Cause.LADDER, reason)


def step_moving(draft: Draft, node: ManagedNode) -> None:
    """Wait for the migration; look at both hosts, not at the error, to know where it is."""
    places = [i for i in draft.world.places_of(node.name) if i.tag.generation == node.generation]
    action = MigrateInstance(node.name, node.generation, node.host, node.target, f"{node.target} has room")
    if _too_slow(draft, node):
        return
    if draft.world.running(_key(draft, action)) or draft.world.in_doubt(node.name):
        return
    at = {i.host: i for i in places if i.state is not InstanceState.MIGRATING}
    if node.target in at and node.host not in at:
        _arrived(draft, node, at[node.target])
        return
    operation = draft.operation(action)
    if operation is not None:
        draft.become(
            node,
            _back_phase(draft, node),
            f"the move to {node.target} failed: {operation.problem}",
            target="",
        )
        return
    if draft.taken(node.target):
        reason = f"{node.target} was taken before the move began"
        draft.become(node, _back_phase(draft, node), reason, target="")
        return
    draft.do(action)


def _too_slow(draft: Draft, node: ManagedNode) -> bool:
    """A running instance may keep a wanted host busy only for the rung's time: then it stops."""
    instance = draft.instance(node)
    if instance is None or instance.state is not InstanceState.RUNNING:
        return False
    if not draft.taken(node.host):
        return False
    limit_s = node.since_s + draft.rule(node).within_s
    draft.wake_at(limit_s)
    if draft.now_s < limit_s:
        return False
    draft.become(
        node, Phase.EVICTING, f"the move to {node.target} is too slow", target="", **next_rung(draft, node)
    )
    return True


def _arrived(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    host = node.target
    if draft.taken(host):
        phase = Phase.DISPLACED if draft.stopped(instance) else Phase.EVICTING
        # Somebody waits for this host already: there is no time for one more move.
        moved = phase is Phase.EVICTING and draft.rule(node).rung is Rung.MIGRATE
        further = next_rung(draft, node) if moved else {}
        draft.become(node, phase, f"{host} was taken meanwhile", host=host, target="", **further)
        return
    draft.become(node, Phase.RETURNING, f"moved to {host}", host=host, target="", woken_s=0.0)


def _back_phase(draft: Draft, node: ManagedNode) -> Phase:
    """Where a node whose move came to nothing goes on: as before the move."""
    return Phase.DISPLACED if draft.stopped(draft.instance(node)) else Phase.EVICTING


def _key(draft: Draft, action: MigrateInstance) -> str:
    operation = draft.operation(action)
    return operation.key if operation is not None else ""
