"""Hands each action to the part that performs it."""

from __future__ import annotations

from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.engine.execute.devices import lend
from backfill.engine.execute.guest import in_guest
from backfill.engine.execute.instances import change_parents, checkpoint, on_instance
from backfill.engine.execute.pilots import with_pilot
from backfill.engine.execute.slurm import in_slurm
from backfill.engine.looking import Outside


def perform(outside: Outside, action: act.DriverAction) -> list[ch.Change]:
    """Do it, look at what it concerned, and return that as changes. Raises DriverError.

    Runs in a worker thread. Every branch is idempotent: it may be repeated after a crash.
    """
    if isinstance(action, act.SlurmAction):
        return in_slurm(outside, action)
    if isinstance(action, act.InstanceAction):
        return on_instance(outside, action)
    if isinstance(action, act.GuestAction):
        return in_guest(outside, action)
    if isinstance(action, act.DeviceAction):
        return lend(outside, action)
    if isinstance(action, act.CheckpointAction):
        return checkpoint(outside, action)
    if isinstance(action, act.ParentAction):
        return change_parents(outside, action)
    if isinstance(action, act.PilotAction):
        return with_pilot(outside, action)
    assert_never(action)
