"""Taking over the disks of a guest that stands still, against an emulator that keeps its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.drivers.libvirt.connection.monitor import MonitorError, own_disks
from backfill.ports.errors import BusyError

SOCKET = Path("/nowhere/disks.sock")


class Emulator:
    """What QEMU does with the few commands that concern its disks."""

    def __init__(self, *, modern: bool = False, broken: bool = False, serving: bool = False) -> None:
        self.modern, self.broken, self.serving = modern, broken, serving
        self.inactive = {"disk", "seed"}

    def ask(self, command: str, arguments: dict[str, object]) -> object:
        match command:
            case "blockdev-set-active" if self.modern:
                self.inactive.clear()
            case "query-block":
                media = ({"inserted": {"node-name": name}} for name in ("disk", "seed"))
                return [*media, {"device": "an empty drive"}]
            case "nbd-server-start" if not self.serving:
                self.serving = True
            case "nbd-server-stop" if self.serving:
                self.serving = False
            case "block-export-add" if self.serving and not self.broken:
                assert arguments["writable"] is False
                self.inactive.discard(str(arguments["node-name"]))
            case "nbd-server-start" | "nbd-server-stop" | "block-export-add":
                raise MonitorError("GenericError", f"{command} does not work now")
            case _:
                raise MonitorError("CommandNotFound", f"no {command} here")
        return {}


@pytest.mark.parametrize("emulator", [Emulator(modern=True), Emulator(), Emulator(serving=True)])
def test_all_disks_are_owned_and_nothing_is_served_afterwards(emulator: Emulator) -> None:
    """By the command made for it or by the older way, also after a call that did not finish."""
    own_disks(emulator.ask, "vn1", SOCKET)
    assert emulator.inactive == set()
    assert emulator.modern or not emulator.serving


def test_a_guest_that_cannot_leave_stays_as_it_is() -> None:
    """It is refused for now: sending it on would end the emulator."""
    emulator = Emulator(broken=True)
    with pytest.raises(BusyError, match="vn1: it has not run since it came here"):
        own_disks(emulator.ask, "vn1", SOCKET)
    assert not emulator.serving
