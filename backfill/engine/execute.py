"""The one place for effects: each action becomes port calls, each result becomes changes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import assert_never

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.core.adopting import unknown_runs
from backfill.core.fence import judge
from backfill.core.sentences import sentence, sentences
from backfill.engine.abandoning import abandon
from backfill.engine.clone_parents import change_parents
from backfill.engine.confirm import end_job, spared
from backfill.engine.device_migration import holds_devices, move_with_devices
from backfill.engine.keeping import checkpoint
from backfill.engine.lending import lend
from backfill.engine.looking import (
    Outside,
    guests_now,
    read_instance,
    read_job,
    read_node,
    read_node_and_jobs,
)
from backfill.engine.prove import prove
from backfill.ports.capabilities import Throttler
from backfill.ports.errors import BusyError, DriverError, RefusedError
from backfill.ports.workload import NodeSpec

_CONSOLE_LINES = 12


def perform(outside: Outside, action: act.DriverAction) -> list[ch.Change]:
    """Do it, look at what it concerned, and return that as changes. Raises DriverError.

    Runs in a worker thread. Every branch is idempotent: it may be repeated after a crash.
    """
    if isinstance(action, act.NodeAction):
        return _on_node(outside, action)
    if isinstance(action, act.JobAction):
        return _on_job(outside, action)
    if isinstance(action, act.InstanceAction):
        return _on_instance(outside, action)
    if isinstance(action, act.GuestAction):
        return _in_guest(outside, action)
    if isinstance(action, act.DeviceAction):
        return lend(outside, action)
    if isinstance(action, act.CheckpointAction):
        return checkpoint(outside, action)
    if isinstance(action, act.ParentAction):
        return change_parents(outside, action)
    assert_never(action)


# --- Slurm -------------------------------------------------------------------------------------


def _on_node(
    outside: Outside,
    action: act.CreateNode | act.DeleteNode | act.DrainNode | act.UndrainNode | act.SetAddress | act.DownNode,
) -> list[ch.Change]:
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


def _on_job(
    outside: Outside,
    action: act.SuspendJob
    | act.ResumeJob
    | act.LimitJob
    | act.RequeueJob
    | act.CancelJob
    | act.TellJob
    | act.KickJob,
) -> list[ch.Change]:
    manager = outside.manager
    match action:
        case act.SuspendJob():
            manager.suspend_job(action.job_id)
        case act.ResumeJob():
            manager.resume_job(action.job_id)
        case act.LimitJob():
            manager.set_time_limit(action.job_id, action.limit_s)
        case act.RequeueJob() | act.CancelJob():
            return end_job(outside, action)
        case act.TellJob():
            manager.tell(action.job_id, action.text, action.over, aloud=action.aloud)
            return []
        case act.KickJob():
            manager.suspend_job(action.job_id)
            # Both orders travel by themselves; reading in between lets the first one go ahead.
            manager.read_jobs([action.job_id])
            manager.resume_job(action.job_id)
            kicked = ch.Kicked(action.subject, action.generation, outside.clock.now())
            return [kicked, *read_job(outside, action.job_id)]
        case _:
            assert_never(action)
    return read_job(outside, action.job_id)


# --- instances ---------------------------------------------------------------------------------


def _on_instance(outside: Outside, action: act.InstanceAction) -> list[ch.Change]:
    provider = outside.providers[action.asks]
    match action:
        case act.CreateInstance():
            provider.create(action.spec)
        case act.DeleteInstance():
            return abandon(outside, action) if action.off else _delete(outside, action)
        case act.SuspendInstance():
            return _suspend(outside, action)
        case act.RestoreInstance():
            provider.restore(action.host, action.subject)
        case act.MigrateInstance():
            return _migrate(outside, action)
        case act.CancelMove():
            provider.cancel_move(action.host, action.subject)
        case _:
            assert_never(action)
    return read_instance(outside, action.asks, action.subject)


def _delete(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Slurm and the hypervisor are asked anew first: what we knew may be old, or odd."""
    told = spared(outside, action)
    if not told:
        told = _last_words(outside, action) if action.last_words else []
        outside.providers[action.host].delete(action.host, action.subject)
        if outside.provisioner is not None:
            outside.provisioner.expel(action.subject, action.generation)
    return told + read_instance(outside, action.host, action.subject)


def _suspend(outside: Outside, action: act.SuspendInstance) -> list[ch.Change]:
    """Memory to disk; how long that took is compared with what was predicted."""
    began_s = outside.clock.now()
    written_mb = outside.providers[action.host].suspend(action.host, action.subject)
    now_s = outside.clock.now()
    written = ch.MemoryWritten(
        action.host, action.subject, now_s, written_mb, now_s - began_s, action.expected_s
    )
    told: list[ch.Change] = [written] if written_mb else []
    return told + read_instance(outside, action.host, action.subject)


def _throttle(outside: Outside, action: act.ThrottleInstance) -> list[ch.Change]:
    provider = outside.providers[action.host]
    if not isinstance(provider, Throttler):
        raise RefusedError(action.subject, f"the provider of {action.host} cannot throttle")
    provider.throttle(action.host, action.subject, action.percent)
    return read_instance(outside, action.host, action.subject)


def _last_words(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Read the console of an instance that never registered; without one it is removed all the same."""
    try:
        text = outside.providers[action.host].console(action.host, action.subject)
    except DriverError:
        return []
    lines = text.strip().splitlines()[-_CONSOLE_LINES:]
    now_s = outside.clock.now()
    return [ch.LastWords(action.subject, action.generation, now_s, "\n".join(lines))] if lines else []


def _migrate(outside: Outside, action: act.MigrateInstance) -> list[ch.Change]:
    provider = outside.providers[action.host]
    if outside.providers.get(action.target) is not provider:
        raise RefusedError(action.subject, f"{action.host} and {action.target} belong to different providers")
    if holds_devices(provider, action.subject):
        move_with_devices(provider, action.host, action.subject, action.target)
    else:
        provider.migrate(action.host, action.subject, action.target)
    return read_instance(outside, action.host, action.subject) + read_instance(
        outside, action.target, action.subject
    )


def _thaw(outside: Outside, action: act.ThawInstance) -> list[ch.Change]:
    """The fence, then the thaw: Slurm is asked anew, because what we knew may be old."""
    jobs = outside.manager.read_jobs([h.id for h in action.held]) if action.held else {}
    verdict = judge(action.subject, action.held, jobs)
    if verdict.stale:
        raise RefusedError(action.subject, f"not thawed: {sentence(verdict.stale)}")
    if doubt := unknown_runs(verdict.keep):
        raise RefusedError(action.subject, f"not thawed: {sentences(doubt)}")
    if action.held and not verdict.keep:
        raise RefusedError(action.subject, "not thawed: Slurm holds none of its jobs any more")
    # While it still stands still: from its first moment on slurmctld may ask who it is.
    outside.manager.vouch(action.subject)
    outside.providers[action.host].thaw(action.host, action.subject)
    return read_instance(outside, action.host, action.subject)


def _in_guest(outside: Outside, action: act.GuestAction) -> list[ch.Change]:
    match action:
        case act.PauseInstance():
            outside.providers[action.host].pause(action.host, action.subject)
            # The call itself has confirmed it, and a high-priority job waits: no second question.
            return [ch.InstanceStopped(action.host, action.subject, outside.clock.now())]
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


def _wake(outside: Outside, action: act.WakeInstance) -> list[ch.Change]:
    if action.stood and action.register:
        try:  # it may have gone on in another way than by our thaw
            outside.manager.vouch(action.subject)
        except BusyError:
            # An answer to slurmctld's next ping does no harm, a registration might.
            action = replace(action, register=False)
    told = prove(outside, action)
    return [*told, *read_node_and_jobs(outside, action.subject)]


def _probe(outside: Outside, action: act.ProbeJobs) -> list[ch.Change]:
    going, stopped = outside.providers[action.host].job_processes(action.host, action.subject)
    now_s = outside.clock.now()
    return [ch.Probed(action.subject, action.generation, now_s, stuck=stopped > 0 and going == 0)]
