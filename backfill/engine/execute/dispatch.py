"""Has each action performed by the part that can, and turns every way in which that ends into a result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.engine.execute.devices import lend
from backfill.engine.execute.guest import in_guest
from backfill.engine.execute.instances import change_parents, checkpoint, on_instance
from backfill.engine.execute.pilots import with_pilot
from backfill.engine.execute.slurm import in_slurm
from backfill.engine.looking import Outside
from backfill.engine.messages import CallResult
from backfill.engine.narrate import sentence
from backfill.ports.errors import DriverError, unreadable

_LOG = logging.getLogger("backfill.workers")


def attempt(outside: Outside, action: act.DriverAction, monotonic: Callable[[], float]) -> CallResult:
    """Perform one action and turn every way in which it can end into a result."""
    began_s = monotonic()
    try:
        changes = _perform(outside, action)
    except DriverError as error:
        return CallResult(action, (), str(error), error.retry, monotonic() - began_s)
    except OSError as error:
        problem = str(unreadable(action.subject or "the call", error))
        _LOG.warning("%s failed: %s", sentence(action), problem)
        return CallResult(action, (), problem, True, monotonic() - began_s)
    except Exception as error:  # noqa: BLE001 - a defect in a driver must not lose the operation
        _LOG.exception("%s failed in an unforeseen way", sentence(action))
        return CallResult(action, (), f"defect in the driver: {error!r}", True, monotonic() - began_s)
    return CallResult(action, tuple(changes), elapsed_s=monotonic() - began_s)


def _perform(outside: Outside, action: act.DriverAction) -> list[ch.Change]:
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
