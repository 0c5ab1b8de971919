"""Devices lent to instances: given, taken out of a guest before it moves or is saved, put in again."""

from __future__ import annotations

import contextlib
import logging

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED
from backfill.core.model.fleet import InstanceState
from backfill.engine.looking import Outside, read_instance, read_job
from backfill.ports.capabilities import DeviceHolder
from backfill.ports.errors import BusyError, DriverError, RefusedError
from backfill.ports.provider import InstanceProvider

_LOG = logging.getLogger("backfill.devices")
BEFORE, AFTER = "before-move", "after-move"


def lend(outside: Outside, action: act.DeviceAction) -> list[ch.Change]:
    """Do it, and read the instance. Nothing is taken from a job that Slurm shows there when it is asked anew.

    Raises DriverError.
    """
    provider = outside.providers[action.host]
    if not isinstance(provider, DeviceHolder):
        raise RefusedError(action.subject, f"the provider of {action.host} has no devices")
    match action:
        case act.HoldDevices():
            provider.hold(action.wanted, action.sharing)
        case act.ReturnDevices():
            if shown := _shown_there(outside, provider, action):
                return shown
            provider.give_back(action.host, action.subject)
        case act.UnplugDevices():
            take_out(provider, action.host, action.subject)
        case act.PlugDevices():
            put_in(provider, action.host, action.subject)
    return read_instance(outside, action.host, action.subject)


def _shown_there(outside: Outside, provider: DeviceHolder, action: act.ReturnDevices) -> list[ch.Change]:
    """Return Slurm's word of the jobs that hold what the instance has, if one of them is on its node.

    One whose own machine it is may have them before it begins, and from bare-metal nodes of its own.
    """
    name = action.subject
    holders = sorted({holding.job for holding in provider.holdings() if holding.instance == name})
    jobs = outside.manager.read_jobs(holders) if holders else {}
    there = any(job.holds_nodes and name in job.nodes for job in jobs.values())
    own = jobs.get(action.of)
    if not there and (own is None or own.state in ENDED):
        return []
    return [change for holder in holders for change in read_job(outside, holder)]


def holds_devices(provider: InstanceProvider, name: str) -> bool:
    """Return True if the instance holds anything that cannot move with it."""
    if not isinstance(provider, DeviceHolder):
        return False
    return any(h.instance == name for h in provider.holdings())


def take_out(provider: DeviceHolder, host: str, name: str) -> None:
    """Guest's hook → unplug; when either fails the guest has its devices, and is told so."""
    try:
        provider.hook(host, name, BEFORE)
        provider.unplug(host, name)
    except DriverError:
        _at_work_again(provider, host, name)
        raise


def put_in(provider: DeviceHolder, host: str, name: str) -> None:
    """Plug → guest's hook."""
    provider.plug(host, name)
    provider.hook(host, name, AFTER)


def move_with_devices(provider: InstanceProvider, host: str, name: str, target: str) -> None:
    """Guest's hook → unplug → migrate → plug → guest's hook. Raises DriverError.

    Until the instance has left, whatever fails is undone: it works on where it was, with its
    devices. When the target cannot plug, it comes back. Each step has the limit of its own call.
    """
    assert isinstance(provider, DeviceHolder)
    refusal = provider.room_for(target, name)
    if refusal:
        raise BusyError(name, f"it cannot move to {target}: {refusal}")
    seen = provider.read(host, name)
    if seen is not None and not seen.plugged and seen.state is not InstanceState.RUNNING:
        provider.migrate(host, name, target)  # it gets them there when it goes on
        return
    take_out(provider, host, name)
    try:
        provider.migrate(host, name, target)
    except DriverError:
        if provider.read(host, name) is not None:
            _at_work_again(provider, host, name)
        raise
    try:
        provider.plug(target, name)
    except DriverError as error:
        _come_back(provider, host, name, target, error)
    provider.hook(target, name, AFTER)


def _come_back(provider: InstanceProvider, host: str, name: str, target: str, error: DriverError) -> None:
    assert isinstance(provider, DeviceHolder)
    try:
        provider.migrate(target, name, host)
    except DriverError as stuck:
        raise BusyError(
            name,
            f"it is on {target} without its devices ({error}) and cannot go back ({stuck})",
            f"make its devices free on {target}; plugging is tried again with the next move",
        ) from error
    _at_work_again(provider, host, name)
    raise BusyError(name, f"{target} could not plug its devices, so it came back: {error}")


def _at_work_again(provider: DeviceHolder, host: str, name: str) -> None:
    """Put back what was taken out of the guest. The first failure is the one that is reported."""
    for step in (provider.plug, lambda h, n: provider.hook(h, n, AFTER)):
        with contextlib.suppress(DriverError):
            step(host, name)
            continue
        _LOG.warning("%s works on %s without what was to be put back", name, host)
