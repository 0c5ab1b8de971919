"""Stale domains: libvirtd died while it started them and still takes them for started.

Measured (libvirt 11.3): killed between its first note of a start and the emulator's process, it
finds the note again and shows the domain as paused (starting up), in the middle of a job that never
ends, after every further restart as well. No call helps; without its note it forgets the domain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libvirt

from backfill.drivers.libvirt.domains import Domain
from backfill.drivers.libvirt.states import DomainState, PausedReason, ShutoffReason
from backfill.ports.errors import BusyError

_STARTING = (DomainState.PAUSED, PausedReason.STARTING_UP)


class StaleDomain:
    """The stale domains of one host, by name, with the number that libvirtd gave to that start."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._known: dict[str, int] = {}

    def look(self, handle: Any, name: str, error: libvirt.libvirtError) -> None:
        """Look at a domain that could not be ended. BusyError with the remedy for one of these.

        libvirtd kills the emulator before it asks for the domain's lock: that it does not get the
        lock means that there is no process (any more).
        """
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_TIMEOUT:
            return
        if tuple(handle.state()) != _STARTING:
            return
        self._known[name] = handle.ID()
        raise BusyError(
            name,
            f"nothing of it runs, but libvirtd on {self._host}, which died while it started "
            "it, cannot let go of it",
            f"on {self._host} stop libvirtd, remove /run/libvirt/qemu/{name}.xml and start "
            "libvirtd: guests that run are not touched",
        )

    def as_it_is(self, handle: Any, domain: Domain | None) -> Domain | None:
        """The domain as libvirtd shows it, or ended where it is known to be one of these."""
        if domain is None or self._known.get(domain.name) != handle.ID():
            return domain
        if (domain.state, domain.reason) != _STARTING:
            return domain
        return replace(domain, state=DomainState.SHUTOFF, reason=ShutoffReason.CRASHED)
