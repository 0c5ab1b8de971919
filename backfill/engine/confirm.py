"""Asked once more, directly before work is destroyed: do Slurm and the hypervisor bear it out?"""

from __future__ import annotations

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.core.cluster import Job
from backfill.core.fence import judge
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import Cause, HeldJob
from backfill.engine.looking import Outside, observe_nodes, read_job

_GONE = (InstanceState.OFF, InstanceState.CRASHED)
# These are of no node that Slurm knows, or were told by a person.
_NOT_SLURMS = frozenset({Cause.OLD, Cause.HOST_OFF, Cause.HALF})
_BY_HOST = frozenset({Cause.LOST, Cause.VANISHED, Cause.REBOOTED})


def spared(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Why it must not be done after all, as news of its node; nothing: it may be done.

    Raises DriverError where nobody can be asked: then it is not done either.
    """
    why = _instance(outside, action)
    return _told(outside, action, why) if why else []


def end_job(outside: Outside, action: act.RequeueJob | act.CancelJob) -> list[ch.Change]:
    """Give it back or end it, if its run is still the one that was meant and nothing of it is left.

    Raises DriverError.
    """
    spare = _not_as_meant(outside, action)
    if spare is not None:
        told = _told(outside, action, spare) if spare else []
        return [*told, *read_job(outside, action.job_id)]
    match action:
        case act.RequeueJob():
            outside.manager.requeue_job(action.job_id)
        case act.CancelJob():
            outside.manager.cancel_job(action.job_id)
    return read_job(outside, action.job_id)


def _told(
    outside: Outside, action: act.DeleteInstance | act.RequeueJob | act.CancelJob, why: str
) -> list[ch.Change]:
    return [ch.Unconfirmed(action.subject, action.generation, outside.clock.now(), why)]


def _instance(outside: Outside, action: act.DeleteInstance) -> str:
    there = outside.providers[action.host].read(action.host, action.subject)
    if there is None:
        return ""  # nothing is left to lose
    if there.tag.generation != action.generation and action.cause is Cause.OLD:
        return f"{action.host} shows generation {there.tag.generation} of it now"
    if there.state is InstanceState.UNKNOWN and action.cause is not None:
        return f"what became of it on {action.host} is not known: {there.problem}"
    if action.cause in _BY_HOST:
        return _as_lost(action, there)
    if action.cause in _NOT_SLURMS:
        return ""
    return _work(outside, action)


def _as_lost(action: act.DeleteInstance, there: Instance) -> str:
    if there.state in _GONE or there.restarted:
        return ""
    return f"{action.host} shows it as {there.state}"


def _work(outside: Outside, action: act.DeleteInstance) -> str:
    """What Slurm says of its jobs now."""
    seen = observe_nodes(outside, [action.subject])
    here = [j for j in seen.jobs.values() if j.active and action.subject in j.nodes]
    match action.cause:
        case None:
            return f"job {here[0].id} is on it" if here else ""
        case Cause.LADDER | Cause.RECLAIMED:
            fixed = [j.id for j in here if not j.requeue]
            return f"job {fixed[0]} was submitted as --no-requeue" if fixed else ""
        case Cause.SILENT:
            node = seen.nodes.get(action.subject)
            return "Slurm hears it again" if node is not None and node.responding else ""
        case _:
            return _judged(outside, action, here)


def _judged(outside: Outside, action: act.DeleteInstance, here: list[Job]) -> str:
    """The fence, asked anew about the very jobs that stand still there."""
    held = action.held
    jobs = outside.manager.read_jobs([h.id for h in held]) if held else {}
    verdict = judge(action.subject, held, jobs)
    if action.cause is Cause.STALE:
        return "" if verdict.stale else "Slurm does not show another run of its jobs any more"
    if verdict.keep:
        return f"Slurm shows job {verdict.keep[0].id} on it"
    known = {h.id for h in held}
    more = [j.id for j in here if j.id not in known]
    return f"Slurm shows job {more[0]} on it" if more else ""


def _not_as_meant(outside: Outside, action: act.RequeueJob | act.CancelJob) -> str | None:
    """Say why the job is left alone; empty: there is nothing to do. None: it is as it was meant."""
    if action.restarts is None:
        return None
    jobs = outside.manager.read_jobs([action.job_id])
    held = HeldJob(action.job_id, action.restarts)
    if not judge(action.subject, [held], jobs).keep:
        why = f"Slurm does not show this run of job {action.job_id} on it any more"
        return why if isinstance(action, act.RequeueJob) and action.aside else ""
    if not action.host:
        return None
    there = outside.providers[action.host].read(action.host, action.subject)
    if there is None or there.tag.generation != action.generation or there.state in _GONE:
        return None
    return f"{action.host} shows it as {there.state}"
