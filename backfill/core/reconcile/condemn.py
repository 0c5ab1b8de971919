"""The one door through which work is destroyed, and the one through which empty nodes go.

Nothing intact is destroyed because time passed, because one reading was odd, or because somebody
else's service was out. A reason has to be read again and again, by readings that began after it was
found; what is only missing has to be missing for long. Then so many go within a minute and an hour,
and directly before each call Slurm and the hypervisor are asked once more (engine/execute/confirm.py).
What is not certain waits in its phase, with a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backfill.core.model.actions import CancelJob, DeleteInstance, PauseInstance, RequeueJob
from backfill.core.model.cluster import Job, NodeBase
from backfill.core.model.fence import Verdict
from backfill.core.model.fleet import STILL, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import Cause, Condemned, HeldJob, ManagedNode, NodeStop, Phase, Suspicion
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, limit
from backfill.core.model.sentences import sentence
from backfill.core.policies.workloads import AtEnd
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress, removals, tell, tell_requeued

_READINGS = 3  # that have to agree, begun after the first finding


# By a person's word or the policy file's: there is nothing to read.
_ORDERS = frozenset(
    {Cause.LADDER, Cause.UNSTOPPED, Cause.RECLAIMED, Cause.STRANGER, Cause.HOST_OFF, Cause.PATIENCE}
)


# Of single jobs: nothing is decided by them about others on the node.
_OF_ONE_JOB = (Cause.STRANGER, Cause.PATIENCE)


# Decided by ourselves: it is in our own record.
_OURS = frozenset({Cause.HALF})


# Told by the node's hypervisor; all others are told by Slurm.
_BY_HOST = frozenset({Cause.LOST, Cause.VANISHED, Cause.REBOOTED})


# The work is intact then and starts over elsewhere, which some jobs may not.
_STARTS_OVER = frozenset({Cause.LADDER, Cause.UNSTOPPED, Cause.RECLAIMED})


# Where the copy is known to be of no use, so that a job that may not start over has to end.
COPY_IS_LOST = frozenset(Cause) - {Cause.LADDER, Cause.UNSTOPPED, Cause.RECLAIMED, Cause.STRANGER}


def work_on(builder: PlanBuilder, node: ManagedNode) -> tuple[HeldJob, ...]:
    """Return the jobs that would lose something: frozen with it, at work there, or not shown any more."""
    world = builder.world
    found = {held.id: held for held in world.vanished_on(node.name)}
    found |= {j.id: HeldJob(j.id, j.restarts) for j in world.jobs_on(node.name) if j.active}
    found |= {held.id: held for held in node.held}
    return tuple(found.values())


def clear(
    builder: PlanBuilder, node: ManagedNode, reason: str, *, fail: bool = False, failures: int | None = None
) -> bool:
    """Let a node go on which there is no work; else say so and wait. Return True if it goes."""
    builder.accused.add(node.name)
    doubt = _doubt(builder, node)
    if doubt:
        builder.refuse(node.name, Goal.REMOVAL, doubt.after(reason))
        return False
    retry = node.retry if failures is None else replace(node.retry, failures=failures)
    builder.remove(node, reason, fail=fail, retry=retry)
    return True


def _doubt(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return what may be lost with it after all, if anything."""
    jobs = work_on(builder, node)
    if jobs:
        return because(Code.MAY_HAVE_JOBS, jobs=tuple(held.id for held in jobs))
    if lately := _read_lately(builder, node):
        return lately
    seen = builder.world.nodes.get(node.name)
    if seen is None or builder.world.jobs_on(node.name) or "COMPLETING" in seen.flags:
        return None
    if seen.base in (NodeBase.ALLOCATED, NodeBase.MIXED):
        return because(Code.SHOWN_BUSY, state=seen.state_text)
    return None


def _read_lately(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return that Slurm is not read for long enough to know that it has no job there, if so.

    Of a job that it shows no more we know from before; of one that its first readings lack we do not.
    """
    instance, limits = builder.instance(node), builder.policies.limits
    still = instance is not None and instance.state in STILL
    due_s = builder.world.sighted_since_s + limits.sure_after_s
    if (node.proof.proven_s is None and not node.found and not still) or (
        builder.world.source_read_s("slurm") >= due_s
    ):
        return None
    builder.wake_at(due_s)
    builder.awaits(Topic.READING)
    return because(Code.READ_LATELY, needed_s=limits.sure_after_s)


def condemn(
    builder: PlanBuilder, node: ManagedNode, cause: Cause, reason: str, *, fail: bool = False
) -> bool:
    """Let a node go together with the work on it, once that is certain. Return True if it goes now."""
    jobs = work_on(builder, node)
    if not jobs and node.proof.proven_s is None and not node.found:
        return clear(builder, node, reason, fail=fail)  # it has never worked
    if not permitted(builder, node, cause, reason, jobs):
        return False
    since_s = float(builder.now_s) if node.condemned is None else node.condemned.since_s
    condemned = Condemned(cause, since_s, node.reason) if jobs else None
    builder.remove(node, reason, fail=fail, condemned=condemned)
    return True


def permitted(
    builder: PlanBuilder, node: ManagedNode, cause: Cause, reason: str, jobs: tuple[HeldJob, ...]
) -> bool:
    """Return True if the work on the node may be given up now; else it is said why not."""
    builder.accused.add(node.name)
    if _decided(node, cause):
        return True  # it was decided before, and is only carried out
    if builder.blind and cause is not Cause.HOST_OFF:
        builder.refuse(node.name, Goal.REMOVAL, builder.blind.after(reason))
        return False
    unsure = _unsure(builder, node, cause, reason)
    if unsure:
        builder.refuse(node.name, Goal.REMOVAL, unsure.after(reason))
        return False
    full = _full(builder) if jobs else _many(builder, node)
    if full:
        builder.refuse(node.name, Goal.REMOVAL, full.after(reason))
    return not full


def permit(builder: PlanBuilder, node: ManagedNode, cause: Cause, reason: str) -> bool:
    """Return True if its jobs may be given back to the queue now, before anything of it is destroyed."""
    if _decided(node, cause):
        return True
    if permitted(builder, node, cause, reason, work_on(builder, node)):
        builder.note(node, reason, condemned=Condemned(cause, float(builder.now_s), node.reason))
    return False  # with the next step


def _decided(node: ManagedNode, cause: Cause) -> bool:
    """Return True if the work on it was given up before, for a reason that includes this one."""
    before = None if node.condemned is None else node.condemned.cause
    return before is not None and (before is cause or before not in _OF_ONE_JOB)


# --- certainty ---------------------------------------------------------------------------------


def _unsure(builder: PlanBuilder, node: ManagedNode, cause: Cause, reason: str) -> Reason | None:
    """Return what is missing for certainty, if anything. Counts the readings."""
    world, known = builder.world, node.suspicion
    if cause in _STARTS_OVER:
        unseen = next((held.id for held in work_on(builder, node) if held.id not in world.jobs), None)
        if unseen is not None:  # nobody knows whether it may start over
            builder.awaits(Topic.READING)
            return because(Code.JOB_UNSEEN, job=unseen)
        coming = _may_be_moving(builder, node)
        if coming is not None:
            return coming
    if cause in _ORDERS or cause in _OURS:
        return None
    source = node.host if cause in _BY_HOST else "slurm"
    since_s = world.sighted_since_s if source == "slurm" else 0.0
    needed_s = _needed_s(builder, node, cause)
    builder.awaits(Topic.READING)
    read_s = world.source_read_s(source)
    if known is None or known.cause is not cause or known.since_s < since_s:
        known = Suspicion(cause, float(builder.now_s))
        builder.note(node, f"suspected, not believed yet: {reason}", suspicion=known)
    elif (
        read_s > (known.since_s if known.read_s is None else max(known.since_s, known.read_s))
        and known.times < _READINGS
    ):
        known = Suspicion(cause, known.since_s, read_s, known.times + 1)
        builder.note(node, f"read once more: {reason}", suspicion=known)
    if known.times >= _READINGS and read_s >= known.since_s + needed_s:
        return None
    return because(Code.READ_MORE_OFTEN, source=source, readings=_READINGS, needed_s=needed_s)


def _may_be_moving(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why its instance may be on its way by a call of an earlier daemon, if it may be.

    The books know of such a call, but not where they were lost, or are an old copy: then where it is
    is only known by what its hosts show, each more than once.
    """
    world = builder.world
    for place in world.places_of(node.name):
        if place.state is InstanceState.MIGRATING and place.tag.generation == node.generation:
            builder.awaits(Topic.READING)
            return because(Code.COMING, instance=node.name, host=place.host)
    due_s = node.created_s + builder.policies.limits.sure_after_s
    if not node.found or all(world.source_read_s(host) >= due_s for host in reachable(builder)):
        return None
    builder.wake_at(due_s)
    builder.awaits(Topic.READING)
    return because(Code.TAKEN_OVER_LATELY, needed_s=builder.policies.limits.sure_after_s)


def reachable(builder: PlanBuilder) -> list[str]:
    """Return the hosts that can be read now."""
    known = builder.world.hosts
    return [host for host in builder.policies.hosts if host in known and known[host].reachable]


def _needed_s(builder: PlanBuilder, node: ManagedNode, cause: Cause) -> float:
    """For how long it has to be read. Longer where only something is not shown."""
    limits, world = builder.policies.limits, builder.world
    match cause:
        case Cause.MISSING:
            long = True
        case Cause.STALE:
            # One beside it may only be out of sight, and be as intact as it was.
            long = any(held.later_run is None and held.id not in world.jobs for held in node.held)
        case Cause.FORGOTTEN:
            long = bool(work_on(builder, node))
        case Cause.LOST:
            # Memory on disk may only be out of sight, as when a file server is down. It may be there before
            # it is noted which jobs stand still with it.
            instance = builder.instance(node)
            off = instance is not None and instance.state is InstanceState.OFF
            saving = node.stop is not None and builder.rule(node).rung is Rung.SUSPEND
            long = off and bool(node.held or (saving and work_on(builder, node)))
        case Cause.VANISHED:
            # A hypervisor that shows nothing at all may only have lost sight of its guests.
            alone = not world.fleet.instances_on(node.host)
            long = alone and node.name not in world.silent and bool(work_on(builder, node))
        case _:
            long = False
    return limits.missing_s if long else limits.sure_after_s


def old_copy(builder: PlanBuilder, instance: Instance) -> Reason | None:
    """Return why a copy of an earlier generation is not destroyed yet, if it is not."""
    world, limits = builder.world, builder.policies.limits
    builder.awaits(Topic.READING)
    first_s = world.fleet.first_seen_s(instance.host, instance.name)
    if world.source_read_s(instance.host) < first_s + limits.sure_after_s:
        return because(Code.SEEN_LONGER, host=instance.host, needed_s=limits.sure_after_s)
    return None


# --- caps --------------------------------------------------------------------------------------


def _full(builder: PlanBuilder) -> Reason | None:
    """Return which limit keeps more work from being destroyed now, if one does."""
    limits, world = builder.policies.limits, builder.world
    windows = (
        ("limits.destroys_per_min", limits.destroys_per_min, 60.0),
        ("limits.destroys_per_hour", limits.destroys_per_hour, 3600.0),
    )
    for key, most, within_s in windows:
        if world.destroyed_lately(within_s) >= most:
            first_s = world.fleet.destroyed_after_s(builder.now_s - within_s)
            if first_s is not None:
                builder.wake_at(first_s + within_s)
            return limit(key, most)
    return None


def _many(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return the same of instances without work."""
    most = builder.policies.limits.removals_at_once
    if removals(builder.world, node.host, Phase.REMOVING) >= most:
        builder.awaits(Topic.REMOVALS)
        return limit("limits.removals_at_once", most)
    return None


# --- what is found -----------------------------------------------------------------------------


def broken(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> Reason | None:
    """Return how the instance is lost, if it is.

    While a call about it is in flight it may look like anything, and on a host that cannot be
    reached nothing is known.
    """
    if instance is None:
        how = because(Code.INSTANCE_GONE, host=node.host)
    elif instance.state in (InstanceState.OFF, InstanceState.CRASHED):
        how = because(Code.INSTANCE_OFF, host=node.host, state=instance.state.value)
    elif instance.restarted:
        how = because(Code.INSTANCE_RESTARTED)
    else:
        return None
    known = not builder.world.busy(node.name) and builder.world.hosts[node.host].reachable
    return how if known else None


def elsewhere(builder: PlanBuilder, node: ManagedNode) -> Instance | None:
    """Return the node's instance on a host where we did not look for it, as after a migration."""
    for place in builder.world.places_of(node.name):
        if place.host not in (node.host, node.left) and place.tag.generation == node.generation:
            return place
    return None


def lost(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> bool:
    """Deal with an instance that is lost, or with one that is elsewhere; return True if it is either."""
    problem = broken(builder, node, instance)
    if not problem:
        return False
    if instance is None:
        found = elsewhere(builder, node)
        if found is not None:
            builder.note(node, f"found on {found.host}", host=found.host)
            return True
    condemn(builder, node, _how_lost(instance), sentence(problem), fail=True)
    return True


def awaited(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return which silent host has to be read before it is known whether a call that failed has acted."""
    doubt = builder.world.doubts.get(node.name)
    for name in sorted(doubt.hosts) if doubt is not None else ():
        host = builder.world.hosts.get(name)
        if host is not None and not host.reachable:
            return because(Code.MAY_BE_THERE, host=name, said=Words(host.problem))
    return None


def forget_lost(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Forget what the node has on hosts that are off for good; return True while that goes on."""
    world = builder.world
    for host in node.hosts:
        seen_s = world.seen_s("instance", f"{host}/{node.name}")
        if world.lost(host) and seen_s < node.since_s:
            reason = f"{host} is off for good: {world.off[host]}"
            builder.do(
                DeleteInstance(
                    subject=node.name, generation=node.generation, reason=reason, host=host, off=True
                )
            )
            return True
    return False


def _how_lost(instance: Instance | None) -> Cause:
    if instance is None:
        return Cause.VANISHED
    gone = instance.state in (InstanceState.OFF, InstanceState.CRASHED)
    return Cause.LOST if gone else Cause.REBOOTED


def stale(builder: PlanBuilder, node: ManagedNode, verdict: Verdict) -> bool:
    """Deal with a copy that Slurm's word, or the end of its patience, makes stale. Return
    True if it is one, and nothing else.

    Where other jobs in it are intact it is kept for them: see `kept_apart`.
    """
    if not verdict.stale or verdict.keep:
        return False
    cause = Cause.PATIENCE if verdict.overdue else Cause.STALE
    reason = f"{sentence(verdict.stale)}: the copy here is destroyed"
    if not _awaits_others(builder, node, reason):
        _stop_stale(builder, node, reason)
        if condemn(builder, node, cause, reason):
            tell_requeued(builder, node)
    return True


def _stop_stale(builder: PlanBuilder, node: ManagedNode, reason: str) -> None:
    """Let it run no further until its end is certain: the other run may be at work.

    A job that is just leaving the node is ended by its slurmd; the other run begins after that. And where the
    node is open to jobs it is our record that is older: the other run may begin right here.
    """
    instance, seen = builder.instance(node), builder.world.nodes.get(node.name)
    if seen is not None and not seen.drained and seen.base is not NodeBase.DOWN:
        return
    if instance is None or instance.state is not InstanceState.RUNNING or builder.world.jobs_on(node.name):
        return
    builder.do(PauseInstance(subject=node.name, generation=node.generation, reason=reason, host=node.host))


def over(builder: PlanBuilder, node: ManagedNode) -> None:
    """None of its jobs is held by Slurm any more: have they ended, or are they only not shown?"""
    unseen = [held.id for held in node.held if held.id not in builder.world.jobs]
    cause, reason = Cause.ENDED, "its jobs have ended while it stood still"
    if unseen:
        cause = Cause.MISSING
        reason = f"Slurm shows nothing of job {', '.join(unseen)}, which stands still here"
    if not _awaits_others(builder, node, reason):
        condemn(builder, node, cause, reason)


def _awaits_others(builder: PlanBuilder, node: ManagedNode, reason: str) -> bool:
    """Return True if runs of jobs are on it that came after those that stood still: their end is waited for.

    Somebody lifted its drain, or our own record is older than they are. Where it runs again they are at
    work; where it does not, Slurm sees soon enough that it cannot start them.
    """
    known = {(held.id, held.restarts) for held in node.held}
    there = builder.world.jobs_on(node.name)
    jobs = tuple(j.id for j in there if j.active and (j.id, j.restarts) not in known)
    if jobs:
        builder.refuse(node.name, Goal.REMOVAL, because(Code.MAY_HAVE_JOBS, jobs=jobs).after(reason))
    return bool(jobs)


def forgotten(builder: PlanBuilder, node: ManagedNode, *, fail: bool = True) -> None:
    """Slurm does not show the node."""
    jobs = [job.id for job in builder.world.jobs_on(node.name) if job.active]
    if jobs:
        builder.accused.add(node.name)
        builder.refuse(node.name, Goal.CARE, because(Code.HIDDEN_BUSY, jobs=tuple(jobs)))
        return
    reason = "Slurm does not show it any more: somebody deleted it there"
    condemn(builder, node, Cause.FORGOTTEN, reason, fail=fail)


# --- jobs that cannot wait -----------------------------------------------------------------------


def end_overdue(builder: PlanBuilder, node: ManagedNode, verdict: Verdict) -> bool:
    """Give back those jobs of a copy whose patience is over; return True while that goes on.

    Others in it may wait on. What is left of the ended ones never runs.
    """
    if not verdict.overdue:
        over = node.condemned is not None and node.condemned.cause is Cause.PATIENCE
        if over and not builder.world.busy(node.name):
            builder.note(node, node.reason, condemned=None, stop=_without_ended(builder, node, verdict))
        return over
    assert verdict.stale is not None
    reason = sentence(verdict.stale)
    for held in verdict.overdue if permit(builder, node, Cause.PATIENCE, reason) else ():
        end_for_good(builder, node, builder.world.jobs[held.id], reason)
    return True


def _without_ended(builder: PlanBuilder, node: ManagedNode, verdict: Verdict) -> NodeStop:
    """Return its stop by the ladder of the jobs that are left: it begins where they stand still."""
    left = (builder.world.jobs[held.id] for held in verdict.keep)
    found = builder.policies.workloads.shortest(left)
    workload, stop = "" if found is None else found.name, node.stopping
    if workload == stop.workload:
        return stop
    ladder = builder.policies.ladder_of(workload)
    rung, since_s = ladder.still or 0, float(builder.now_s)
    kind = ladder.rule(rung).rung
    return replace(stop, workload=workload, since_s=since_s, rung=rung, kind=kind, first=rung, foreseen=False)


def requeue_of(node: ManagedNode, job: Job, reason: str, host: str, *, aside: bool = False) -> RequeueJob:
    """Return the call that puts this very run of a job back; `host`: nothing of it may be there."""
    return RequeueJob(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        job_id=job.id,
        restarts=job.restarts,
        host=host,
        aside=aside,
    )


def cancel_of(node: ManagedNode, job: Job, reason: str, host: str) -> CancelJob:
    """Return the call that ends this very run of a job; `host`: nothing of it may be there."""
    return CancelJob(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        job_id=job.id,
        restarts=job.restarts,
        host=host,
    )


def end_for_good(builder: PlanBuilder, node: ManagedNode, job: Job, reason: str, host: str = "") -> None:
    """End a job whose patience is over, as its workload says; `host`: nothing of it may be there."""
    if job.requeue and builder.policies.workloads.at_end(job) is AtEnd.REQUEUE:
        again = requeue_of(node, job, reason, host, aside=not host)
        if builder.do(again) is Progress.BEGUN:
            tell(builder, node, (job.id,), f"starts over: {reason}")
        return
    if builder.do(cancel_of(node, job, reason, host)) is Progress.BEGUN:
        tell(builder, node, (job.id,), f"ends: {reason}")


_OWNERS = (
    "still paused: job {jobs} on the same node was put back into the queue, and its old copy, which "
    "shares memory with this job, may not run again; only a new start can bring this job on"
)


def kept_apart(builder: PlanBuilder, node: ManagedNode, verdict: Verdict) -> bool:
    """Say that it stands still for good, and what a person can do; return True if that is news.

    Nothing in a guest that stands still can be ended, and all of it runs again at once.
    """
    builder.refuse(node.name, Goal.RETURN_TO, beside(builder, verdict), node.host)
    stale = ", ".join(held.id for held in verdict.lost)
    reason = f"job {stale} began anew; its copy stands still with job {_ids(verdict.keep)}"
    if node.reason == reason:
        return False
    builder.become(node, node.phase, reason)
    tell_requeued(builder, node)
    tell(builder, node, (held.id for held in verdict.keep), _OWNERS.format(jobs=stale))
    return True


def beside(builder: PlanBuilder, verdict: Verdict) -> Reason:
    """Return why it stands still for good, and what can be done."""
    assert verdict.stale is not None
    jobs = builder.world.jobs
    again = [held for held in verdict.keep if jobs[held.id].requeue]
    fixed = [held for held in verdict.keep if not jobs[held.id].requeue]
    ids = tuple(held.id for held in verdict.keep)
    commands = {"again": " ".join(h.id for h in again), "fixed": " ".join(h.id for h in fixed)}
    return because(Code.COPY_BESIDE, stale=verdict.stale, jobs=ids, **commands)


def why_apart(builder: PlanBuilder, verdict: Verdict) -> str:
    """Return the same for the story of its node."""
    return sentence(beside(builder, verdict))


def _ids(held: Sequence[HeldJob]) -> str:
    return ", ".join(one.id for one in held)
