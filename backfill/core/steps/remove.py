"""The end: drain an unneeded node, take instance and node away, remember failures."""

from __future__ import annotations

from backfill.core.actions import (
    CancelJob,
    DeleteInstance,
    DeleteNode,
    DownNode,
    DrainNode,
    RequeueJob,
    UndrainNode,
)
from backfill.core.cluster import OUR_REASON, Job, NodeBase
from backfill.core.condemn import COPY_IS_LOST, clear, condemn, forgotten, work_on
from backfill.core.draft import Draft, Progress
from backfill.core.lifecycle import Cause, ManagedNode, Phase
from backfill.core.notice import tell
from backfill.core.steps.evict import begin_eviction
from backfill.core.steps.rungs import on_rung
from backfill.core.steps.unsuspended import give_back


def step_draining(draft: Draft, node: ManagedNode) -> None:
    """Nobody needs it: wait for the drain and the last job, then remove it."""
    if draft.must_leave(node):
        begin_eviction(draft, node, doomed=True)
        return
    if draft.blind:
        return
    seen = draft.world.nodes.get(node.name)
    if seen is None:
        forgotten(draft, node, fail=False)
        return
    draft.watch(node.name)
    if not seen.drained:
        draft.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {node.reason}"))
        return
    if node.drained_s == 0.0:
        draft.note(node, node.reason, drained_s=draft.now_s)
        return
    if draft.world.node_read_s(node.name) <= node.drained_s:
        return  # a job may have come just before the drain: look once more
    if draft.world.jobs_on(node.name):
        _with_jobs(draft, node)
        return
    clear(draft, node, node.reason)


def _with_jobs(draft: Draft, node: ManagedNode) -> None:
    """It stays, unless its room is wanted back: then its jobs may end in time, or start anew."""
    if not node.doomed:
        reason = "a job came just before the drain"
        draft.do(UndrainNode(node.name, node.generation, reason, node.host))
        draft.become(node, Phase.READY, reason, idle_since_s=0.0)
        return
    limit_s = draft.since(node) + draft.policies.scale.reclaim_within_s
    draft.wake_at(limit_s)
    if draft.now_s < limit_s:
        return
    fixed = [j.id for j in draft.world.jobs_on(node.name) if not j.requeue]
    if fixed:
        reason = f"job {', '.join(fixed)} was submitted as --no-requeue: it is waited for"
        draft.refuse(node.name, "removal", reason)
        return
    condemn(draft, node, Cause.RECLAIMED, f"{node.reason}; its jobs start anew elsewhere")


def step_removing(draft: Draft, node: ManagedNode) -> None:
    """Destroy the instance first, so that no copy can run on; then clear Slurm of the node."""
    if node.unconfirmed:
        _spared(draft, node)
        return
    give_back(draft, node)
    if _given_up(draft, node) or _instance_left(draft, node) or draft.blind:
        return
    unsure = _unsure(draft, node)
    if unsure:
        # Its jobs must not start elsewhere, nor its name be used again, while a copy may run on.
        draft.refuse(node.name, "removal", f"{unsure}: its instance may still be there")
        return
    seen = draft.world.nodes.get(node.name)
    if seen is not None:
        draft.watch(node.name)
        _leave_slurm(draft, node)
        return
    if draft.busy_with(node) or _not_deleted(draft, node):
        return
    _over(draft, node)


def _not_deleted(draft: Draft, node: ManagedNode) -> bool:
    """Whether Slurm may still have it, although a reading of all its nodes lacked it: see to that.

    One such reading may be odd, and a node that is forgotten then stays in Slurm for ever.
    """
    world = draft.world
    if not world.node_since_s(node.name) or world.deleted(node.name, node.generation):
        return False
    delete = DeleteNode(node.name, node.generation, node.reason)
    return draft.do(delete) is not Progress.FINAL


def _spared(draft: Draft, node: ManagedNode) -> None:
    """Asked directly before, Slurm or its hypervisor did not bear out why it should go."""
    draft.become(
        node,
        Phase.EVICTING,
        f"not destroyed: {node.unconfirmed}",
        unconfirmed="",
        fail=False,
        doomed=False,
        drained_s=0.0,
        **on_rung(draft, 0),
    )


def lost_with(draft: Draft, host: str) -> bool:
    """Whether nothing is on the host any more: it is silent, and people say that it is off."""
    known = draft.world.hosts.get(host)
    return host in draft.world.off and known is not None and not known.reachable


def _given_up(draft: Draft, node: ManagedNode) -> bool:
    """Forget what the node has on hosts that are off for good; whether that goes on."""
    world = draft.world
    for host in filter(None, (node.host, node.target)):
        seen_s = world.seen_s("instance", f"{host}/{node.name}")
        if lost_with(draft, host) and seen_s < node.since_s:
            reason = f"{host} is off for good: {world.off[host]}"
            draft.do(DeleteInstance(node.name, node.generation, host, reason, off=True))
            return True
    return False


def _instance_left(draft: Draft, node: ManagedNode) -> bool:
    """Delete it wherever it is seen; true while anything of it may still be there."""
    places = draft.world.places_of(node.name)
    for place in places:
        last_words = node.fail and node.proven_s == 0.0
        held = work_on(draft, node) if node.condemned else ()
        draft.do(
            DeleteInstance(
                node.name,
                node.generation,
                place.host,
                node.reason,
                last_words,
                cause=node.condemned,
                held=held,
            )
        )
    if places:
        return True
    # A call that may yet bring it into being has to end first.
    return any(o.running and o.host for o in draft.world.operations_of(node.name))


def _unsure(draft: Draft, node: ManagedNode) -> str:
    """Say which host has not been seen without the instance since the removal began."""
    world = draft.world
    for name in filter(None, (node.host, node.target)):
        host = world.hosts[name]
        if lost_with(draft, name):
            continue
        if not host.reachable:
            return f"{name} cannot be reached ({host.problem})"
        source = world.sources.get(name)
        read_s = max(
            source.seen_s if source is not None else 0.0, world.seen_s("instance", f"{name}/{node.name}")
        )
        if read_s < node.since_s:
            return f"{name} has not been read since"
    return ""


def _leave_slurm(draft: Draft, node: ManagedNode) -> None:
    """Give back the jobs that Slurm still sees there, then delete the node."""
    seen = draft.world.nodes[node.name]
    if not seen.drained:
        draft.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {node.reason}"))
        return
    jobs = draft.world.jobs_on(node.name)
    active = [j for j in jobs if j.active]
    for job in active:
        _give_back(draft, node, job)
    if active:
        return
    if jobs and seen.base is not NodeBase.DOWN:
        reason = f"{OUR_REASON} its instance is gone"
        draft.do(DownNode(node.name, node.generation, reason))
        return
    draft.do(DeleteNode(node.name, node.generation, node.reason))


def _give_back(draft: Draft, node: ManagedNode, job: Job) -> None:
    """The job's copy is destroyed: let it start anew, or end it where its owner forbade that."""
    reason = f"its instance is gone: {node.reason}"
    host = "" if lost_with(draft, node.host) else node.host
    if not job.requeue:
        if node.condemned not in COPY_IS_LOST:
            why = f"job {job.id} was submitted as --no-requeue, and nothing shows its copy as lost"
            draft.refuse(node.name, "removal", why)
            return
        end = CancelJob(node.name, node.generation, job.id, reason, job.restarts, host)
        if draft.do(end) is Progress.BEGUN:
            tell(draft, node, (job.id,), f"ends, as it may not be requeued: {reason}")
        return
    action = RequeueJob(node.name, node.generation, job.id, reason, job.restarts, host)
    progress = draft.do(action)
    if progress is Progress.BEGUN:
        tell(draft, node, (job.id,), f"starts anew: {reason}")
    elif progress is Progress.FINAL:
        if draft.world.nodes[node.name].base is NodeBase.DOWN:
            draft.refuse(node.name, "removal", f"job {job.id} is still seen there")
            return  # it had ended, or ends with its node: the next reading shows that
        draft.do(DownNode(node.name, node.generation, f"{OUR_REASON} {reason}"))


def _over(draft: Draft, node: ManagedNode) -> None:
    """Nothing is left outside."""
    if not node.fail:
        draft.forget(node, node.reason)
        return
    scale = draft.policies.scale
    failures = node.failures + 1
    if failures >= scale.give_up_after:
        draft.become(
            node,
            Phase.GIVEN_UP,
            f"given up after {failures} failures: {node.reason}",
            failures=failures,
            held=(),
        )
        return
    wait_s = scale.backoff_s(failures)
    draft.become(
        node,
        Phase.FAILED,
        f"failure {failures} of {scale.give_up_after}, next try in {wait_s:.0f} s: {node.reason}",
        failures=failures,
        not_before_s=draft.now_s + wait_s,
        held=(),
    )
