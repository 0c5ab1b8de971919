"""At work: notice that the host is wanted, that something broke, or that nobody needs it."""

from __future__ import annotations

from backfill.core.actions import KickJob, ProbeJobs, UndrainNode
from backfill.core.cluster import JobState, Node
from backfill.core.draft import Draft
from backfill.core.hiding import show
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.liveness import silent_too_long
from backfill.core.steps.devices import see_to_devices
from backfill.core.steps.evict import begin_eviction
from backfill.core.steps.let_go import forgotten
from backfill.core.steps.saving import save_in_time
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


def step_ready(draft: Draft, node: ManagedNode) -> None:
    """Watch over one node that takes jobs."""
    if draft.must_leave(node) or node.checkpoint:
        begin_eviction(draft, node)
        return
    if not draft.world.hosts[node.host].reachable:
        draft.refuse(node.name, "care", f"host {node.host} cannot be reached")
        return
    instance = draft.instance(node)
    problem = draft.broken(node, instance)
    if problem:
        draft.become(node, Phase.REMOVING, problem, fail=True)
        return
    if draft.stopped(instance):
        begin_eviction(draft, node)
        return
    if instance is None or give_cpus(draft, node, instance):  # a crash may have left it throttled
        _in_slurm(draft, node)
    if instance is not None and not draft.blind:
        see_to_devices(draft, node, instance)


def _in_slurm(draft: Draft, node: ManagedNode) -> None:
    if draft.blind:
        return
    seen = draft.world.nodes.get(node.name)
    if seen is None:
        forgotten(draft, node)
        return
    if silent_too_long(draft, node.name):
        problem = f"it has not answered Slurm for {draft.policies.liveness.down_after_s:g} s"
        draft.become(node, Phase.REMOVING, problem, fail=True)
        return
    _in_service(draft, node, seen)
    if node.suspended_s:
        _prove_jobs(draft, node)
    busy = bool(draft.world.jobs_on(node.name))
    if busy and node.idle_since_s:
        draft.note(node, "a job runs on it", idle_since_s=0.0)
    elif not busy and not node.idle_since_s:
        draft.note(node, "no job is left on it", idle_since_s=draft.now_s)
    if busy and not node.idle_since_s and not node.suspended_s:
        save_in_time(draft, node)


def _in_service(draft: Draft, node: ManagedNode, seen: Node) -> None:
    """Undo what a crash in the middle of a return may have left: hidden, or drained by us.

    And what others may have done: its address is ours to say.
    """
    show(draft, node)
    if seen.drained_by_others:
        draft.refuse(node.name, "undrain", f"somebody else drained it: {seen.reason}")
    elif seen.drained_by_us:
        draft.do(UndrainNode(node.name, node.generation, "it is ready", node.host))


def _prove_jobs(draft: Draft, node: ManagedNode) -> None:
    """Soon after a return: see in the guest that its jobs go on, and kick them if they do not."""
    jobs = draft.world.jobs_on(node.name)
    if not jobs:
        draft.note(node, "no job is left on it", suspended_s=0.0, stuck_s=0.0)
        return
    if node.stuck_s and draft.now_s >= node.stuck_s + _SETTLES_S:
        for job in jobs:
            if job.state is JobState.RUNNING and job.active:
                reason = "its processes stand still although Slurm shows it as running"
                draft.do(KickJob(node.name, node.generation, job.id, reason))
        return
    over_s = node.suspended_s + _LATE_SIGNAL_S
    if not node.stuck_s and node.probed_s > over_s:
        draft.note(node, "its jobs go on", suspended_s=0.0)
        return
    looked_s = max(node.probed_s, node.since_s)
    # A look costs a call into the guest, and what is late gets less likely with time.
    well_s = 0.0 if node.stuck_s else (looked_s - node.since_s) * _PROBE_LESS_OFTEN
    due_s = looked_s + max(_PROBE_EVERY_S, well_s)
    draft.wake_at(due_s)
    if draft.now_s >= due_s:
        draft.do(ProbeJobs(node.name, node.generation, node.host, "do its jobs go on?"))
