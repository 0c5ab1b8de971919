"""At work: notice that the host is wanted, that something broke, or that nobody needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backfill.core.actions import DrainNode, KickJob, ProbeJobs, ResumeJob, UndrainNode, WakeInstance
from backfill.core.cluster import OUR_REASON, Job, JobState, Node
from backfill.core.condemn import condemn, forgotten, lost, work_on
from backfill.core.hiding import show
from backfill.core.lifecycle import Cause, HeldJob, JobCheck, ManagedNode, Phase
from backfill.core.liveness import silent_too_long
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.queue import Topic
from backfill.core.refusals import Code, Goal, Reason, Words, because
from backfill.core.sentences import sentence
from backfill.core.steps.devices import see_to_devices
from backfill.core.steps.evict import begin_eviction
from backfill.core.steps.fellows import go_on_together, waits_for
from backfill.core.steps.prove import unwoken
from backfill.core.steps.rungs import first_rung
from backfill.core.steps.saving import save_in_time
from backfill.core.steps.strangers import strangers
from backfill.core.steps.throttle import give_cpus

# The stop signal of a `scontrol suspend` that was sent to a paused guest is delivered when that is
# thawed, as long as slurmctld's connection attempt lives (MessageTimeout, 10 s by default, and a
# retry): it may come after the resume, and then the job stands still for ever while Slurm shows
# it as running. Measured on 22.05: a pause of 7 s, suspended at its beginning.
_LATE_SIGNAL_S = 25.0
_PROBE_EVERY_S = 0.5  # at first
_PROBE_LESS_OFTEN = 0.25  # of the time since the return, between two looks that found all well
# slurmd itself takes two seconds for a suspend (first SIGTSTP, later SIGSTOP), and a resume that
# comes meanwhile waits for it. More suspends and resumes sent into that wait are done in any order:
# a job that was kicked every half second never went on (measured on 22.05).
_SETTLES_S = 3.5
_WAITS_FOR = " waits for "  # in the reason of such a drain
_CALLS = 2  # into a guest that Slurm does not hear, before nobody does


def step_ready(builder: PlanBuilder, node: ManagedNode) -> None:
    """Watch over one node that takes jobs."""
    if builder.must_leave(node) or node.order is not None:
        begin_eviction(builder, node)
        return
    host = builder.world.hosts[node.host]
    if not host.reachable:
        lost_host = because(Code.HOST_UNREACHABLE, host=host.name, said=Words(host.problem))
        builder.refuse(node.name, Goal.CARE, lost_host)
        return
    instance = builder.instance(node)
    if lost(builder, node, instance):
        return
    if builder.stopped(instance):
        begin_eviction(builder, node)
        return
    if instance is None or give_cpus(builder, node, instance):  # a crash may have left it throttled
        _in_slurm(builder, node)
    if instance is not None and not builder.blind:
        see_to_devices(builder, node, instance)


def _in_slurm(builder: PlanBuilder, node: ManagedNode) -> None:
    if builder.blind:
        return
    seen = builder.world.nodes.get(node.name)
    if seen is None:
        forgotten(builder, node)
        return
    if silent_too_long(builder, node.name):
        _silent(builder, node)
        return
    waiting = waits_for(builder, node)
    if not waiting and _stop_forgotten(builder, node, seen):
        return
    if strangers(builder, node, seen):
        return
    _in_service(builder, node, seen, waiting)
    _see_to_jobs(builder, node, waiting)


def _stop_forgotten(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Return True if a stop of ours shows in Slurm of which the journal, a copy, knows nothing.

    Opened to others now, the node would get a second job onto the CPUs of the one that is
    suspended; and nobody else would let that one go on. So its return is done from the beginning.
    """
    if not seen.drained_by_us or node.held or (node.check is not None and node.check.kicked):
        return False
    if _WAITS_FOR in seen.reason:
        return False  # it was closed for a job of another node, and has not stood still itself
    jobs = [j for j in builder.world.jobs_on(node.name) if j.active]
    if all(job.state is not JobState.SUSPENDED for job in jobs):
        return False
    held = tuple(HeldJob(job.id, job.restarts) for job in jobs)
    reason = "Slurm shows a stop of ours that the journal does not know"
    stop = first_rung(builder)
    builder.become(node, Phase.EVICTING, reason, held=held, proof=unwoken(node), stop=stop)
    return True


def _see_to_jobs(builder: PlanBuilder, node: ManagedNode, waiting: Reason | None) -> None:
    if node.held:
        go_on_together(builder, node)
    elif node.check is not None:
        _prove_jobs(builder, node, node.check)
    busy = bool(builder.world.jobs_on(node.name))
    idle = node.idle_since_s is not None
    if busy and idle:
        builder.note(node, "a job runs on it", idle_since_s=None)
    elif not busy and not idle:
        builder.note(node, "no job is left on it", idle_since_s=builder.now_s)
    if busy and not idle and node.check is None and not waiting:
        save_in_time(builder, node)


def _silent(builder: PlanBuilder, node: ManagedNode) -> None:
    """Slurm gets no answer: dead is a guest that gives its hypervisor none either.

    Of many at once none is believed dead: that is how a broken network looks.
    """
    rule, world = builder.policies.liveness, builder.world
    problem = f"it has not answered Slurm for {rule.down_after_s:g} s"
    most = rule.most(len(world.nodes))
    if not work_on(builder, node):
        condemn(builder, node, Cause.SILENT, problem, fail=True)
        return
    builder.awaits(Topic.SILENCE)
    if len(world.silent) > most:
        many = because(Code.MANY_SILENT, silent_s=rule.down_after_s, count=len(world.silent))
        builder.refuse(node.name, Goal.REMOVAL, many)
        return
    wake = WakeInstance(node.name, node.generation, "does its guest answer?", node.host)
    woken_s = node.proof.woken_s
    if woken_s is None or woken_s <= world.silent[node.name]:
        progress, tried = builder.do(wake), builder.operation(wake)
        failed = tried is not None and (progress is Progress.FINAL or tried.attempts >= _CALLS)
        if failed and tried is not None:
            why = f"{problem}, nor its hypervisor: {tried.problem}"
            condemn(builder, node, Cause.SILENT, why, fail=True)
        return
    builder.refuse(node.name, Goal.REMOVAL, because(Code.GUEST_ANSWERS, silent_s=rule.down_after_s))


def _in_service(builder: PlanBuilder, node: ManagedNode, seen: Node, waiting: Reason | None) -> None:
    """Undo what a crash in the middle of a return may have left: hidden, or drained by us.

    And what others may have done: its address is ours to say. While a job of it waits for another
    node it is kept for that job.
    """
    show(builder, node)
    if waiting:
        builder.refuse(node.name, Goal.NEW_JOBS, waiting)
        if not seen.drained:
            builder.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {sentence(waiting)}"))
    elif node.held:
        pass  # its job goes on first
    elif seen.drained_by_others:
        drained = because(Code.DRAINED_BY_OTHERS, said=Words(seen.reason))
        builder.refuse(node.name, Goal.UNDRAIN, drained)
    elif seen.drained_by_us:
        builder.do(UndrainNode(node.name, node.generation, "it is ready", node.host))


def _prove_jobs(builder: PlanBuilder, node: ManagedNode, check: JobCheck) -> None:
    """Soon after a return: see in the guest that its jobs go on, and kick them if they do not."""
    jobs = builder.world.jobs_on(node.name)
    if not jobs:
        builder.note(node, "no job is left on it", check=None)
        return
    if _half_kicked(builder, node, check, jobs):
        return
    if not any(job.state is JobState.RUNNING for job in jobs):
        kept = any(job.state is JobState.SUSPENDED for job in jobs)
        why = "others keep its jobs suspended" if kept else "none of its jobs runs any more"
        builder.note(node, why, check=None)
        return
    stuck = check.stuck_s is not None
    if check.stuck_s is not None:
        builder.wake_at(check.stuck_s + _SETTLES_S)
    if check.stuck_s is not None and builder.now_s >= check.stuck_s + _SETTLES_S:
        _kick(builder, node, check, jobs)
        return
    looked_s = node.since_s if check.probed_s is None else max(check.probed_s, node.since_s)
    over_s = check.suspended_s + _LATE_SIGNAL_S
    if not stuck and check.probed_s is not None and check.probed_s > over_s:
        builder.note(node, "its jobs go on", check=None)
        return
    # A look costs a call into the guest, and what is late gets less likely with time.
    well_s = 0.0 if stuck else (looked_s - node.since_s) * _PROBE_LESS_OFTEN
    due_s = looked_s + max(_PROBE_EVERY_S, well_s)
    builder.wake_at(due_s)
    if builder.now_s >= due_s:
        builder.do(ProbeJobs(node.name, node.generation, "do its jobs go on?", node.host))


def _kick(builder: PlanBuilder, node: ManagedNode, check: JobCheck, jobs: Iterable[Job]) -> None:
    """Let stopped processes go on. What is suspended only for that is noted before the call."""
    stuck = [job for job in jobs if job.state is JobState.RUNNING and job.active]
    kicked = tuple(dict.fromkeys((*check.kicked, *(job.id for job in stuck))))
    if kicked != check.kicked:
        builder.note(node, "its processes stand still", check=replace(check, kicked=kicked))
    for job in stuck:
        reason = "its processes stand still although Slurm shows it as running"
        builder.do(KickJob(node.name, node.generation, reason, job.id))


def _half_kicked(builder: PlanBuilder, node: ManagedNode, check: JobCheck, jobs: Iterable[Job]) -> bool:
    """Whether a kick got no further than the suspend, as when the daemon died in it; it goes on."""
    left = [j for j in jobs if j.state is JobState.SUSPENDED and j.id in check.kicked]
    for job in left if not builder.busy_with(node) else ():
        reason = "it was suspended only to let its processes go on"
        builder.do(ResumeJob(node.name, node.generation, reason, job.id))
    return bool(left)
