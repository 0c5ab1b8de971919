"""Devices given to instances and taken back, through the port, as changes."""

from __future__ import annotations

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.engine.device_migration import put_in, take_out
from backfill.engine.looking import Outside, read_instance
from backfill.ports.capabilities import DeviceHolder
from backfill.ports.errors import RefusedError

_Lending = act.HoldDevices | act.ReturnDevices | act.UnplugDevices | act.PlugDevices


def lend(outside: Outside, action: _Lending) -> list[ch.Change]:
    """Do it, and look at the instance."""
    provider = outside.providers[action.host]
    if not isinstance(provider, DeviceHolder):
        raise RefusedError(action.subject, f"the provider of {action.host} has no devices")
    match action:
        case act.HoldDevices():
            provider.hold(action.wanted, action.sharing)
        case act.ReturnDevices():
            provider.give_back(action.host, action.subject)
        case act.UnplugDevices():
            take_out(provider, action.host, action.subject)
        case act.PlugDevices():
            put_in(provider, action.host, action.subject)
    return read_instance(outside, action.host, action.subject)
