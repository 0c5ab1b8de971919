"""Jobs that stand still although Slurm would not suspend them: their time limits, and the words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from backfill.core.actions import LimitJob, SuspendJob
from backfill.core.cluster import Job, JobState
from backfill.core.foresight import end_s
from backfill.core.lifecycle import HeldJob, JobLimit, ManagedNode, Phase, RefusedSuspend
from backfill.core.notice import tell
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.policies.unsuspendable import Way, next_minute_s, whole_minutes_s
from backfill.core.refusals import Code, Goal, Words, because, call_failed
from backfill.core.sentences import instead

# Slurm says of most jobs for good that it will not; of others it may only seem so at first.
_TRIES = 6


def note_refused(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[Job]) -> bool:
    """Remember which of these jobs Slurm will not suspend, in its words; whether one is new."""
    held = list(node.held)
    for job in jobs:
        operation = builder.operation(SuspendJob(node.name, node.generation, "", job.id))
        if operation is None or operation.running:
            continue
        if not operation.final and operation.attempts < _TRIES:
            builder.refuse(node.name, Goal.SUSPEND_JOB, call_failed(operation.problem), job.id)
            continue
        held = [_refused(builder, node, h, job, operation.problem) for h in held]
    if tuple(held) == node.held:
        return False
    builder.note(node, "Slurm will not suspend a job of it", held=tuple(held))
    return True


def _refused(builder: PlanBuilder, node: ManagedNode, held: HeldJob, job: Job, words: str) -> HeldJob:
    if held.id != job.id or held.refused:
        return held
    whole = list(_components(builder, job))
    beside = next(_held_elsewhere(builder, node, whole), None)
    if beside is not None:  # the job as a whole has stood still since then
        _, first = beside
        return replace(held, ours=False, refused=replace(first, words=words))
    limits = [JobLimit(j.id, j.time_limit_s) for j in whole if j.time_limit_s is not None]
    refused = RefusedSuspend(words, node.stopping.since_s, tuple(limits))
    return replace(held, ours=False, refused=refused)


def _components(builder: PlanBuilder, job: Job) -> Iterator[Job]:
    """The job, or all components of a heterogeneous one: they wait for one another."""
    lead, plus, _ = job.id.partition("+")
    if not plus:
        yield job
        return
    for offset in count():
        found = builder.world.jobs.get(f"{lead}+{offset}")
        if found is None:
            return
        if found.active:
            yield found


def _held_elsewhere(
    builder: PlanBuilder, node: ManagedNode, whole: Iterable[Job]
) -> Iterator[tuple[ManagedNode, RefusedSuspend]]:
    """Other nodes of ours on which a part of the job stands still, and as what it is held there."""
    for job in whole:
        for name in job.nodes:
            other = builder.world.managed.get(name)
            if other is None or name == node.name:
                continue
            for held in other.held:
                same = (held.id, held.restarts) == (job.id, job.restarts)
                if same and held.refused is not None and held.refused.limits:
                    yield other, held.refused


def way(builder: PlanBuilder, kept: Iterable[HeldJob]) -> Way | None:
    """What is done for those of these jobs that Slurm will not suspend; None: there are none."""
    return builder.policies.unsuspendable.way if any(h.refused for h in kept) else None


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
    action = LimitJob(node.name, node.generation, reason, job.id, limit_s)
    progress = builder.do(action)
    operation = builder.operation(action)
    if operation is not None and operation.problem:
        builder.refuse(node.name, Goal.JOB_LIMIT, call_failed(operation.problem), job.id)
    return progress


def settled(builder: PlanBuilder, node: ManagedNode, kept: Sequence[HeldJob]) -> bool:
    """Whether these jobs have got as much more time as the stop was long; else see to it.

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
    beside = _held_elsewhere(builder, node, _components(builder, job))
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
    """A job that is back in the queue has its own time limit again: ours may fit no partition."""
    for held in node.held:
        for limit in () if held.refused is None else held.refused.limits:
            job = builder.world.jobs.get(limit.id)
            if job is None or job.state is not JobState.PENDING or job.time_limit_s is None:
                continue
            if job.time_limit_s > limit.limit_s:
                _set(builder, node, job, limit.limit_s, "it is back in the queue")
