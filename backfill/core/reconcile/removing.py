"""The end: drain an unneeded node, take instance and node away, remember failures."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.actions import DeleteInstance, DeleteNode, DownNode, DrainNode, UndrainNode
from backfill.core.model.cluster import OUR_REASON, Job, NodeBase
from backfill.core.model.lifecycle import Cause, ManagedNode, Phase
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress, tell
from backfill.core.reconcile.condemn import (
    COPY_IS_LOST,
    awaited,
    cancel_of,
    clear,
    condemn,
    end_for_good,
    forget_lost,
    forgotten,
    permit,
    reachable,
    requeue_of,
    work_on,
)
from backfill.core.reconcile.course import begin_eviction, first_rung
from backfill.core.reconcile.holding import give_back
from backfill.core.reconcile.names import note_failure
from backfill.core.reconcile.pressure import must_leave, stop_where_wanted
from backfill.core.reconcile.reasons import reason_over, taken_by_jobs, wanted_back
from backfill.core.room import unread_since


def step_draining(builder: PlanBuilder, node: ManagedNode) -> None:
    """Nobody needs it: wait for the drain and the last job, then remove it."""
    if must_leave(builder, node):
        begin_eviction(builder, node, doomed=True)
        return
    if builder.blind:
        return
    seen = builder.world.nodes.get(node.name)
    if seen is None:
        forgotten(builder, node, fail=False)
        return
    builder.watch(node.name)
    if not seen.drained:
        builder.do(
            DrainNode(subject=node.name, generation=node.generation, reason=f"{OUR_REASON} {node.reason}")
        )
        return
    drained_s = node.stopping.drained_s
    if drained_s is None:
        stop = replace(node.stopping, drained_s=float(builder.now_s))
        builder.note(node, node.reason, stop=stop)
        return
    builder.awaits(Topic.READING)
    if builder.world.node_read_s(node.name) <= drained_s:
        return  # a job may have come just before the drain: look once more
    if builder.world.jobs_on(node.name):
        _with_jobs(builder, node)
    else:
        _without_jobs(builder, node)


def _without_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Slurm shows no job on it."""
    if vanished := builder.world.vanished_on(node.name):
        # It may have ended and been forgotten between two readings: it is awaited for long, not for ever.
        ids = ", ".join(held.id for held in vanished)
        why = f"{node.reason}; Slurm shows nothing of job {ids}, which was on it"
        condemn(builder, node, Cause.MISSING, why)
    else:
        clear(builder, node, node.reason)


def _with_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Keep it, unless its room is wanted back: then its jobs may end in time, or start anew."""
    back = node.doomed and wanted_back(builder, node)
    if not back:
        reason = "a job came just before the drain"
        if node.doomed:
            reason = sentence(because(Code.ROOM_NOT_WANTED, host=node.host))
        builder.do(UndrainNode(subject=node.name, generation=node.generation, reason=reason, host=node.host))
        # Until its drain is lifted it is known whose that is.
        stop = replace(node.stopping, doomed=False)
        builder.become(node, Phase.READY, reason, stop=stop, idle_since_s=None)
        return
    if not builder.overdue(node.since_s, builder.policies.scale.reclaim_within_s):
        return
    fixed = [j.id for j in builder.world.jobs_on(node.name) if not j.requeue]
    if fixed:
        builder.refuse(node.name, Goal.REMOVAL, because(Code.NO_REQUEUE_AWAITED, jobs=tuple(fixed)))
        return
    condemn(builder, node, Cause.RECLAIMED, f"{node.reason}; its jobs start over elsewhere")


def step_removing(builder: PlanBuilder, node: ManagedNode) -> None:
    """Destroy the instance first, so that no copy can run on; then clear Slurm of the node."""
    if node.unconfirmed is not None:
        _spared(builder, node, node.unconfirmed)
        return
    over = reason_over(builder, node)
    if over is not None:
        _spared(builder, node, sentence(over))
        return
    give_back(builder, node)
    if forget_lost(builder, node) or _instance_left(builder, node) or builder.blind:
        return
    builder.awaits(Topic.READING)
    unsure = _unsure(builder, node)
    if unsure:
        # Its jobs must not start elsewhere, nor its name be used again, while a copy may run on.
        builder.refuse(node.name, Goal.REMOVAL, unsure)
        return
    if _not_destroyed(builder, node):
        return
    seen = builder.world.nodes.get(node.name)
    if seen is not None:
        builder.watch(node.name)
        _leave_slurm(builder, node)
        return
    if builder.world.busy(node.name) or _not_deleted(builder, node):
        return
    _over(builder, node)


def _not_deleted(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if Slurm may still have it, although a reading of all its nodes lacked it: see to that.

    One such reading may be odd, and a node that is forgotten then stays in Slurm for ever.
    """
    world = builder.world
    if not world.node_since_s(node.name) or world.deleted(node.name, node.generation):
        return False
    delete = DeleteNode(subject=node.name, generation=node.generation, reason=node.reason)
    return builder.do(delete) is not Progress.FINAL


def _spared(builder: PlanBuilder, node: ManagedNode, said: str) -> None:
    """Asked directly before, Slurm or its hypervisor did not bear out why it should go.

    Why it was stopped is what its jobs' owners read, so that comes back.
    """
    story = f"not destroyed: {said}"
    before = "" if node.condemned is None else node.condemned.before
    stop = first_rung(builder, node)
    builder.become(node, Phase.EVICTING, before or story, story, unconfirmed=None, fail=False, stop=stop)


def _delete_at(builder: PlanBuilder, node: ManagedNode, host: str, *, last_words: bool) -> DeleteInstance:
    cause = None if node.condemned is None else node.condemned.cause
    held = () if cause is None else work_on(builder, node)
    return DeleteInstance(
        subject=node.name,
        generation=node.generation,
        reason=node.reason,
        host=host,
        last_words=last_words,
        cause=cause,
        held=held,
        taken=taken_by_jobs(builder, node) if held else "",
    )


def _not_destroyed(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its host may still have it, although readings of all that is there lacked it.

    They may be odd, and its room would be given to others: so its hypervisor is asked for it alone.
    """
    if builder.world.destroyed_here(node.name, node.generation) or builder.world.lost(node.host):
        return False
    return builder.do(_delete_at(builder, node, node.host, last_words=False)) is not Progress.FINAL


def _instance_left(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Delete it wherever it is seen; true while anything of it may still be there."""
    places = builder.world.places_of(node.name)
    for place in places:
        last_words = node.fail and node.proof.proven_s is None
        progress = builder.insist(_delete_at(builder, node, place.host, last_words=last_words), Goal.REMOVAL)
        if progress not in (Progress.BEGUN, Progress.RUNNING):
            stop_where_wanted(builder, place)  # it is not gone in time: it makes room all the same
    if places:
        return True
    # A call that may yet bring it into being has to end first.
    return any(o.running and o.host for o in builder.world.calls.all_of(node.name))


def _unsure(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return which host has not been seen without the instance since the removal began."""
    world = builder.world
    for name in node.hosts:
        host = world.hosts[name]
        if world.lost(name):
            continue
        if not host.reachable:
            return because(Code.MAY_BE_THERE, host=name, said=Words(host.problem))
        if unread_since(world, name, node):  # the reading for which it goes is not borne out by itself
            return because(Code.UNREAD_SINCE, host=name)
    # A move that an earlier daemon began may have ended since, on a host that the books do not name.
    others = reachable(builder) if node.found else ()
    unread = next((name for name in others if unread_since(world, name, node)), None)
    return awaited(builder, node) if unread is None else because(Code.UNREAD_SINCE, host=unread)


def _leave_slurm(builder: PlanBuilder, node: ManagedNode) -> None:
    """Give back the jobs that Slurm still sees there, then delete the node."""
    seen = builder.world.nodes[node.name]
    if not seen.drained:
        builder.do(
            DrainNode(subject=node.name, generation=node.generation, reason=f"{OUR_REASON} {node.reason}")
        )
        return
    jobs = builder.world.jobs_on(node.name)
    active = [j for j in jobs if j.active]
    for job in active:
        _give_back(builder, node, job)
    if active:
        return
    if jobs and seen.base is not NodeBase.DOWN:
        reason = f"{OUR_REASON} its instance is gone"
        builder.do(DownNode(subject=node.name, generation=node.generation, reason=reason))
        return
    builder.do(DeleteNode(subject=node.name, generation=node.generation, reason=node.reason))


def _give_back(builder: PlanBuilder, node: ManagedNode, job: Job) -> None:
    """Let a job whose copy is destroyed start anew, or end it where its owner forbade that."""
    reason = f"its instance is gone: {node.reason}"
    host = "" if builder.world.lost(node.host) else node.host
    if node.condemned is not None and node.condemned.cause is Cause.PATIENCE:
        end_for_good(builder, node, job, reason, host)
        return
    if not job.requeue:
        _end_fixed(builder, node, job, reason, host)
        return
    progress = builder.do(requeue_of(node, job, reason, host))
    if progress is Progress.BEGUN:
        tell(builder, node, (job.id,), f"starts over: {reason}")
    elif progress is Progress.FINAL:
        if builder.world.nodes[node.name].base is NodeBase.DOWN:
            builder.refuse(node.name, Goal.REMOVAL, because(Code.JOB_STILL_SEEN, job=job.id))
            return  # it had ended, or ends with its node: the next reading shows that
        builder.do(DownNode(subject=node.name, generation=node.generation, reason=f"{OUR_REASON} {reason}"))


def _end_fixed(builder: PlanBuilder, node: ManagedNode, job: Job, reason: str, host: str) -> None:
    """End one that may not start over, once its copy is known to be lost."""
    if node.condemned is None:
        # Slurm did not show the job when its node went, and no host shows the copy: by that it ends.
        permit(builder, node, Cause.VANISHED, node.reason)
    elif node.condemned.cause not in COPY_IS_LOST:
        builder.refuse(node.name, Goal.REMOVAL, because(Code.NO_REQUEUE_UNLOST, job=job.id))
    elif builder.do(cancel_of(node, job, reason, host)) is Progress.BEGUN:
        tell(builder, node, (job.id,), f"ends, as it may not be requeued: {reason}")


def _over(builder: PlanBuilder, node: ManagedNode) -> None:
    """Nothing is left outside."""
    if not node.fail:
        builder.forget(node, node.reason)
        return
    note_failure(builder, node)
