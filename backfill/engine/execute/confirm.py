"""Asked once more, directly before work is destroyed: do Slurm and the hypervisor bear it out?"""

from __future__ import annotations

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job
from backfill.core.model.fence import judge
from backfill.core.model.fleet import STILL, Instance, InstanceState
from backfill.core.model.lifecycle import Cause, HeldJob
from backfill.core.model.refusals import Code, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.engine.looking import Outside, observe_nodes, read_job

_GONE = (InstanceState.OFF, InstanceState.CRASHED)
# These are of no node that Slurm knows, or were told by a person.
_NOT_SLURMS = frozenset({Cause.OLD, Cause.HOST_OFF, Cause.HALF})
_BY_HOST = frozenset({Cause.LOST, Cause.VANISHED, Cause.REBOOTED})


def spared(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Ask once more; return the reason to spare it as news of its node, or nothing.

    Raises DriverError where nobody can be asked: then it is not done either.
    """
    why = _instance(outside, action)
    return _told(outside, action, why) if why else []


def end_job(outside: Outside, action: act.RequeueJob | act.CancelJob) -> list[ch.Change]:
    """Give it back or end it, if its run is still the one that was meant and nothing of it is left.

    Raises DriverError.
    """
    if _is_over(outside, action):
        aside = isinstance(action, act.RequeueJob) and action.aside
        told = _told(outside, action, because(Code.RUN_NOT_SHOWN, job=action.job_id)) if aside else []
        return [*told, *read_job(outside, action.job_id)]
    left = _left_there(outside, action)
    if left:
        return [*_told(outside, action, left), *read_job(outside, action.job_id)]
    match action:
        case act.RequeueJob():
            outside.manager.requeue_job(action.job_id)
        case act.CancelJob():
            outside.manager.cancel_job(action.job_id)
    return read_job(outside, action.job_id)


def _told(
    outside: Outside, action: act.DeleteInstance | act.RequeueJob | act.CancelJob, why: Reason
) -> list[ch.Change]:
    return [ch.Unconfirmed(action.subject, action.generation, outside.clock.now(), sentence(why))]


def _instance(outside: Outside, action: act.DeleteInstance) -> Reason | None:
    """Return why the instance is spared, if it is: what its hypervisor shows, or Slurm of its jobs."""
    there = outside.providers[action.host].read(action.host, action.subject)
    if there is None:
        return None  # nothing is left to lose
    if there.tag.generation != action.generation and action.cause is Cause.OLD:
        return because(Code.ANOTHER_LIFE, host=action.host, generation=there.tag.generation)
    if there.state is InstanceState.UNKNOWN and action.cause is not None:
        return because(Code.INSTANCE_UNKNOWN, host=action.host, said=Words(there.problem))
    if action.cause in _BY_HOST:
        return None if there.restarted else _intact(action.host, there)
    if action.cause in _NOT_SLURMS:
        return None
    if action.cause is Cause.UNSTOPPED and there.state in STILL:
        return because(Code.SHOWN_AS, host=action.host, state=there.state.value)
    return _work(outside, action)


def _intact(host: str, there: Instance) -> Reason | None:
    """Return that the host shows an instance with its work in it, if it does."""
    return None if there.state in _GONE else because(Code.SHOWN_AS, host=host, state=there.state.value)


def _work(outside: Outside, action: act.DeleteInstance) -> Reason | None:
    """Return what Slurm says of its jobs now, if that speaks for them."""
    seen = observe_nodes(outside, [action.subject, *filter(None, (action.taken,))])
    here = [j for j in seen.jobs.values() if j.active and action.subject in j.nodes]
    match action.cause:
        case None:
            return because(Code.JOB_ON_IT, job=here[0].id) if here else None
        case Cause.LADDER | Cause.UNSTOPPED | Cause.RECLAIMED:
            fixed = [j.id for j in here if not j.requeue]
            if fixed:
                return because(Code.NO_REQUEUE_JOB, job=fixed[0])
            holders = [j for j in seen.jobs.values() if j.holds_nodes and action.taken in j.nodes]
            free = bool(action.taken) and not holders and bool(here)
            return because(Code.HOST_FREE_AGAIN, host=action.host) if free else None
        case Cause.SILENT:
            node = seen.nodes.get(action.subject)
            return because(Code.HEARD_AGAIN) if node is not None and node.responding else None
        case _:
            return _judged(outside, action, here)


def _judged(outside: Outside, action: act.DeleteInstance, here: list[Job]) -> Reason | None:
    """Ask the fence anew about the very jobs that stand still there."""
    held = action.held
    jobs = outside.manager.read_jobs([h.id for h in held]) if held else {}
    now_s = outside.clock.now() if action.cause is Cause.PATIENCE else None
    verdict = judge(action.subject, held, jobs, now_s)
    if action.cause is Cause.STALE and not verdict.stale:
        return because(Code.NO_OTHER_RUN)
    known = {(h.id, h.restarts) for h in held}
    shown = [h.id for h in verdict.keep] or [j.id for j in here if (j.id, j.restarts) not in known]
    return because(Code.JOB_SHOWN, job=shown[0]) if shown else None


def _is_over(outside: Outside, action: act.RequeueJob | act.CancelJob) -> bool:
    """Return True if Slurm does not show the run of the job that was meant any more."""
    if action.restarts is None:
        return False
    jobs = outside.manager.read_jobs([action.job_id])
    return not judge(action.subject, [HeldJob(action.job_id, action.restarts)], jobs).keep


def _left_there(outside: Outside, action: act.RequeueJob | act.CancelJob) -> Reason | None:
    """Return that its host shows a copy of the job after all, if it does."""
    if action.restarts is None or not action.host:
        return None
    there = outside.providers[action.host].read(action.host, action.subject)
    if there is None:
        return None
    if there.state is InstanceState.UNKNOWN:  # it may be of any generation
        return because(Code.INSTANCE_UNKNOWN, host=action.host, said=Words(there.problem))
    if there.tag.generation != action.generation:
        return None
    return _intact(action.host, there)
