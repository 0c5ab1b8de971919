"""Actions in guests: pause, throttle, thaw behind the fence, wake and proof, a count of jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.fence import judge, unknown_runs
from backfill.core.model.lifecycle import HeldJob
from backfill.core.model.readiness import MUNGE, Fact
from backfill.core.model.sentences import sentence, sentences
from backfill.engine.looking import Outside, guests_now, read_instance, read_node_and_jobs
from backfill.ports.capabilities import GuestFence, Prover, Throttler
from backfill.ports.errors import BusyError, DriverError, RefusedError

_LOG = logging.getLogger("backfill.guest")
# From the fence's answer until the CPUs run: the provider's own checks, and one request to its cloud.
_THAW_MAY_TAKE_S = 30.0


def _throttle(outside: Outside, action: act.ThrottleInstance) -> list[ch.Change]:
    provider = outside.providers[action.host]
    if not isinstance(provider, Throttler):
        raise RefusedError(action.subject, f"the provider of {action.host} cannot throttle")
    provider.throttle(action.host, action.subject, action.percent)
    return read_instance(outside, action.host, action.subject)


def _thaw(outside: Outside, action: act.ThawInstance) -> list[ch.Change]:
    """Ask the fence, then thaw: Slurm is asked anew, because what we knew may be old."""
    jobs = outside.manager.read_jobs([h.id for h in action.held]) if action.held else {}
    ended = {job.id for job in jobs.values() if job.raw_id in action.ended}
    held = [h for h in action.held if h.id not in ended]
    verdict = judge(action.subject, held, jobs, outside.clock.now())
    if verdict.stale:
        raise RefusedError(action.subject, f"not thawed: {sentence(verdict.stale)}")
    if doubt := unknown_runs(verdict.keep):
        raise RefusedError(action.subject, f"not thawed: {sentences(doubt)}")
    if action.held and not verdict.keep:
        raise RefusedError(action.subject, "not thawed: Slurm holds none of its jobs any more")
    _check_time_left(outside, action, verdict.keep)
    # While it still stands still: from its first moment on slurmctld may ask who it is.
    outside.manager.vouch(action.subject)
    # Of work that may be stale by the time its guest can be told, nothing may get out.
    shut = any(job.patience is not None for job in action.held)
    outside.providers[action.host].thaw(action.host, action.subject, shut=shut)
    return read_instance(outside, action.host, action.subject)


def _check_time_left(outside: Outside, action: act.ThawInstance, held: Sequence[HeldJob]) -> None:
    """Raise BusyError if the patience of a job may be over by the time its CPUs run.

    A guest with a fence is told which jobs are stale before they run. No other guest can be.
    """
    if isinstance(outside.providers[action.host], GuestFence):
        return
    for job in held:
        if job.patience is None:
            continue
        left_s = job.patience.over_s - outside.clock.now()
        if left_s < min(_THAW_MAY_TAKE_S, job.patience.left_s / 2):
            raise BusyError(
                action.subject,
                f"not thawed: the patience of job {job.id} ends in {left_s:.0f} s, and on {action.host} "
                "a thaw may take that long",
            )


def in_guest(outside: Outside, action: act.GuestAction) -> list[ch.Change]:
    """Do it, and tell what was learnt."""
    match action:
        case act.PauseInstance():
            ran_s = freeze(outside, action)
            outside.providers[action.host].pause(action.host, action.subject)
            # The call itself has confirmed it, and a high-priority job waits: no second question.
            return [ch.InstanceStopped(action.host, action.subject, outside.clock.now(), ran_s)]
        case act.ThrottleInstance():
            return _throttle(outside, action)
        case act.ThawInstance():
            return _thaw(outside, action)
        case act.WakeInstance():
            return _wake(outside, action)
        case act.ProbeJobs():
            return _probe(outside, action)
        case _:
            assert_never(action)


def freeze(outside: Outside, action: act.PauseInstance | act.SuspendInstance) -> float | None:
    """Let the guest freeze its jobs, so that some of them can be ended before they run again.

    A guest that does not is stopped all the same: then all of its jobs go on, or none. Returns when
    they ran for the last time; None: nobody knows.
    """
    provider, ran_s = outside.providers[action.host], outside.clock.now()
    if not action.freeze or not isinstance(provider, GuestFence):
        return None
    try:
        return ran_s if provider.freeze(action.host, action.subject) else None
    except DriverError as error:
        _LOG.warning("%s stops without its jobs frozen first: %s", action.subject, error)
        return None


def _wake(outside: Outside, action: act.WakeInstance) -> list[ch.Change]:
    provider = outside.providers[action.host]
    set_s = 0.0
    if action.stood and isinstance(provider, GuestFence):
        set_s = provider.release(action.host, action.subject, guests_now(outside), action.ended)
        if action.ended:
            now_s = outside.clock.now()
            return [ch.CopiesEnded(action.subject, action.generation, now_s, action.copies)]
    if action.stood and action.register:
        try:  # it may have gone on in another way than by our thaw
            outside.manager.vouch(action.subject)
        except BusyError:
            # An answer to slurmctld's next ping does no harm, a registration might.
            action = replace(action, register=False)
    told = _prove(outside, action, set_s)
    return [*told, *read_node_and_jobs(outside, action.subject)]


def _probe(outside: Outside, action: act.ProbeJobs) -> list[ch.Change]:
    going, stopped = outside.providers[action.host].job_processes(action.host, action.subject)
    now_s = outside.clock.now()
    return [ch.Probed(action.subject, action.generation, now_s, stuck=stopped > 0 and going == 0)]


def _prove(outside: Outside, action: act.WakeInstance, set_s: float) -> list[ch.Change]:
    """Let the guest set its clock and prove itself; a provider that cannot look inside wakes it.

    By `set_s` the clock was set forward before.
    """
    provider, credentials = outside.providers[action.host], outside.credentials
    name, generation = action.subject, action.generation
    if not isinstance(provider, Prover):
        correction_s = set_s + provider.wake(action.host, name, guests_now(outside))
        return [ch.Woken(name, generation, outside.clock.now(), correction_s)]
    ours = credentials.make() if credentials is not None else ""
    now_s = guests_now(outside)
    report, theirs = provider.prove(action.host, name, now_s, ours, action.register)
    at_s = outside.clock.now()
    if credentials is not None:
        problem = credentials.check(theirs) if theirs else "it made no credential"
        fact = Fact(f"{MUNGE}:from the guest", not problem, problem or "")
        report = replace(report, facts=(*report.facts, fact))
    correction_s = set_s + report.correction_s
    return [ch.Woken(name, generation, at_s, correction_s), ch.Proven(name, generation, at_s, report)]
