"""Jobs that stand still with a node: who holds them, and what Slurm is told and asked of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from backfill.core.model.actions import (
    DrainNode,
    KickJob,
    RequeueJob,
    ResumeJob,
    SetAddress,
    SuspendJob,
    UndrainNode,
)
from backfill.core.model.cluster import NOWHERE, OUR_REASON, Job, JobState, Node
from backfill.core.model.fleet import STILL, Instance, InstanceState
from backfill.core.model.lifecycle import (
    HeldJob,
    JobLimit,
    JobPatience,
    ManagedNode,
    Phase,
    RefusedSuspend,
    Way,
    still_since_s,
)
from backfill.core.model.refusals import Code, Goal, Reason, because, call_failed
from backfill.core.reconcile.builder import PlanBuilder, Progress, tell, went_on

_REQUEUE = RequeueJob.__name__


def holding(builder: PlanBuilder, node: ManagedNode, jobs: Collection[Job]) -> tuple[HeldJob, ...]:
    """Return what `node` holds with these jobs on it, which is noted before any of them is suspended.

    Whoever is suspended already, and not by us for another of its nodes, was so by an admin or by
    Slurm's own preemption: to let it go on is theirs. What is noted once stays, so that a daemon
    that ends between its call and the outcome knows afterwards that the call was its own.
    Whoever others have resumed meanwhile is suspended by us the next time.
    """
    known = {held.id for held in node.held}
    resumed = {job.id for job in jobs if job.state is JobState.RUNNING}
    new = [_newly_held(builder, node, job) for job in jobs if job.id not in known]
    held = (*_taken_over(_left_to_others(builder, node), resumed), *new)
    if not builder.policies.workloads.entries:
        return held
    return tuple(_with_patience(builder, node, one) for one in held)


def _newly_held(builder: PlanBuilder, node: ManagedNode, job: Job) -> HeldJob:
    late = _is_unbegun(job) or builder.world.came_late(node, job)
    return HeldJob(job.id, job.restarts, _ours(builder, node, job), late=late)


def _is_unbegun(job: Job) -> bool:
    """Return True if Slurm still waits for its nodes before it launches the job there."""
    return "CONFIGURING" in job.flags


def _with_patience(builder: PlanBuilder, node: ManagedNode, held: HeldJob) -> HeldJob:
    """Add to the job how long it can stand still, from when its stop began, or it was known to run."""
    job = builder.world.jobs.get(held.id)
    patience_s = None if job is None else builder.policies.workloads.patience_s(job)
    if held.patience is not None or patience_s is None:
        return held
    ran_s = None if node.stop is None else node.stop.ran_s
    return _patient_since(node, held, max(float(node.since_s), ran_s or 0.0), patience_s)


def _patient_since(node: ManagedNode, held: HeldJob, since_s: float, patience_s: float) -> HeldJob:
    run = (held.id, held.restarts)
    owed_s = sum((one.owed_s(since_s) for one in node.stood if (one.id, one.restarts) == run), 0.0)
    return replace(held, patience=JobPatience(since_s, max(0.0, patience_s - owed_s), owed_s))


def patience_renewed(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if the policy file gives its jobs another patience than the record has: noted now.

    It was read again, or the job is another one's or elsewhere in Slurm. What Slurm does not show at
    this moment keeps what it has.
    """
    if builder.blind or builder.barred or not node.held:
        return False
    held = tuple(_by_policy(builder, node, one) for one in node.held)
    if held == node.held:
        return False
    builder.note(node, "its jobs have the patience that the policy file gives them now", held=held)
    return True


def _by_policy(builder: PlanBuilder, node: ManagedNode, held: HeldJob) -> HeldJob:
    job = builder.world.jobs.get(held.id)
    if job is None or not job.active or job.restarts != held.restarts:
        return held
    patience_s, known = builder.policies.workloads.patience_s(job), held.patience
    if patience_s is None:
        return replace(held, patience=None)
    if known is not None:
        return replace(held, patience=known.of(patience_s))
    since_s = still_since_s(node) if node.phase is Phase.PARKED else None
    return held if since_s is None else _patient_since(node, held, since_s, patience_s)


def went_on_before(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> bool:
    """Return True if jobs had gone on before, of which an old journal knows nothing: noted now.

    We let them go on in Slurm only after their guest has answered, so that stop is over, and so is
    the time that counted against their patience. What Slurm will not suspend goes on with its guest,
    unless that froze it.
    """
    if not node.held or node.woken_since:
        return False
    if instance is None or instance.state is not InstanceState.RUNNING:
        return False
    jobs = builder.world.jobs_on(node.name)
    going = {(job.id, job.restarts) for job in jobs if job.state is JobState.RUNNING}
    held = tuple(
        replace(one, patience=None) if (one.id, one.restarts) in going and _goes_on(one, instance) else one
        for one in node.held
        if not _began_anew(builder, node, one, instance)
    )
    if held == node.held:
        return False
    builder.note(node, "Slurm shows that its jobs went on before", held=held)
    return True


def _began_anew(builder: PlanBuilder, node: ManagedNode, held: HeldJob, instance: Instance) -> bool:
    """Return True if a later run of the job is at work there, so that nothing is left of this one.

    The node is open, which is the last that we do after a stop; and before Slurm gives it the next
    run, its slurmd has ended the one before.
    """
    seen, job = builder.world.nodes.get(node.name), builder.world.jobs.get(held.id)
    if seen is None or job is None or seen.drained or seen.hidden or not seen.responding or instance.frozen:
        return False
    here = job.state is JobState.RUNNING and node.name in job.nodes
    return here and job.restarts > held.restarts


def _goes_on(held: HeldJob, instance: Instance) -> bool:
    """Return True if a job that Slurm shows at work is so, where it had stood still with its guest."""
    return held.ours if held.refused is None else not instance.frozen


def await_patience(builder: PlanBuilder, kept: Iterable[HeldJob]) -> None:
    """Look again when the patience of the first of these is over."""
    for held in kept:
        if held.patience is not None:
            builder.wake_at(held.patience.over_s)


def _ours(builder: PlanBuilder, node: ManagedNode, job: Job) -> bool:
    if job.state is not JobState.SUSPENDED:
        return True
    seen = builder.world.nodes.get(node.name)
    if seen is not None and seen.hidden:
        # Only our own stop hides a node, and what it holds is noted before that: the journal is
        # behind. A job that nobody lets go on would be lost.
        return True
    if _drained_before(builder, node) and not builder.world.suspended_by_others(job):
        told = marked_in(seen, node.generation).get(job.id)
        return told is None or told.restarts != job.restarts or told.ours
    return any(_held_by(m, job).ours for m in fellows(builder, node, job))


def _drained_before(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its drain may be of a stop that an old journal does not know.

    Its host was taken before this daemon had read Slurm. If it was open then, our own drain names
    whom others had suspended.
    """
    seen, stop = builder.world.nodes.get(node.name), node.stop
    if seen is None or stop is None or not seen.drained_by_us:
        return False
    return stop.since_s <= builder.world.sighted_since_s


def taken_over(node: ManagedNode, jobs: Iterable[Job]) -> tuple[HeldJob, ...]:
    """Note that others resumed these jobs: suspended again, they are so by us."""
    return _taken_over(node.held, {job.id for job in jobs})


def _left_to_others(builder: PlanBuilder, node: ManagedNode) -> Iterator[HeldJob]:
    """Note who was faster than we: somebody suspended it after it was noted, and before our own call.

    Of a stop that began before this daemon did, the call may have been the last one's.
    """
    world, stop = builder.world, node.stop
    before = stop is None or stop.since_s < world.sighted_since_s
    for held in node.held:
        job = None if before else world.jobs.get(held.id)
        yield replace(held, ours=False) if job is not None and world.suspended_by_others(job) else held


def _taken_over(held: Iterable[HeldJob], resumed: Collection[str]) -> tuple[HeldJob, ...]:
    return tuple(replace(h, ours=True) if h.id in resumed and not h.refused else h for h in held)


def fellows(builder: PlanBuilder, node: ManagedNode, job: Job) -> list[ManagedNode]:
    """Return the other nodes of ours that hold this run of the job, or are to let it go on together."""
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
    """Return names of the job's other nodes that do not run again yet."""
    return tuple(m.name for m in fellows(builder, node, job) if m.phase is not Phase.READY)


def others_drained(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[Job]) -> bool:
    """Return True if the jobs' other nodes take no new ones; else see to it.

    Slurm gives the CPUs of a suspended job to others at once, on all of its nodes. One that is not
    shown now, or not taken over yet, is closed all the same.
    """
    done, names = True, builder.policies.instances.names
    for job in jobs:
        for name in job.nodes if len(job.nodes) > 1 else ():
            other, seen = builder.world.managed.get(name), builder.world.nodes.get(name)
            closed = seen is not None and seen.drained
            if closed or name == node.name or (other is None and name not in names):
                continue
            reason = f"{OUR_REASON} job {job.id} waits for {node.name}"
            generation = 0 if other is None else other.generation
            if (
                builder.do(DrainNode(subject=name, generation=generation, reason=reason))
                is not Progress.FINAL
            ):
                builder.watch(name)
                done = False
    return done


def being_requeued(builder: PlanBuilder, node: ManagedNode, job: Job) -> bool:
    """Return True if another node that holds the job is just giving it back to the queue."""
    names = {m.name for m in fellows(builder, node, job)}
    return bool(names) and not names.isdisjoint(builder.under_way(_REQUEUE, node.name))


def waits_for(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return for which other node a suspended job here waits; until then the node takes no other."""
    for job in builder.world.jobs_on(node.name):
        if not job.active:
            continue
        others = [m.name for m in fellows(builder, node, job)]
        if job.state is JobState.SUSPENDED:
            others += [name for name in job.nodes if name not in others and _may_hold(builder, name)]
        if others:
            return because(Code.JOB_WAITS, job=job.id, nodes=tuple(others))
    return None


def _may_hold(builder: PlanBuilder, name: str) -> bool:
    """Return True if it may stand still with a job that no record has: an old journal knows of no stop.

    What becomes of one that is not taken over yet is not known either.
    """
    node = builder.world.managed.get(name)
    if node is None:
        return name in builder.policies.instances.names
    return not node.held and builder.stopped(node)


def stood_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """For how long its jobs have stood still."""
    since_s = node.since_s if node.check is None else node.check.suspended_s
    return builder.now_s - since_s


def go_on_together(builder: PlanBuilder, node: ManagedNode) -> None:
    """Let jobs of a ready node go on that waited for other nodes of theirs, once all run again."""
    left, unseen = [], not_shown(builder, node)
    for held in node.held:
        job = builder.world.jobs.get(held.id)
        if held.id in unseen:
            left.append(held)
            continue
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
            resume = ResumeJob(
                subject=node.name,
                generation=node.generation,
                reason="all of its instances run again",
                job_id=job.id,
            )
            builder.insist(resume, Goal.JOB_GOES_ON, job.id)
    if tuple(left) != node.held:
        builder.note(node, "a job here does not wait any more", held=tuple(left))


def not_shown(builder: PlanBuilder, node: ManagedNode) -> tuple[str, ...]:
    """Return held jobs of which Slurm shows nothing: they may stand still there all the same, for long."""
    jobs = builder.world.jobs
    unseen = tuple(held.id for held in node.held if held.id not in jobs and held.later_run is None)
    since_s = max(builder.world.vanished_s(node.name), builder.world.sighted_since_s)
    over_s = since_s + builder.policies.limits.missing_s
    if not unseen or builder.now_s >= over_s:
        return ()
    builder.wake_at(over_s)
    for job_id in unseen:
        builder.refuse(node.name, Goal.JOB_GOES_ON, because(Code.MAY_HAVE_JOBS, jobs=(job_id,)), job_id)
    return unseen


def _tell_once(builder: PlanBuilder, node: ManagedNode, job: Job) -> None:
    """Of the nodes that were all ready one speaks; else the one speaks that came back last."""
    others = fellows(builder, node, job)
    all_ready = others and all(m.phase is Phase.READY for m in others)
    if job.active and all_ready and node.name < min(m.name for m in others):
        tell(builder, node, (job.id,), went_on(stood_s(builder, node)))


def hide(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Let whatever slurmctld sends to the node fail at once; return True with the first try."""
    reason = "nothing shall wait for it while it stands still"
    action = SetAddress(subject=node.name, generation=node.generation, reason=reason, address=NOWHERE)
    tried = builder.operation(action) is not None
    return builder.insist(action, Goal.SUSPEND) is Progress.BEGUN and not tried


def show(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if Slurm looks for the node where it is; where it does not, that is changed.

    It was hidden by us, or somebody or a reload gave it another address: Slurm would go on sending
    there, and jobs on the node would never end.
    """
    seen = builder.world.nodes.get(node.name)
    address = node.address.split("/")[0]
    if seen is None or seen.address in ("", address):  # empty: Slurm has not told
        return True
    action = SetAddress(
        subject=node.name, generation=node.generation, reason="its instance can be reached", address=address
    )
    builder.insist(action, Goal.WORK_AS_USUAL)
    return False


# What the drain reason says of the jobs that stand still there: generation of the instance, and each
# job with its restarts, a star if others suspended it before, and a question mark if it came late.
_MARK = re.compile(r" \[(\d+) holds ((?:\S+:\d+\*?\?? ?)+)\]$")


_MOST_MARKED = 64


def mark(node: ManagedNode, held: Collection[HeldJob]) -> str:
    """Return what a drain reason has to say beside the reason, so that it is known without a journal.

    Of which run of a job a stopped instance holds the copy is known to us alone, and so is who
    suspended it. One job that was never requeued has had no other run. Of several each is named:
    one may be given back while the others wait, and its copy stands still beside them for good.
    """
    told = [one for one in held if one.restarts or not (one.ours or one.refused)]
    if 1 < len(held) <= _MOST_MARKED:
        told = list(held)
    if not told or len(told) > _MOST_MARKED:
        return ""
    marked = (
        f"{one.id}:{one.restarts}" + "*" * (not one.ours and not one.refused) + "?" * one.late for one in told
    )
    return f" [{node.generation} holds {' '.join(marked)}]"


def marked_in(seen: Node | None, generation: int) -> dict[str, HeldJob]:
    """Return the jobs that are marked, as they were when this generation of the instance was frozen."""
    found = _MARK.search(seen.reason) if seen is not None and seen.drained_by_us else None
    if found is None or int(found[1]) != generation:
        return {}
    parts = (text.rpartition(":") for text in found[2].split())
    return {
        job_id: HeldJob(job_id, int(told.rstrip("*?")), ours="*" not in told, late=told.endswith("?"))
        for job_id, _, told in parts
    }


def stop_told_in(seen: Node) -> str:
    """Return why a node of ours was stopped, as its drain tells."""
    return _MARK.sub("", seen.reason.removeprefix(f"{OUR_REASON} "))


def frozen_in(builder: PlanBuilder, instance: Instance) -> tuple[HeldJob, ...]:
    """Return the jobs with which it stands still: as its drain tells, or as of now.

    One that is requeued later is noticed either way.
    """
    if instance.state not in STILL:
        return ()
    seen = builder.world.nodes.get(instance.name)
    marked = marked_in(seen, instance.tag.generation)
    here = [j for j in builder.world.jobs_on(instance.name) if j.active and j.id not in marked]
    theirs = builder.world.suspended_by_others
    ours = {j.id: _stopped_by_us(seen, j) and not theirs(j) for j in here}
    found = (
        HeldJob(j.id, j.restarts, ours=ours[j.id], sure=not j.restarts, late=_is_unbegun(j)) for j in here
    )
    return (*marked.values(), *found)


def unrecorded(builder: PlanBuilder, node: ManagedNode) -> tuple[HeldJob, ...]:
    """Return what its drain names of a stop that the record does not know, as an old journal has it."""
    told = marked_in(builder.world.nodes.get(node.name), node.generation)
    known = {held.id for held in node.held}
    return tuple(held for held in told.values() if held.id not in known)


def unknown_to(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> tuple[HeldJob, ...]:
    """Return jobs that Slurm shows suspended with this stopped instance, and the node's record does not.

    Since when is not known: their patience counts from now.
    """
    known, jobs = {held.id for held in node.held}, builder.world.jobs
    found = []
    for held in frozen_in(builder, instance):
        job = jobs.get(held.id)
        if held.id in known or job is None or job.state is not JobState.SUSPENDED:
            continue
        patience_s = builder.policies.workloads.patience_s(job)
        patience = None if patience_s is None else JobPatience(float(builder.now_s), patience_s, 0.0)
        found.append(replace(held, patience=patience))
    return tuple(found)


def _stopped_by_us(seen: Node | None, job: Job) -> bool:
    """Return True unless others suspended it: we drain and hide its node before we do."""
    ours = seen is None or seen.hidden or seen.drained_by_us
    return ours or job.state is not JobState.SUSPENDED


def still_ours(builder: PlanBuilder, node: ManagedNode) -> tuple[HeldJob, ...]:
    """Return what it holds, where it runs although our books say that it stands still.

    An old journal may have missed its return: whoever is suspended on a node that is open was so by
    others since, as we open it last.
    """
    seen, jobs = builder.world.nodes.get(node.name), builder.world.jobs
    return tuple(
        replace(held, ours=held.ours and ((job := jobs.get(held.id)) is None or _stopped_by_us(seen, job)))
        for held in node.held
    )


def mark_anew(builder: PlanBuilder, node: ManagedNode, seen: Node, held: Collection[HeldJob]) -> None:
    """Have its drain tell of these jobs; what came after it, or changed since, would else be ours alone.

    Once, and nothing waits for it: only a daemon without its journal ever asks.
    """
    told = _MARK.search(seen.reason)
    if seen.drained_by_us and mark(node, held) != ("" if told is None else told[0]):
        builder.do(_drain(node, held))


def _drain(node: ManagedNode, held: Collection[HeldJob]) -> DrainNode:
    reason = f"{OUR_REASON} {node.stopping.told or node.reason}{mark(node, held)}"
    return DrainNode(subject=node.name, generation=node.generation, reason=reason)


def put_drain_back(builder: PlanBuilder, node: ManagedNode) -> None:
    """Drain a stopped node that others have opened, with what the drain told before."""
    builder.insist(_drain(node, node.held), Goal.DRAIN)


_RETURN = tuple(f"{kind.__name__}:" for kind in (KickJob, ResumeJob, UndrainNode))


def drained(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Return True if the node takes no new jobs and its return, if there was one, is over; else see to it.

    A call of that may wait for a thread behind long calls, and would undo what overtook it. Where
    Slurm shows the node as drained no longer, the one that lifts the drain has been there already.
    """
    if not seen.drained:
        active = [job for job in builder.world.jobs_on(node.name) if job.active]
        builder.insist(_drain(node, holding(builder, node, active)), Goal.DRAIN)
        return False
    calls = builder.world.calls.all_of(node.name)
    return not any(call.running and call.key.startswith(_RETURN) for call in calls)


PAUSED = (
    "paused, because its node's hardware is needed; its time limit stands still, and it is to go on by itself"
)


def suspend_jobs(builder: PlanBuilder, node: ManagedNode, seen: Node, running: Sequence[Job]) -> None:
    """Hide the node first: a stop signal sent to a paused guest waits and comes after its return.

    To a node that cannot be found it is not sent at all, and the guest needs none.
    """
    if not seen.hidden:
        if hide(builder, node):
            # Slurm passes nothing on to the terminal of a job that is suspended already.
            tell(builder, node, (j.id for j in running if j.interactive), PAUSED)
        return
    if not others_drained(builder, node, running) or note_refused(builder, node, running):
        return
    for job in running:
        reason = f"its instance stands still: {node.reason}"
        builder.do(SuspendJob(subject=node.name, generation=node.generation, reason=reason, job_id=job.id))


# Slurm says of most jobs for good that it will not; of others it may only seem so at first.
_TRIES = 6


def note_refused(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[Job]) -> bool:
    """Remember which of these jobs Slurm will not suspend, in its words; return True if one is new."""
    held = list(node.held)
    for job in jobs:
        operation = builder.operation(
            SuspendJob(subject=node.name, generation=node.generation, reason="", job_id=job.id)
        )
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
    whole = list(components(builder, job))
    beside = next(held_elsewhere(builder, node, whole), None)
    if beside is not None:  # the job as a whole has stood still since then
        _, first = beside
        return replace(held, ours=False, refused=replace(first, words=words))
    limits = [JobLimit(j.id, j.time_limit_s) for j in whole if j.time_limit_s is not None]
    refused = RefusedSuspend(words, node.stopping.since_s, tuple(limits))
    return replace(held, ours=False, refused=refused)


def components(builder: PlanBuilder, job: Job) -> Iterator[Job]:
    """Return the job, or all components of a heterogeneous one: they wait for one another."""
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


def held_elsewhere(
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
    """Return what is done for those of these jobs that Slurm will not suspend; None: there are none."""
    return builder.policies.unsuspendable.way if any(h.refused for h in kept) else None
