"""Who holds which job, and what a job on several nodes asks of the others while one stops."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from backfill.core.actions import DrainNode, RequeueJob, ResumeJob
from backfill.core.cluster import OUR_REASON, Job, JobState
from backfill.core.lifecycle import HeldJob, ManagedNode, Phase
from backfill.core.notice import tell, went_on
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.refusals import Code, Goal, Reason, because

_REQUEUE = f"{RequeueJob.__name__}:"


def holding(builder: PlanBuilder, node: ManagedNode, jobs: Collection[Job]) -> tuple[HeldJob, ...]:
    """What `node` holds with these jobs on it, which is noted before any of them is suspended.

    Whoever is suspended already, and not by us for another of its nodes, was so by an admin or by
    Slurm's own preemption: to let it go on is theirs. What is noted once stays, so that a daemon
    that ends between its call and the outcome knows afterwards that the call was its own.
    Whoever others have resumed meanwhile is suspended by us the next time.
    """
    known = {held.id for held in node.held}
    resumed = {job.id for job in jobs if job.state is JobState.RUNNING}
    new = [HeldJob(j.id, j.restarts, _ours(builder, node, j)) for j in jobs if j.id not in known]
    return (*_taken_over(node.held, resumed), *new)


def _ours(builder: PlanBuilder, node: ManagedNode, job: Job) -> bool:
    if job.state is not JobState.SUSPENDED:
        return True
    seen = builder.world.nodes.get(node.name)
    if seen is not None and seen.hidden:
        # Only our own stop hides a node, and what it holds is noted before that: the journal is
        # behind. A job that nobody lets go on would be lost.
        return True
    return any(_held_by(m, job).ours for m in fellows(builder, node, job))


def taken_over(node: ManagedNode, jobs: Iterable[Job]) -> tuple[HeldJob, ...]:
    """The same when these jobs were resumed by others: suspended again, they are so by us."""
    return _taken_over(node.held, {job.id for job in jobs})


def _taken_over(held: Iterable[HeldJob], resumed: Collection[str]) -> tuple[HeldJob, ...]:
    return tuple(replace(h, ours=True) if h.id in resumed and not h.refused else h for h in held)


def fellows(builder: PlanBuilder, node: ManagedNode, job: Job) -> list[ManagedNode]:
    """The other nodes of ours that hold this run of the job, or are to let it go on together."""
    if len(job.nodes) < 2:
        return []
    others = (builder.world.managed.get(name) for name in job.nodes if name != node.name)
    return [m for m in others if m is not None and _holds(m, job)]


def _holds(node: ManagedNode, job: Job) -> bool:
    """Not of a job that Slurm will not suspend: its other nodes go on, and are still its own."""
    held = (h for h in node.held if h.id == job.id and h.restarts == job.restarts)
    return any(not h.refused for h in held)


def _held_by(node: ManagedNode, job: Job) -> HeldJob:
    return next(h for h in node.held if h.id == job.id)


def still(builder: PlanBuilder, node: ManagedNode, job: Job) -> tuple[str, ...]:
    """Names of the job's other nodes that do not run again yet."""
    return tuple(m.name for m in fellows(builder, node, job) if m.phase is not Phase.READY)


def others_drained(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[Job]) -> bool:
    """Whether the jobs' other nodes take no new ones; else see to it.

    Slurm gives the CPUs of a suspended job to others at once, on all of its nodes.
    """
    done = True
    for job in jobs:
        for name in job.nodes if len(job.nodes) > 1 else ():
            other, seen = builder.world.managed.get(name), builder.world.nodes.get(name)
            if other is None or seen is None or seen.drained or name == node.name:
                continue
            reason = f"{OUR_REASON} job {job.id} waits for {node.name}"
            if builder.do(DrainNode(name, other.generation, reason)) is not Progress.FINAL:
                builder.watch(name)
                done = False
    return done


def being_requeued(builder: PlanBuilder, node: ManagedNode, job: Job) -> bool:
    """Whether another node that holds the job is just giving it back to the queue."""
    names = {m.name for m in fellows(builder, node, job)}
    return bool(names) and not names.isdisjoint(builder.under_way(_REQUEUE, node.name))


def waits_for(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return for which other node a suspended job here waits; until then the node takes no other."""
    for job in builder.world.jobs_on(node.name):
        if job.active and (others := fellows(builder, node, job)):
            return because(Code.JOB_WAITS, job=job.id, nodes=tuple(m.name for m in others))
    return None


def stood_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """For how long its jobs have stood still."""
    since_s = node.since_s if node.check is None else node.check.suspended_s
    return builder.now_s - since_s


def go_on_together(builder: PlanBuilder, node: ManagedNode) -> None:
    """A ready node whose jobs waited for other nodes of theirs: when all run again, they go on."""
    left = []
    for held in node.held:
        job = builder.world.jobs.get(held.id)
        if job is None or job.restarts != held.restarts or node.name not in job.nodes:
            continue  # it ended or began anew: this node was told by Slurm itself
        if job.state is not JobState.SUSPENDED:
            _tell_once(builder, node, job)
            continue
        left.append(held)
        others = still(builder, node, job)
        if others:
            stand = because(Code.FELLOWS_STAND, nodes=others)
            builder.refuse(node.name, Goal.JOB_GOES_ON, stand, job.id)
        else:
            reason = "all of its instances run again"
            builder.do(ResumeJob(node.name, node.generation, reason, job.id))
    if tuple(left) != node.held:
        builder.note(node, "no job here waits for another node any more", held=tuple(left))


def _tell_once(builder: PlanBuilder, node: ManagedNode, job: Job) -> None:
    """Of the nodes that were all ready one speaks; else the one speaks that came back last."""
    others = fellows(builder, node, job)
    all_ready = others and all(m.phase is Phase.READY for m in others)
    if job.active and all_ready and node.name < min(m.name for m in others):
        tell(builder, node, (job.id,), went_on(stood_s(builder, node)))
