"""Reading one libvirt domain handle: what it is, whose it is, and whether it is on its way out."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import libvirt

from backfill.drivers.libvirt import states
from backfill.drivers.libvirt.domain_xml import NAMESPACE, Label, parse_label
from backfill.ports import BusyError

STATS = libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BALLOON
_KIB_PER_MIB = 1024
_MIGRATION_OUT = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
_CALL_OFF_S, _CALL_OFF_POLL_S = 5.0, 0.002


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as last seen. `label` is None when it is not ours (whichever cluster's)."""

    name: str
    state: int
    reason: int
    persistent: bool
    label: Label | None
    rss_mb: int | None

    @property
    def active(self) -> bool:
        """Whether an emulator process exists."""
        return states.is_active(self.state)

    @property
    def saving(self) -> bool:
        """Whether its memory is being written to disk."""
        return states.is_saving(self.state, self.reason)


def call_off_migration(handle: Any, name: str) -> None:
    """End a migration away from here, if one is under way, and wait for that, whatever comes out.

    BusyError when it does not end.
    """
    if not _is_leaving(handle):
        return
    with contextlib.suppress(libvirt.libvirtError):
        handle.abortJob()  # fails in the last moments, when the migration can only end well
    deadline_s = time.monotonic() + _CALL_OFF_S
    while _is_leaving(handle):
        if time.monotonic() > deadline_s:
            raise BusyError(name, "its migration cannot be called off")
        time.sleep(_CALL_OFF_POLL_S)


def _is_leaving(handle: Any) -> bool:
    job = handle.jobStats()
    return bool(job["type"]) and job.get("operation") == _MIGRATION_OUT


def lookup(connection: Any, name: str) -> Any:
    """The handle of the domain called `name`, or None."""
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def seen(handle: Any, stats: dict[str, int]) -> Domain | None:
    """The domain with these STATS; None when it went away meanwhile."""
    state, rss_kib = int(stats["state.state"]), stats.get("balloon.rss")
    try:
        incoming = states.may_be_incoming(state, int(stats["state.reason"]))
        persistent = not incoming or bool(handle.isPersistent())
        label = label_of(handle)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
    return Domain(
        name=str(handle.name()),
        state=state,
        reason=int(stats["state.reason"]),
        persistent=persistent,
        label=label,
        rss_mb=None if rss_kib is None else int(rss_kib) // _KIB_PER_MIB,
    )


def label_of(handle: Any) -> Label | None:
    """Our label on the domain, whichever cluster's; None when it has none."""
    try:
        text = handle.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        raise
    return parse_label(str(text))
