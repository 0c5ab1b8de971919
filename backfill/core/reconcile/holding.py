"""The jobs of a node that stands still: suspended in Slurm as well, or else their time limits are raised.

Limits that were raised are set right afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from backfill.core.model.actions import LimitJob
from backfill.core.model.cluster import Job, JobState, Node, end_s
from backfill.core.model.lifecycle import HeldJob, JobLimit, ManagedNode, Phase, RefusedSuspend
from backfill.core.model.refusals import Code, Goal, Words, because, call_failed
from backfill.core.model.sentences import instead
from backfill.core.policies.unsuspendable import next_minute_s, whole_minutes_s
from backfill.core.reconcile.builder import PlanBuilder, Progress, tell
from backfill.core.reconcile.course import of_workload
from backfill.core.reconcile.held_jobs import (
    components,
    drained,
    held_elsewhere,
    holding,
    mark_anew,
    suspend_jobs,
)

# From the hook's word to the first command of the job: 30 to 40 ms where little else runs.
_JOB_STARTS_S = 0.1


# --- suspended in Slurm ----------------------------------------------------------------------------


def hold_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Drain a node that stands still and suspend its jobs, where nothing else can be decided about it."""
    seen = builder.world.nodes.get(node.name)
    if seen is None or builder.blind or job_starts(builder, node):
        return
    builder.watch(node.name)
    if drained(builder, node, seen):
        all_suspended(builder, node, seen)


def all_suspended(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Return True if its jobs are noted, and suspended unless Slurm refuses; else see to it."""
    jobs = active_jobs(builder, node)
    held = holding(builder, node, jobs)
    if held != node.held:
        stop = of_workload(builder, node)
        mark_anew(builder, node, seen, held)
        builder.note(node, f"holds job {', '.join(j.id for j in jobs)}", held=held, stop=stop)
        return False
    refused = {h.id for h in held if h.refused}
    running = [j for j in jobs if j.state is not JobState.SUSPENDED and j.id not in refused]
    if running:
        suspend_jobs(builder, node, seen, running)
    return not running


def active_jobs(builder: PlanBuilder, node: ManagedNode) -> list[Job]:
    """Return the jobs on the node that have its CPUs, or have them back when they go on."""
    return [job for job in builder.world.jobs_on(node.name) if job.active]


def job_starts(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the job that took the host is just being started: our calls would be in its way.

    They take slurmctld's locks and processor time in those milliseconds; the instance stands still
    already, and nothing is lost when Slurm hears of it a little later.
    """
    came_s = max((claim.since_s for claim in builder.world.claims_on(node.host)), default=0.0)
    builder.wake_at(came_s + _JOB_STARTS_S)
    return builder.now_s < came_s + _JOB_STARTS_S


# --- time limits of those that Slurm will not suspend ----------------------------------------------


def keep_alive(builder: PlanBuilder, node: ManagedNode, kept: Iterable[HeldJob]) -> None:
    """Say which jobs Slurm will not suspend, and keep their time limits ahead of the stop."""
    rule = builder.policies.unsuspendable
    for held in kept:
        if held.refused is None:
            continue
        reason = because(Code.WILL_NOT_SUSPEND, said=Words(held.refused.words), way=rule.way.value)
        builder.refuse(node.name, Goal.SUSPEND_JOB, reason, held.id)
        if rule.raises and not builder.blind:
            for limit in held.refused.limits:
                _raise(builder, node, held, held.refused, limit)


def _raise(
    builder: PlanBuilder, node: ManagedNode, held: HeldJob, refused: RefusedSuspend, limit: JobLimit
) -> None:
    rule = builder.policies.unsuspendable
    job = builder.world.jobs.get(limit.id)
    over_s = None if job is None or not job.active else end_s(job)
    if job is None or job.time_limit_s is None or over_s is None:
        return
    if job.time_limit_s < limit.limit_s:
        less = replace(limit, limit_s=job.time_limit_s)
        limits = tuple(less if one == limit else one for one in refused.limits)
        _lowered(builder, node, held, replace(refused, limits=limits), limit.id)
        return
    base_s = over_s - job.time_limit_s + limit.limit_s
    changes_s = partial(rule.changes_s, refused.since_s, base_s)
    now_s = builder.now_s
    builder.wake_at(changes_s(now_s))
    wanted_s = limit.limit_s + rule.raised_s(refused.since_s, base_s, now_s)
    if job.time_limit_s < wanted_s:
        _set(builder, node, job, wanted_s, "it stands still, and Slurm's clock goes on")


def _lowered(
    builder: PlanBuilder, node: ManagedNode, held: HeldJob, refused: RefusedSuspend, job_id: str
) -> None:
    """Somebody else gave it less than it had: that is what it has from now on, besides the stop."""
    jobs = tuple(replace(h, refused=refused) if h == held else h for h in node.held)
    builder.note(node, f"somebody lowered the time limit of job {job_id}", held=jobs)


def _set(builder: PlanBuilder, node: ManagedNode, job: Job, limit_s: float, reason: str) -> Progress:
    action = LimitJob(
        subject=node.name, generation=node.generation, reason=reason, job_id=job.id, limit_s=limit_s
    )
    progress = builder.do(action)
    operation = builder.operation(action)
    if operation is not None and operation.problem:
        builder.refuse(node.name, Goal.JOB_LIMIT, call_failed(operation.problem), job.id)
    return progress


def settled(builder: PlanBuilder, node: ManagedNode, kept: Sequence[HeldJob]) -> bool:
    """Return True if these jobs have got as much more time as the stop was long; else see to it.

    Where another part of the job still stands still, whoever comes back last sees to it.
    """
    done = True
    for held in kept:
        done = (held.refused is None or _settle(builder, node, held.id, held.refused)) and done
    return done


def _settle(builder: PlanBuilder, node: ManagedNode, job_id: str, refused: RefusedSuspend) -> bool:
    rule = builder.policies.unsuspendable
    job = builder.world.jobs.get(job_id)
    if not rule.raises or job is None:
        return True
    beside = held_elsewhere(builder, node, components(builder, job))
    if any(other.phase is not Phase.RETURNING for other, _ in beside):
        return True
    now_s = builder.now_s
    builder.wake_at(next_minute_s(refused.since_s, now_s))
    done = True
    for limit in refused.limits:
        part = builder.world.jobs.get(limit.id)
        if part is None or not part.active or part.time_limit_s is None:
            continue
        most_s = limit.limit_s + rule.raised_s(refused.since_s, 0.0, now_s)
        wanted_s = limit.limit_s + whole_minutes_s(refused.since_s, now_s)
        if part.time_limit_s == wanted_s or not limit.limit_s <= part.time_limit_s <= most_s:
            continue  # somebody else has said otherwise meanwhile
        progress = _set(builder, node, part, wanted_s, "so long it has stood still")
        done = done and progress is Progress.FINAL
    return done


def tell_stopped(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[HeldJob]) -> None:
    """Tell the owners what becomes of jobs that Slurm will not suspend."""
    what = instead(builder.policies.unsuspendable.way)
    for held in jobs:
        if held.refused:
            text = f"stands still, because its node's hardware is needed; {what}"
            tell(builder, node, (held.id,), text)


def tell_back(builder: PlanBuilder, node: ManagedNode, job_id: str, refused: RefusedSuspend) -> None:
    """Tell the owner that the job goes on, and how much time it has."""
    job = builder.world.jobs[job_id]
    before_s = next((limit.limit_s for limit in refused.limits if limit.id == job_id), None)
    text = f"went on after a stop of {builder.now_s - refused.since_s:.0f} s"
    more_s = 0.0 if before_s is None else (job.time_limit_s or before_s) - before_s
    if more_s > 0.0:
        text += f"; its time limit was raised by {more_s / 60:.0f} min"
    elif before_s is not None:
        text += "; its time limit ran meanwhile"
    tell(builder, node, (job_id,), text)


def give_back(builder: PlanBuilder, node: ManagedNode) -> None:
    """Give a job that is back in the queue its own time limit again: ours may fit no partition."""
    for held in node.held:
        for limit in () if held.refused is None else held.refused.limits:
            job = builder.world.jobs.get(limit.id)
            if job is None or job.state is not JobState.PENDING or job.time_limit_s is None:
                continue
            if job.time_limit_s > limit.limit_s:
                _set(builder, node, job, limit.limit_s, "it is back in the queue")
