"""Back to work: restore, fence, thaw, clock, registration, resume, undrain, in this order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from backfill.core.model.actions import RestoreInstance, ResumeJob, ThawInstance, UndrainNode
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fence import Verdict, judge
from backfill.core.model.fleet import STILL, InstanceState
from backfill.core.model.lifecycle import EvictionCause, ManagedNode, Phase, Retry, back_at_work, interrupted
from backfill.core.model.refusals import Code, Goal, because
from backfill.core.model.sentences import sentence
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import NOT_OURS, PlanBuilder, Progress, tell, went_on
from backfill.core.reconcile.condemn import forgotten, lost, stale, why_apart
from backfill.core.reconcile.course import begin_eviction
from backfill.core.reconcile.devices import plugged_again
from backfill.core.reconcile.held_jobs import (
    await_patience,
    drained,
    not_shown,
    show,
    still,
    stood_s,
    waits_for,
    went_on_before,
)
from backfill.core.reconcile.holding import settled, tell_back
from backfill.core.reconcile.pressure import awaits_word, give_cpus, has_room_beside
from backfill.core.reconcile.proof import (
    ask_on,
    checks_of,
    ended,
    fenced,
    not_proven,
    proven,
    read_since_woken,
    report_again,
)

# What may only seem refused is asked for so often before the node does without it.
_TRIES = 6


def step_returning(builder: PlanBuilder, node: ManagedNode) -> None:
    """Drive one returning node a step further."""
    if not builder.blind and went_on_before(builder, node, builder.instance(node)):
        return
    if builder.taken_from(node) and not has_room_beside(builder, node):
        if not awaits_word(builder, node.host):
            begin_eviction(builder, node)
        return
    if builder.blind:
        return
    within_s = builder.policies.comeback.within_s
    overdue = builder.overdue(node.since_s, within_s)
    verdict = _verdict(builder, node)
    if stale(builder, node, verdict):
        return
    if verdict.overdue or (verdict.mixed and not fenced(builder, node)):
        put_off(builder, node, why_apart(builder, verdict), even_so=True)
        return
    late = f"it took longer than {within_s:.0f} s"
    if overdue and put_off(builder, node, _why_late(builder, node, late)):
        return
    _by_state(builder, node)


def _verdict(builder: PlanBuilder, node: ManagedNode) -> Verdict:
    """Ask the fence; patience has a say as well until the guest has answered, and its network with it."""
    silent = builder.stopped(node) or not node.woken_since
    now_s = builder.now_s if silent else None
    verdict = judge(node.name, node.held, builder.world.jobs, now_s)
    if now_s is not None:
        await_patience(builder, verdict.keep)
    return verdict


def _by_state(builder: PlanBuilder, node: ManagedNode) -> None:
    instance = builder.instance(node)
    if builder.world.busy(node.name):
        return  # one step at a time
    if lost(builder, node, instance):
        return
    stopped = instance is not None and instance.state in STILL
    if stopped and not node.held:
        # A stop that was asked for earlier has come late: without knowing what stood still there
        # is no fence, so first Slurm is told, as of any instance that stands still.
        begin_eviction(builder, node)
        return
    if stopped:
        _keep_closed(builder, node)
    match instance.state if instance is not None else None:
        case InstanceState.SUSPENDED:
            _try(
                builder,
                node,
                RestoreInstance(
                    subject=node.name, generation=node.generation, reason=node.reason, host=node.host
                ),
            )
        case InstanceState.PAUSED if instance is not None and give_cpus(builder, node, instance):
            # Shown and throttled is only who has not stood still: see `was_throttled`.
            show(builder, node)  # at the same time: nothing that was meant for it is on its way now
            over = ended(builder, node)
            thaw = ThawInstance(
                subject=node.name,
                generation=node.generation,
                reason=node.reason,
                host=node.host,
                held=node.held,
                ended=over,
            )
            _try(builder, node, thaw)
        case InstanceState.RUNNING if instance is not None and give_cpus(builder, node, instance):
            _running(builder, node)
        case _:
            pass  # coming or being built: a later observation will tell


def _keep_closed(builder: PlanBuilder, node: ManagedNode) -> None:
    """Until it has proven itself again it takes no job, whoever lifts its drain meanwhile."""
    seen = builder.world.nodes.get(node.name)
    if seen is not None and node.stopping.drained_s is not None:
        drained(builder, node, seen)


def _try(builder: PlanBuilder, node: ManagedNode, action: RestoreInstance | ThawInstance) -> None:
    """Ask for one step; where it is refused for good, that may still change until the next try."""
    if builder.do(action) is Progress.FINAL:
        operation = builder.operation(action)
        put_off(builder, node, operation.problem if operation else "it cannot be brought back")


def _running(builder: PlanBuilder, node: ManagedNode) -> None:
    """Set the clock of one that has CPUs again, wait until Slurm hears it, then let its jobs go on."""
    if not show(builder, node):
        return
    holds, problem = proven(builder, node, "its clock stood still")
    if problem and not put_off(builder, node, sentence(problem)):
        ask_on(builder, node)
    if not holds:
        _keep_closed(builder, node)
        return
    seen = builder.world.nodes.get(node.name)
    builder.watch(node.name)
    if seen is None:
        forgotten(builder, node)
        return
    builder.awaits(Topic.READING)
    if not read_since_woken(builder, node):
        return
    if not seen.responding:
        report_again(builder, node)
    elif plugged_again(builder, node):
        _let_go_on(builder, node, seen)


def _let_go_on(builder: PlanBuilder, node: ManagedNode, seen: Node) -> None:
    """Slurm hears the node: resume its jobs, release it, and it is at work again.

    A job of which another node still stands still goes on when that is back, too. One that Slurm
    will not resume keeps no other on the node waiting; alone, it stands still again.
    """
    ours = {h.id for h in node.held if h.ours}
    stopped = [j for j in builder.world.jobs_on(node.name) if j.state is JobState.SUSPENDED and j.id in ours]
    waiting = {j.id for j in stopped if still(builder, node, j)}
    going = [j for j in stopped if j.id not in waiting]
    refused = {j.id: problem for j in going if (problem := _refused(builder, _resume(node, j)))}
    for job in going:
        if job.id not in refused:
            builder.insist(_resume(node, job), Goal.JOB_GOES_ON, job.id)
    if len(refused) < len(going):
        return
    if refused and not _going_on(builder, node):
        put_off(builder, node, "; ".join(refused.values()))
        return
    waiting.update(refused, not_shown(builder, node))
    if not settled(builder, node, judge(node.name, node.held, builder.world.jobs).keep):
        return
    if seen.drained_by_us and not waiting and not waits_for(builder, node):
        undrain = UndrainNode(
            subject=node.name, generation=node.generation, reason="it has proven itself again", host=node.host
        )
        builder.insist(undrain, Goal.UNDRAIN)
        return
    if seen.base is not NodeBase.DOWN:
        _tell_owners(builder, node, waiting)
        gone_on = [h for h in node.held if h.id not in waiting]
        builder.become(
            node,
            Phase.READY,
            f"back; job {', '.join(sorted(waiting))} waits" if waiting else "back at work",
            held=tuple(h for h in node.held if h.id in waiting),
            # Known as ours until the drain is lifted, too.
            stop=replace(node.stopping, target=None) if seen.drained_by_us else None,
            proof=replace(node.proof, proven_s=float(builder.now_s)),
            idle_since_s=None,
            retry=Retry(node.retry.failures),
            stood=back_at_work(node, gone_on, float(builder.now_s)),
        )


def _resume(node: ManagedNode, job: Job) -> ResumeJob:
    return ResumeJob(
        subject=node.name, generation=node.generation, reason="its instance runs again", job_id=job.id
    )


def _refused(builder: PlanBuilder, action: ResumeJob) -> str | None:
    """Return why Slurm will not do it, for good or for so long that it has to be done without."""
    operation = builder.operation(action)
    if operation is None or operation.running or not operation.problem:
        return None
    return operation.problem if operation.final or operation.attempts >= _TRIES else None


def _tell_owners(builder: PlanBuilder, node: ManagedNode, waiting: Collection[str]) -> None:
    """Tell each job's owner what is true now: it goes on, or somebody else keeps it suspended."""
    jobs = builder.world.jobs
    held = [h for h in judge(node.name, node.held, jobs).keep if h.id not in waiting]
    for job in held:
        if job.refused and jobs[job.id].state is JobState.RUNNING:
            tell_back(builder, node, job.id, job.refused)
    kept = [h.id for h in held if not h.refused]
    others = [j for j in kept if jobs[j].state is JobState.SUSPENDED]
    tell(builder, node, others, NOT_OURS)
    gone_on = [j for j in kept if j not in others]
    tell(builder, node, gone_on, went_on(stood_s(builder, node)))


def put_off(builder: PlanBuilder, node: ManagedNode, why: str, *, even_so: bool = False) -> bool:
    """Its return comes to nothing now: it stands still again, and is tried later. Return True if it does.

    Nothing is lost by that. One whose jobs go on already stays as it is (not `even_so`), and so
    does one of which a call is still under way: what comes of that decides.
    """
    instance = builder.instance(node)
    going = instance is not None and instance.state is InstanceState.RUNNING
    if builder.world.busy(node.name) or not (builder.stopped(node) or going):
        builder.refuse(node.name, Goal.RETURN, because(Code.UNDER_WAY).after(why))
        return False
    if going and _going_on(builder, node) and not even_so:
        builder.refuse(node.name, Goal.RETURN, because(Code.JOBS_GO_ON).after(why))
        return False
    stop = replace(node.stopping, cause=EvictionCause.PUT_OFF)
    wait_s = builder.policies.comeback.retry_after_s(node.retry.returns + 1)
    builder.become(
        node,
        Phase.EVICTING if going or not node.held else Phase.PARKED,
        f"its return failed: {why}",
        retry=Retry(node.retry.failures, node.retry.returns + 1, builder.now_s + wait_s),
        stop=replace(stop, since_s=float(builder.now_s), drained_s=None if going else stop.drained_s),
        **(interrupted(node) if going else {}),
    )
    return True


def _going_on(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if Slurm shows one of its held jobs as running: it goes on in an instance that runs."""
    jobs = builder.world.jobs
    kept = judge(node.name, node.held, jobs).keep
    return any(jobs[held.id].state is JobState.RUNNING for held in kept)


def _why_late(builder: PlanBuilder, node: ManagedNode, late: str) -> str:
    """Return what kept it, as far as anything has failed."""
    problems = [o.problem for o in builder.world.calls.all_of(node.name) if o.problem]
    failing = [sentence(not_proven(check)) for check in checks_of(builder, node) if not check.ok]
    return "; ".join([late, *(problems or failing)[-1:]])
