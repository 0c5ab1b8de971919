"""The one door through which work is destroyed, and the one through which empty nodes go.

Nothing intact is destroyed because time passed, because one reading was odd, or because somebody
else's service was out. A reason has to be read again and again, by readings that began after it was
found; what is only missing has to be missing for long. Then so many go within a minute and an hour,
and directly before each call Slurm and the hypervisor are asked once more (engine/confirm.py).
What is not certain waits in its phase, with a refusal.
"""

from __future__ import annotations

from backfill.core.cluster import NodeBase
from backfill.core.draft import Draft
from backfill.core.fence import Verdict
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import Cause, HeldJob, ManagedNode, Phase, Suspicion
from backfill.core.notice import tell_requeued

_READINGS = 3  # that have to agree, begun after the first finding
_WHAT = "removal"

# By a person's word or the policy file's: there is nothing to read.
_ORDERS = frozenset({Cause.LADDER, Cause.RECLAIMED, Cause.HOST_OFF})
# Decided by ourselves: it is in our own record.
_OURS = frozenset({Cause.HALF})
# Told by the node's hypervisor; all others are told by Slurm.
_BY_HOST = frozenset({Cause.LOST, Cause.VANISHED, Cause.REBOOTED})
# Where the copy is known to be of no use, so that a job that may not start anew has to end.
COPY_IS_LOST = frozenset(Cause) - {Cause.LADDER, Cause.RECLAIMED}


def work_on(draft: Draft, node: ManagedNode) -> tuple[HeldJob, ...]:
    """The jobs that would lose something: frozen with it, at work there, or not shown any more."""
    world = draft.world
    found = {held.id: held for held in world.vanished_on(node.name)}
    found |= {j.id: HeldJob(j.id, j.restarts) for j in world.jobs_on(node.name) if j.active}
    found |= {held.id: held for held in node.held}
    return tuple(found.values())


def clear(
    draft: Draft, node: ManagedNode, reason: str, *, fail: bool = False, failures: int | None = None
) -> bool:
    """Let a node go on which there is no work; else say so and wait. Whether it goes."""
    draft.accused.add(node.name)
    doubt = _doubt(draft, node)
    if doubt:
        draft.refuse(node.name, _WHAT, f"{reason}; but {doubt}: it is waited for")
        return False
    after = node.failures if failures is None else failures
    draft.remove(node, reason, fail=fail, failures=after)
    return True


def _doubt(draft: Draft, node: ManagedNode) -> str:
    """Say what may be lost with it after all, or return an empty text."""
    jobs = work_on(draft, node)
    if jobs:
        return f"job {', '.join(held.id for held in jobs)} may be on it"
    seen = draft.world.nodes.get(node.name)
    if seen is None or draft.world.jobs_on(node.name) or "COMPLETING" in seen.flags:
        return ""
    if seen.base in (NodeBase.ALLOCATED, NodeBase.MIXED):
        return f"Slurm shows it as {seen.state_text} and no job on it"
    return ""


def condemn(draft: Draft, node: ManagedNode, cause: Cause, reason: str, *, fail: bool = False) -> bool:
    """Let a node go together with the work on it, once that is certain. Whether it goes now."""
    jobs = work_on(draft, node)
    if not jobs and not node.proven_s:
        return clear(draft, node, reason, fail=fail)  # it has never worked
    if not permitted(draft, node, cause, reason, jobs):
        return False
    draft.remove(
        node,
        reason,
        fail=fail,
        condemned=cause if jobs else None,
        condemned_s=(node.condemned_s if node.condemned else draft.now_s) if jobs else 0.0,
    )
    if jobs and not node.condemned:
        draft.count_condemned()
    return True


def permitted(draft: Draft, node: ManagedNode, cause: Cause, reason: str, jobs: tuple[HeldJob, ...]) -> bool:
    """Whether the work on the node may be given up now; else it is said why not."""
    draft.accused.add(node.name)
    if node.condemned is not None:
        return True  # it was decided before, and is only carried out
    if draft.blind and cause is not Cause.HOST_OFF:
        draft.refuse(node.name, _WHAT, f"{reason}; {draft.blind}")
        return False
    unsure = _unsure(draft, node, cause, reason)
    if unsure:
        draft.refuse(node.name, _WHAT, f"{reason}; {unsure}")
        return False
    full = _full(draft) if jobs else _many(draft)
    if full:
        draft.refuse(node.name, _WHAT, f"{reason}; {full}")
    return not full


def permit(draft: Draft, node: ManagedNode, cause: Cause, reason: str) -> bool:
    """Whether its jobs may be given back to the queue now, before anything of it is destroyed."""
    if node.condemned is not None:
        return True
    if permitted(draft, node, cause, reason, work_on(draft, node)):
        draft.count_condemned()
        draft.note(node, reason, condemned=cause, condemned_s=draft.now_s)
    return False  # with the next plan, which follows at once


# --- certainty ---------------------------------------------------------------------------------


def _unsure(draft: Draft, node: ManagedNode, cause: Cause, reason: str) -> str:
    """Say what is missing for certainty, or return an empty text. Counts the readings."""
    if cause in _ORDERS or cause in _OURS:
        return ""
    world, known = draft.world, node.suspicion
    source = node.host if cause in _BY_HOST else "slurm"
    since_s = world.sighted_since_s if source == "slurm" else 0.0
    needed_s = _needed_s(draft, node, cause)
    read_s = world.source_read_s(source)
    if known is None or known.cause is not cause or known.since_s < since_s:
        known = Suspicion(cause, float(draft.now_s))
        draft.note(node, f"suspected, not believed yet: {reason}", suspicion=known)
    elif read_s > max(known.since_s, known.read_s) and known.times < _READINGS:
        known = Suspicion(cause, known.since_s, read_s, known.times + 1)
        draft.note(node, f"read once more: {reason}", suspicion=known)
    if known.times >= _READINGS and read_s >= known.since_s + needed_s:
        return ""
    return f"this is believed when {_READINGS} readings of {source} say the same, for {needed_s:.0f} s"


def _needed_s(draft: Draft, node: ManagedNode, cause: Cause) -> float:
    """For how long it has to be read. Longer where only something is not shown."""
    limits, world = draft.policies.limits, draft.world
    match cause:
        case Cause.MISSING:
            long = True
        case Cause.FORGOTTEN:
            long = bool(work_on(draft, node))
        case Cause.LOST:
            # Memory on disk may only be out of sight, as when a file server is down.
            instance = draft.instance(node)
            off = instance is not None and instance.state is InstanceState.OFF
            long = off and bool(node.held)
        case Cause.VANISHED:
            # A hypervisor that shows nothing at all may only have lost sight of its guests.
            alone = not world.instances_on(node.host)
            long = alone and node.name not in world.silent and bool(work_on(draft, node))
        case _:
            long = False
    return limits.missing_s if long else limits.sure_after_s


def old_copy(draft: Draft, instance: Instance) -> str:
    """Say why a copy of an earlier generation is not destroyed yet, or return an empty text."""
    world, limits = draft.world, draft.policies.limits
    first_s = world.first_seen_s(instance.host, instance.name)
    if world.source_read_s(instance.host) < first_s + limits.sure_after_s:
        return f"this is believed when {instance.host} shows it for {limits.sure_after_s:.0f} s"
    return ""


# --- caps --------------------------------------------------------------------------------------


def _full(draft: Draft) -> str:
    """Say which limit keeps more work from being destroyed now, or return an empty text."""
    limits, world = draft.policies.limits, draft.world
    windows = (
        ("destroys_per_min", limits.destroys_per_min, 60.0),
        ("destroys_per_hour", limits.destroys_per_hour, 3600.0),
    )
    for key, most, within_s in windows:
        if world.destroyed_lately(within_s) + draft.condemned >= most:
            first_s = world.destroyed_after_s(draft.now_s - within_s)
            if first_s is not None:
                draft.wake_at(first_s + within_s)
            return f"limits.{key} = {most} is reached"
    return ""


def _many(draft: Draft) -> str:
    """The same of instances without work."""
    most = draft.policies.limits.removals_at_once
    if draft.world.count_in(Phase.REMOVING) + draft.becoming(Phase.REMOVING) >= most:
        return f"limits.removals_at_once = {most} is reached"
    return ""


# --- what is found -----------------------------------------------------------------------------


def lost(draft: Draft, node: ManagedNode, instance: Instance | None) -> bool:
    """Deal with an instance that is lost, or with one that is elsewhere; whether it is either."""
    problem = draft.broken(node, instance)
    if not problem:
        return False
    if instance is None:
        found = draft.elsewhere(node)
        if found is not None:
            draft.note(node, f"found on {found.host}", host=found.host)
            return True
    condemn(draft, node, _how_lost(instance), problem, fail=True)
    return True


def _how_lost(instance: Instance | None) -> Cause:
    if instance is None:
        return Cause.VANISHED
    gone = instance.state in (InstanceState.OFF, InstanceState.CRASHED)
    return Cause.LOST if gone else Cause.REBOOTED


def stale(draft: Draft, node: ManagedNode, verdict: Verdict) -> bool:
    """Deal with a copy that Slurm's word makes stale; whether it is one."""
    if not verdict.stale:
        return False
    if condemn(draft, node, Cause.STALE, f"{verdict.stale}: the copy here is destroyed"):
        tell_requeued(draft, node)
    return True


def over(draft: Draft, node: ManagedNode) -> None:
    """None of its jobs is held by Slurm any more: have they ended, or are they only not shown?"""
    unseen = [held.id for held in node.held if held.id not in draft.world.jobs]
    if unseen:
        reason = f"Slurm shows nothing of job {', '.join(unseen)}, which stands still here"
        condemn(draft, node, Cause.MISSING, reason)
    else:
        condemn(draft, node, Cause.ENDED, "its jobs have ended while it stood still")


def forgotten(draft: Draft, node: ManagedNode, *, fail: bool = True) -> None:
    """Slurm does not show the node."""
    jobs = [job.id for job in draft.world.jobs_on(node.name) if job.active]
    if jobs:
        draft.accused.add(node.name)
        reason = f"Slurm does not show it, but job {', '.join(jobs)} on it: this is not believed"
        draft.refuse(node.name, "care", reason)
        return
    reason = "Slurm does not show it any more: somebody deleted it there"
    condemn(draft, node, Cause.FORGOTTEN, reason, fail=fail)
