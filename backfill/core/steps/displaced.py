"""Waiting aside: go back when the host is free, move when another is, else climb the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.actions import DrainNode, MigrateInstance, RequeueJob
from backfill.core.cluster import OUR_REASON, JobState
from backfill.core.draft import Draft, Progress
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.foresight import free_again_s, free_since_s, left_s
from backfill.core.lifecycle import HeldJob, ManagedNode, Phase, Rung
from backfill.core.notice import tell
from backfill.core.placement import candidates, closed, crowded, need_of, pick, too_short
from backfill.core.policies.gaps import late
from backfill.core.policies.ladder import RungRule
from backfill.core.steps.evict import climb, suspend_jobs
from backfill.core.steps.let_go import let_go
from backfill.core.steps.put_back import step_ordered
from backfill.core.steps.rungs import next_rung, rule_after
from backfill.core.steps.taken import unsafe
from backfill.core.steps.to_disk import kept_in_memory, suspend


def step_displaced(draft: Draft, node: ManagedNode) -> None:
    """Decide what becomes of one stopped instance now."""
    if draft.unread:
        return
    instance = draft.instance(node)
    if instance is None or not draft.stopped(instance):
        _not_stopped(draft, node, instance)
        return
    verdict = judge(node.name, node.held, draft.world.jobs)
    if verdict.stale:
        draft.become(node, Phase.REMOVING, f"{verdict.stale}: the copy here is destroyed")
        return
    if not verdict.keep:
        let_go(draft, node, "its jobs have ended while it stood still")
        return
    if node.checkpoint:
        step_ordered(draft, node, instance)
    elif not _go_back(draft, node) and not _put_right(draft, node, verdict.keep):
        _wait_aside(draft, node, instance)


def _put_right(draft: Draft, node: ManagedNode, kept: Sequence[HeldJob]) -> bool:
    """Others may have undone what Slurm was told; resumed there, a job's time limit would run and
    Slurm would wait for it, and undrained the node would be given jobs that it cannot run."""
    seen = draft.world.nodes.get(node.name)
    if draft.blind or seen is None:
        return False
    if not seen.drained:
        draft.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {node.reason}"))
    jobs = [draft.world.jobs[held.id] for held in kept]
    going = [job for job in jobs if job.state is JobState.RUNNING]
    if going:
        suspend_jobs(draft, node, seen, going)
    return bool(going) or not seen.drained


def _wait_aside(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Its own host is busy: go on elsewhere, or by the ladder."""
    movable = draft.policies.ladder.migrates and node.name not in draft.world.closed
    kept = kept_in_memory(instance) if movable else ""
    if kept:
        draft.refuse(node.name, "move", kept)
    elif movable and _move(draft, node):
        return
    _climb(draft, node, instance)


def _not_stopped(draft: Draft, node: ManagedNode, instance: Instance | None) -> None:
    """Somebody else changed it: never let it run on unasked."""
    if instance is None:
        found = draft.elsewhere(node)
        if found is not None:
            draft.note(node, f"found on {found.host}", host=found.host)
            return
    problem = draft.broken(node, instance)
    if problem:
        draft.become(node, Phase.REMOVING, problem, fail=True)
    elif instance is not None and instance.state is InstanceState.RUNNING:
        draft.become(node, Phase.RETURNING, "its instance was found running", woken_s=0.0)


def _go_back(draft: Draft, node: ManagedNode) -> bool:
    """Return to its own host once that has been free for long enough."""
    world, policies = draft.world, draft.policies
    reason = closed(world, node.host, policies.limits)
    if draft.busy_with(node):
        return True  # it is just being written to disk: what comes next depends on the outcome
    if not reason:
        reason = too_short(world, node.host, policies, policies.gaps.return_pays_s)
    reason = reason or draft.budget_full() or _unsettled(draft, node)
    given = draft.returning.count(node.host)
    reason = reason or crowded(world, node, draft.instance(node), policies, given)
    if not reason and node.name in draft.world.closed:
        reason = f"{node.name} was closed by hand: {draft.world.closed[node.name]}"
    if reason:
        draft.refuse(node.name, f"return to {node.host}", reason)
        return False
    draft.become(node, Phase.RETURNING, f"host {node.host} is free again", woken_s=0.0)
    return True


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


def _move(draft: Draft, node: ManagedNode) -> bool:
    """Move to another host that has room; say why where none has."""
    ready_s = node.since_s + draft.policies.comeback.move_after_s
    if draft.now_s < ready_s:
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
    begun = [
        draft.do(RequeueJob(node.name, node.generation, h.id, "the end of the ladder is reached"))
        for h in kept
    ]
    if Progress.BEGUN in begun:
        text = "starts anew: it stood still for as long as the policy allows"
        tell(draft, node, (h.id for h in kept), text)
    elif all(p is Progress.FINAL for p in begun):
        draft.refuse(node.name, "requeue", "Slurm refuses to requeue its jobs")


def step_moving(draft: Draft, node: ManagedNode) -> None:
    """Wait for the migration; look at both hosts, not at the error, to know where it is."""
    places = [i for i in draft.world.places_of(node.name) if i.tag.generation == node.generation]
    action = MigrateInstance(
        node.name, node.generation, node.host, node.target, f"{node.target} has room"
    )
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
        node,
        Phase.EVICTING,
        f"the move to {node.target} is too slow",
        target="",
        **next_rung(draft, node),
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
