"""Commands to a domain's emulator: what libvirt has no call for, or does not tell of.

An emulator that received a guest's memory takes over its disks only when the guest runs. If it is
told before that to save or move the guest once more, QEMU aborts and the guest is lost (measured on
7.2: "bdrv_inactivate_recurse: Assertion ... BDRV_O_INACTIVE"). QEMU 10 has a command that takes
them over; before it, offering each disk over NBD for a moment has the same effect.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt_qemu

from backfill.ports.errors import BusyError

# Asks the emulator: command and arguments in, its answer out; MonitorError where it says no.
Monitor = Callable[[str, dict[str, object]], Any]
_UNKNOWN = "CommandNotFound"
# A device, and libvirt's name of the memory behind its region.
_REGION_BLOCK = re.compile(r"/shmmem-\S")


def monitor_of(domain: Any) -> Monitor:
    """Return a function that gives the domain's emulator an order."""

    def ask(command: str, arguments: dict[str, object]) -> Any:
        request = {"execute": command, "arguments": arguments}
        answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, json.dumps(request), 0))
        if "error" in answer:
            raise MonitorError(answer["error"]["class"], answer["error"]["desc"])
        return answer["return"]

    return ask


class MonitorError(Exception):
    """The emulator refused a command; `kind` is its class of error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def has_sent_all(ask: Monitor) -> bool:
    """Return True if the emulator has sent its memory once and not run since: it never sends it again."""
    return bool(ask("query-status", {})["status"] == "postmigrate")


def keeps_region(ask: Monitor) -> bool:
    """Return True if shared memory of a region is part of the guest still, though it may have left.

    QEMU frees it a moment after libvirt shows the region no longer (50 ms measured on 7.2, beside
    other load). What is saved or sent meanwhile names it, and no other emulator accepts that
    ("Unknown ramblock").
    """
    blocks = ask("human-monitor-command", {"command-line": "info ramblock"})
    return _REGION_BLOCK.search(blocks) is not None


def own_disks(ask: Monitor, name: str, socket: Path) -> None:
    """Take over all disks of a guest that stands still; harmless where that has happened.

    `socket` is a path on its host, in a folder that only the emulator's user can write. BusyError
    where it cannot be done: then the guest must run before it can be saved or moved.
    """
    try:
        _own(ask, socket)
    except MonitorError as error:
        raise BusyError(name, f"it has not run since it came here and cannot leave yet ({error})") from error


def _own(ask: Monitor, socket: Path) -> None:
    try:
        ask("blockdev-set-active", {"active": True})
    except MonitorError as error:
        if error.kind != _UNKNOWN:
            raise
    else:
        return
    with contextlib.suppress(MonitorError):
        ask("nbd-server-stop", {})  # one that an earlier call did not come to stop
    ask("nbd-server-start", {"addr": {"type": "unix", "data": {"path": str(socket)}}})
    try:
        for number, disk in enumerate(_disks(ask)):
            export = {"type": "nbd", "id": f"owned-{number}", "node-name": disk}
            ask("block-export-add", {**export, "writable": False})
    finally:
        ask("nbd-server-stop", {})


def _disks(ask: Monitor) -> list[str]:
    inserted = (device.get("inserted") for device in ask("query-block", {}))
    return [str(medium["node-name"]) for medium in inserted if medium]
