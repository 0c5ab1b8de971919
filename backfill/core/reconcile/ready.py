"""At work: notice that the host is wanted, that something broke, or that nobody needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from backfill.core.model.actions import (
    DownNode,
    DrainNode,
    KickJob,
    ProbeJobs,
    RequeueJob,
    ResumeJob,
    UndrainNode,
    WakeInstance,
)
from backfill.core.model.cluster import OUR_REASON, Job, JobState, Node, NodeBase, end_s
from backfill.core.model.fleet import STILL
from backfill.core.model.lifecycle import (
    Cause,
    CheckpointOrder,
    EvictionCause,
    JobCheck,
    ManagedNode,
    Phase,
    checkpointed,
)
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, limit
from backfill.core.model.sentences import sentence
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import image_of
from backfill.core.reconcile.builder import PlanBuilder, Progress
from backfill.core.reconcile.condemn import condemn, forgotten, lost, permit, permitted, work_on
from backfill.core.reconcile.course import WAITS_FOR, begin_eviction, stop_forgotten, was_throttled
from backfill.core.reconcile.devices import see_to_devices
from backfill.core.reconcile.held_jobs import go_on_together, show, waits_for
from backfill.core.reconcile.making_room import promised
from backfill.core.reconcile.own_machines import is_over, kept_off, let_in
from backfill.core.reconcile.pressure import give_cpus, must_leave

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


_CLOSED_FOR = re.compile(rf"job (\S+){WAITS_FOR}")


_CALLS = 2  # into a guest that Slurm does not hear, before nobody does


def step_ready(builder: PlanBuilder, node: ManagedNode) -> None:
    """Watch over one node that takes jobs."""
    if must_leave(builder, node) or node.order is not None:
        begin_eviction(builder, node, doomed=node.inside and is_over(builder, node))
        return
    if (why := kept_off(builder, node)) is not None:
        begin_eviction(builder, node, why=why)
        return
    host = builder.world.hosts[node.host]
    if not host.reachable:
        lost_host = because(Code.HOST_UNREACHABLE, host=host.name, said=Words(host.problem))
        builder.refuse(node.name, Goal.CARE, lost_host)
        return
    instance = builder.instance(node)
    if lost(builder, node, instance):
        return
    if instance is not None and instance.state in STILL:
        _found_stopped(builder, node)
        return
    seen = builder.world.nodes.get(node.name)
    slow = seen is not None and was_throttled(builder, node, seen)  # as a crash may have left it
    if instance is None or slow or give_cpus(builder, node, instance):
        _in_slurm(builder, node)
    if instance is not None and not builder.blind:
        see_to_devices(builder, node, instance)


def _found_stopped(builder: PlanBuilder, node: ManagedNode) -> None:
    """Somebody stopped it, or we did so and the journal knows nothing of that: Slurm tells which."""
    seen = builder.world.nodes.get(node.name)
    if builder.blind:
        builder.refuse(node.name, Goal.CARE, builder.blind)
    elif seen is None or not stop_forgotten(builder, node, seen):
        begin_eviction(builder, node)


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
    waiting = waits_for(builder, node) or promised(builder, node)
    if not waiting and stop_forgotten(builder, node, seen):
        return
    if strangers(builder, node, seen):
        return
    if seen.base is NodeBase.DOWN:
        shut = because(Code.NODE_SHUT, node=node.name, state=seen.state_text, said=Words(seen.reason))
        builder.refuse(node.name, Goal.NEW_JOBS, shut)
    _in_service(builder, node, seen, waiting)
    _see_to_jobs(builder, node, waiting)


def _see_to_jobs(builder: PlanBuilder, node: ManagedNode, waiting: Reason | None) -> None:
    if node.held:
        go_on_together(builder, node)
    on_it = builder.world.jobs_on(node.name)
    if node.check is not None and (not node.held or any(j.state is JobState.RUNNING for j in on_it)):
        _prove_jobs(builder, node, node.check)
    busy = bool(on_it)
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
    wake = WakeInstance(
        subject=node.name, generation=node.generation, reason="does its guest answer?", host=node.host
    )
    woken_s = node.proof.woken_s
    if woken_s is None or woken_s <= world.silent[node.name]:
        progress, tried = builder.do(wake), builder.operation(wake)
        if tried is None or not (progress is Progress.FINAL or tried.attempts >= _CALLS):
            return
        why = f"{problem}, nor its hypervisor"
        if progress in (Progress.BEGUN, Progress.RUNNING):
            # Asked once more, it may answer; the readings count on.
            permitted(builder, node, Cause.SILENT, why, work_on(builder, node))
        else:
            condemn(builder, node, Cause.SILENT, f"{why}: {tried.problem}", fail=True)
        return
    builder.refuse(node.name, Goal.REMOVAL, because(Code.GUEST_ANSWERS, silent_s=rule.down_after_s))


def _in_service(builder: PlanBuilder, node: ManagedNode, seen: Node, waiting: Reason | None) -> None:
    """Undo what a crash in the middle of a return may have left: hidden, or drained by us.

    And what others may have done: its address is ours to say. While a job of it waits for another
    node it is kept for that job.
    """
    show(builder, node)
    if node.stop is not None and not seen.drained_by_us:
        builder.note(node, "its drain is lifted", stop=None)
    if waiting:
        builder.refuse(node.name, Goal.NEW_JOBS, waiting)
        if not seen.drained:
            builder.do(
                DrainNode(
                    subject=node.name, generation=node.generation, reason=f"{OUR_REASON} {sentence(waiting)}"
                )
            )
    elif node.held:  # its job goes on first
        if not seen.drained:
            jobs = ", ".join(held.id for held in node.held)
            reason = f"{OUR_REASON} job {jobs} is still suspended"
            builder.insist(
                DrainNode(subject=node.name, generation=node.generation, reason=reason), Goal.DRAIN
            )
    elif seen.drained_by_others:
        drained = because(Code.DRAINED_BY_OTHERS, said=Words(seen.reason))
        builder.refuse(node.name, Goal.UNDRAIN, drained)
    elif seen.drained_by_us and not _may_be_kept(builder, node):
        undrain = UndrainNode(
            subject=node.name, generation=node.generation, reason="it is ready", host=node.host
        )
        builder.insist(undrain, Goal.UNDRAIN)


def _may_be_kept(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it may be closed for a job that Slurm does not show at this moment."""
    closed_for = _closed_for(builder, node)
    if closed_for:
        builder.awaits(Topic.READING)
        builder.refuse(node.name, Goal.NEW_JOBS, because(Code.MAY_HAVE_JOBS, jobs=(closed_for,)))
        return True
    lost = builder.vanished(node.name)
    if not lost:
        return False
    jobs = tuple(held.id for held in lost)
    builder.refuse(node.name, Goal.NEW_JOBS, because(Code.MAY_HAVE_JOBS, jobs=jobs))
    return True


def _closed_for(builder: PlanBuilder, node: ManagedNode) -> str:
    """Return the job that its drain names, where Slurm does not show it and another node still holds it.

    A daemon that has just begun knows of no job that one reading lacks. Empty: there is none.
    """
    world, seen = builder.world, builder.world.nodes.get(node.name)
    found = None if seen is None else _CLOSED_FOR.search(seen.reason)
    if found is None or found[1] in world.jobs:
        return ""
    held = (one.id for other in world.managed.values() for one in other.held)
    return found[1] if found[1] in held else ""


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
        builder.do(
            ProbeJobs(
                subject=node.name, generation=node.generation, reason="do its jobs go on?", host=node.host
            )
        )


def _kick(builder: PlanBuilder, node: ManagedNode, check: JobCheck, jobs: Iterable[Job]) -> None:
    """Let stopped processes go on. What is suspended only for that is noted before the call."""
    stuck = [job for job in jobs if job.state is JobState.RUNNING and job.active]
    kicked = tuple(dict.fromkeys((*check.kicked, *(job.id for job in stuck))))
    if kicked != check.kicked:
        builder.note(node, "its processes stand still", check=replace(check, kicked=kicked))
    for job in stuck:
        reason = "its processes stand still although Slurm shows it as running"
        builder.insist(
            KickJob(subject=node.name, generation=node.generation, reason=reason, job_id=job.id),
            Goal.JOB_GOES_ON,
            job.id,
        )


def _half_kicked(builder: PlanBuilder, node: ManagedNode, check: JobCheck, jobs: Iterable[Job]) -> bool:
    """Return True if a kick got no further than the suspend, as when the daemon died in it; it goes on."""
    suspended = [j for j in jobs if j.state is JobState.SUSPENDED and j.id in check.kicked]
    left = [j for j in suspended if not builder.world.suspended_by_others(j)]
    for job in left if not builder.world.busy(node.name) else ():
        reason = "it was suspended only to let its processes go on"
        builder.insist(
            ResumeJob(subject=node.name, generation=node.generation, reason=reason, job_id=job.id),
            Goal.JOB_GOES_ON,
            job.id,
        )
    return bool(left)


# A job that has run for longer is left to its end: what it was not to see it has seen by now, and
# its work is intact. Slurm itself keeps strangers away, so it began before it could do so.
_JUST_BEGUN_S = 60.0


def strangers(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """See to jobs that may not be here; True while there are any, for which the node is closed.

    To open it again makes the reservation anew that keeps them off it.
    """
    environments = builder.policies.environments
    if not environments.private and not node.job:
        return False
    image, found = image_of(builder.policies, node), False
    for job in builder.world.jobs_on(node.name):
        why = environments.keeps_out(image, job) if job.active else None
        if node.job and job.active and job.id != node.job and not let_in(builder, node, job):
            why = because(Code.MACHINE_OF_JOB, node=node.name, job=node.job)
        if why is not None:
            found = True
            _put_back(builder, node, job, why)
    if not found and node.condemned is not None:
        builder.note(node, node.reason, condemned=None)
    if found and not seen.drained:
        reason = f"{OUR_REASON} somebody is on it who may not have it"
        builder.do(DrainNode(subject=node.name, generation=node.generation, reason=reason))
    return found


def _put_back(builder: PlanBuilder, node: ManagedNode, job: Job, why: Reason) -> None:
    over_s = job.start_s + _JUST_BEGUN_S
    builder.wake_at(over_s)
    if not job.requeue:
        why = because(Code.NO_REQUEUE, found=why)
    elif builder.now_s >= over_s:
        why = because(Code.LEFT_TO_END, found=why)
    elif permit(builder, node, Cause.STRANGER, sentence(why)):
        builder.do(
            RequeueJob(
                subject=node.name,
                generation=node.generation,
                reason=sentence(why),
                job_id=job.id,
                restarts=job.restarts,
            )
        )
    builder.refuse(f"job {job.id}", Goal.PLACE, why, node.name)


def save_in_time(builder: PlanBuilder, node: ManagedNode) -> None:
    """Order a checkpoint of the job on this node once it is due; all its nodes are ordered at once.

    Reckoned from the last checkpoint, or from the job's start, by what the instance had lived
    through until then: so the time that is due is known beforehand, and the plan waits for it.
    """
    rules = builder.policies.saving
    jobs = [job for job in builder.world.jobs_on(node.name) if job.active]
    if not rules.automatic or not jobs:
        return
    if len(jobs) > 1:
        builder.refuse(node.name, Goal.CHECKPOINT, because(Code.SEVERAL_JOBS, count=len(jobs)))
        return
    job = jobs[0]
    # Slurm suspends no component of a heterogeneous job.
    if job.state is not JobState.RUNNING or node.name != min(job.nodes) or "+" in job.id:
        return
    last_s = _last_s(job, node)
    cost_s = _cost_s(builder, node)
    due_s = rules.due_s(last_s, cost_s, last_s - node.created_s, node.evictions)
    over_s = end_s(job)
    if over_s is not None and over_s <= due_s + cost_s:
        return  # it ends by itself before a checkpoint is worth what it costs
    builder.wake_at(due_s)
    if builder.now_s >= due_s:
        _order(builder, job)


def _cost_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """Return how long one stops the job: memory is written, and read again."""
    rate = builder.world.rates.get(node.host)
    written_s = (
        None if rate is None else rate.predict_s(builder.policies.instances.flavour_of(node).memory_mb)
    )
    return builder.policies.saving.cost_s if written_s is None else 2.0 * written_s


def _order(builder: PlanBuilder, job: Job) -> None:
    world, at_once = builder.world, builder.policies.saving.at_once
    nodes = [world.managed.get(name) for name in job.nodes]
    members = [node for node in nodes if node is not None and node.phase is Phase.READY]
    if len(members) < len(nodes):
        builder.refuse(f"job {job.id}", Goal.CHECKPOINT, because(Code.NODES_NOT_READY))
        return
    bar = next((bar for node in members if (bar := _keepless(builder, node.host)) is not None), None)
    if bar is not None:
        builder.awaits(Topic.READING)
        builder.refuse(f"job {job.id}", Goal.CHECKPOINT, bar)
        return
    under_way = _stopped_for_one(builder, {node.host for node in members})
    if len(under_way) >= at_once:
        builder.awaits(Topic.CHECKPOINTS)
        builder.refuse(f"job {job.id}", Goal.CHECKPOINT, limit("saving.at_once", at_once))
        return
    identity = builder.policies.saving.identity(job.id, builder.now_s)
    names = tuple(node.name for node in members)
    for node in members:
        reason = f"checkpoint {identity}: the last one is {_age(builder, job, node)} old"
        order = CheckpointOrder(identity, names)
        builder.note(node, reason, order=order, ordered_s=builder.now_s)


def _stopped_for_one(builder: PlanBuilder, hosts: set[str]) -> set[str]:
    """Return which orders or jobs count as stopped for a checkpoint, if the next is to be on these hosts.

    Where a guest has not come back well, as when a file server is out, others would not either.
    """
    found = set()
    for node in builder.world.managed.values():
        badly = node.stopping.cause is EvictionCause.PUT_OFF and node.order is None
        if checkpointed(node) and (not badly or node.host in hosts):
            job = node.held[0].id if node.held else node.name
            found.add(job if node.order is None else node.order.id)
    return found


def _keepless(builder: PlanBuilder, host: str) -> Reason | None:
    """Return why no checkpoint can be made on the host, if none can."""
    known = builder.world.hosts.get(host)
    if known is None:
        return because(Code.HOST_UNSEEN, host=host)
    return None if known.keeps else because(Code.KEEPS_NONE, host=host)


def _age(builder: PlanBuilder, job: Job, node: ManagedNode) -> str:
    return f"{builder.now_s - _last_s(job, node):.0f} s"


def _last_s(job: Job, node: ManagedNode) -> float:
    """Since when there is anything that is in no checkpoint."""
    return job.start_s if node.ordered_s is None else max(job.start_s, node.ordered_s)


def plan_liveness(builder: PlanBuilder) -> None:
    """Set nodes DOWN that have been silent for too long; of many at once believe none dead."""
    rule = builder.policies.liveness
    if not rule.down_after_s or builder.blind:
        return
    dead = []
    for name in sorted(builder.world.silent):
        if not _excused(builder, name):
            over_s = _since_s(builder, name) + rule.down_after_s
            builder.wake_at(over_s)
            if builder.now_s >= over_s:
                dead.append(name)
    most = rule.most(len(builder.world.nodes)) if dead else 0
    if len(dead) > most:
        every = len(builder.world.nodes)
        broken = because(Code.BROKEN_NETWORK, count=len(dead), every=every, most=most)
        for name in dead:
            builder.refuse(name, Goal.SET_DOWN, broken)
        return
    for name in dead:
        node = builder.world.managed.get(name)
        reason = f"{OUR_REASON} it has not answered Slurm for {rule.down_after_s:g} s"
        builder.do(
            DownNode(subject=name, generation=node.generation if node is not None else 0, reason=reason)
        )


def silent_too_long(builder: PlanBuilder, name: str) -> bool:
    """Return True if the node has not answered Slurm for so long that it counts as dead."""
    down_after_s = builder.policies.liveness.down_after_s
    if not down_after_s or name not in builder.world.silent:
        return False
    over_s = _since_s(builder, name) + down_after_s
    builder.wake_at(over_s)
    return builder.now_s >= over_s


def _since_s(builder: PlanBuilder, name: str) -> float:
    """Silence counts only while we could hear."""
    return max(builder.world.silent[name], builder.world.sighted_since_s)


def _excused(builder: PlanBuilder, name: str) -> bool:
    """Return True if a node is silent by our own doing, or its step deals with it, unless its host is
    gone together with it: then it is as dead as any. One without a record may still stand still."""
    node, seen = builder.world.managed.get(name), builder.world.nodes.get(name)
    if node is None:
        return seen is not None and seen.hidden
    host = builder.world.hosts.get(node.host)
    return node.phase is not Phase.READY or host is None or host.reachable
