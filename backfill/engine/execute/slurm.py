"""Actions on Slurm's nodes and jobs."""

from __future__ import annotations

import contextlib
from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.engine.execute.confirm import end_job
from backfill.engine.looking import Outside, guests_now, read_job, read_node
from backfill.ports.capabilities import JobWarner
from backfill.ports.errors import BusyError, DriverError, RefusedError
from backfill.ports.workload import NodeSpec


def in_slurm(outside: Outside, action: act.SlurmAction) -> list[ch.Change]:
    """Do it, and read what it concerned."""
    if isinstance(action, act.NodeAction):
        return _on_node(outside, action)
    if isinstance(action, act.JobAction):
        return _on_job(outside, action)
    return _for_own_machines(outside, action)


def _on_node(outside: Outside, action: act.NodeAction) -> list[ch.Change]:
    """Do it, and read the node."""
    manager = outside.manager
    match action:
        case act.CreateNode():
            spec = NodeSpec(action.subject, action.address, action.cpus, action.memory_mb, action.features)
            manager.create_node(spec)
        case act.DeleteNode():
            manager.delete_node(action.subject)
        case act.DrainNode():
            manager.drain(action.subject, action.reason)
        case act.UndrainNode():
            _release(outside, action)
        case act.SetAddress():
            manager.set_address(action.subject, action.address)
        case act.DownNode():
            manager.set_down(action.subject, action.reason)
        case _:
            assert_never(action)
    return read_node(outside, action.subject)


def _release(outside: Outside, action: act.UndrainNode) -> None:
    """Undrain, and do not wait until slurmctld asks: its next ping may be far away.

    A node whose drain was lifted counts as NOT_RESPONDING until it has been heard. A report of its
    slurmd is heard within 30 ms, an answer to the ping that slurmctld sends within 0.5 to 10 s
    (measured on 22.05; the longer, the more other nodes are silent). A report costs an emulated
    guest 0.3 s of CPU time, so one that Slurm has just heard is not asked for another.
    """
    if outside.manager.undrain(action.subject, heard=action.heard):
        return
    provider = outside.providers.get(action.host)
    if provider is not None:
        # Without it the node is heard all the same, only later.
        with contextlib.suppress(DriverError):
            provider.wake(action.host, action.subject, guests_now(outside))
    outside.manager.nudge(action.subject)


def _warn(outside: Outside, action: act.WarnJob) -> None:
    """By Slurm, or in the guest."""
    if action.signal:
        outside.manager.signal_job(action.job_id, action.signal)
        return
    provider = outside.providers[action.host]
    if not isinstance(provider, JobWarner):
        raise RefusedError(action.subject, f"the provider of {action.host} cannot reach jobs in its guests")
    if action.command:
        provider.run_for(action.host, action.subject, action.number, action.user, action.command)
    else:
        provider.announce(action.host, action.subject, action.number, action.ends_s)


def _on_job(outside: Outside, action: act.JobAction) -> list[ch.Change]:
    """Do it, and read the job."""
    manager = outside.manager
    match action:
        case act.SuspendJob() | act.KickJob():
            return _suspend(outside, action)
        case act.ResumeJob():
            manager.resume_job(action.job_id)
        case act.LimitJob():
            manager.set_time_limit(action.job_id, action.limit_s)
        case act.RequeueJob() | act.CancelJob():
            return end_job(outside, action)
        case act.TellJob():
            manager.tell(action.job_id, action.text, action.over, aloud=action.aloud)
            return []
        case act.WarnJob():
            _warn(outside, action)
        case _:
            assert_never(action)
    return read_job(outside, action.job_id)


def _suspend(outside: Outside, action: act.SuspendJob | act.KickJob) -> list[ch.Change]:
    """Suspend it, and let it go on at once for a kick; what was suspended before is left as it is."""
    manager = outside.manager
    if not manager.suspend_job(action.job_id):
        found = ch.AlreadySuspended(action.subject, action.generation, action.key, action.job_id)
        return [found, *read_job(outside, action.job_id)]
    if isinstance(action, act.SuspendJob):
        return read_job(outside, action.job_id)
    # Both orders travel by themselves; reading in between lets the first one go ahead.
    manager.read_jobs([action.job_id])
    manager.resume_job(action.job_id)
    kicked = ch.Kicked(action.subject, action.generation, outside.clock.now())
    return [kicked, *read_job(outside, action.job_id)]


def _for_own_machines(outside: Outside, action: act.OwnMachinesAction) -> list[ch.Change]:
    """Hold a job, keep its machines for it, let it go or end it, and read it."""
    manager = outside.manager
    match action:
        case act.HoldJob():
            manager.hold_job(action.job_id)
            _say(outside, action)
        case act.PinJob():
            pin = manager.pin_inside if action.inside else manager.pin_job
            pin(action.job_id, action.nodes)
        case act.UnpinJob():
            manager.unpin_job(action.job_id)
        case act.ReleaseJob():
            _say(outside, action)
            manager.release_job(action.job_id)
        case act.NameMachines():
            manager.tell(action.job_id, action.text)
        case act.EndInside():
            _end_inside(outside, action)
        case act.RevokeJob():
            manager.revoke_job(action.job_id, action.reason)
        case _:
            assert_never(action)
    return read_job(outside, action.job_id)


def _end_inside(outside: Outside, action: act.EndInside) -> None:
    """Nothing of it is ended unless Slurm shows that the run is over whose machines these are, or has shown
    nothing of it for long.
    """
    found = outside.manager.read_jobs([action.of]).get(action.of)
    if found is None and not action.missing:
        raise BusyError(
            f"job {action.job_id}", f"Slurm does not show job {action.of}, in whose machines it is"
        )
    if found is not None and found.active and found.restarts == action.restarts:
        raise BusyError(f"job {action.job_id}", f"job {action.of}, in whose machines it is, is still there")
    outside.manager.cancel_job(action.job_id)


def _say(outside: Outside, action: act.HoldJob | act.ReleaseJob) -> None:
    """Where somebody else has written something to its owner, that stays."""
    with contextlib.suppress(RefusedError):
        outside.manager.tell(action.job_id, action.text)
