"""Devices given to instances and taken back, through the port, as changes."""

from __future__ import annotations

from backfill.abilities import DeviceHolder
from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.engine.looking import Outside, read_instance
from backfill.ports import RefusedError


def lend(outside: Outside, action: act.HoldDevices | act.ReturnDevices) -> list[ch.Change]:
    """Do it, and look at the instance."""
    provider = outside.providers[action.host]
    if not isinstance(provider, DeviceHolder):
        raise RefusedError(action.name, f"the provider of {action.host} has no devices")
    if isinstance(action, act.HoldDevices):
        provider.hold(action.wanted, action.sharing)
    else:
        provider.give_back(action.host, action.name)
    return read_instance(outside, action.host, action.name)
