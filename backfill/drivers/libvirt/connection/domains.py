"""Reading one libvirt domain handle: what it is, whose it is, and whether it is on its way out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import libvirt

from backfill.drivers.libvirt.connection import states
from backfill.drivers.libvirt.connection.domain_xml import (
    NAMESPACE,
    PREFIX,
    Frozen,
    Label,
    label_text,
    parse_label,
)
from backfill.drivers.libvirt.connection.states import DomainState, PausedReason, ShutoffReason
from backfill.drivers.libvirt.errors import lost
from backfill.ports.errors import BusyError

STATS = libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BALLOON
_KIB_PER_MIB = 1024
# The kernel's own period; a quota of -1 is none, and libvirt takes no less than 1 ms.
_PERIOD_US, _NO_QUOTA, _LEAST_QUOTA_US = 100_000, -1, 1_000
_MIGRATION_OUT = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
_STARTING = (DomainState.PAUSED, PausedReason.STARTING_UP)


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as last seen. `label` is None when it is not ours (whichever cluster's).

    `saving`: its memory is being written to disk at this moment. `managed_save`: it does not run, and
    libvirtd has memory of it in a file of its own, from which whoever starts it lets it go on.
    """

    name: str
    state: int
    reason: int
    persistent: bool
    label: Label | None
    rss_mb: int | None
    saving: bool
    throttled: bool = False
    managed_save: bool = False

    @property
    def active(self) -> bool:
        """Return True if an emulator process exists."""
        return states.is_active(self.state)

    @property
    def was_saved(self) -> bool:
        """Return True if it does not run because its memory was written to disk, by libvirtd's word."""
        return states.was_saved(self.state, self.reason)


def refuse_if_leaving(handle: Any, name: str) -> None:
    """BusyError while a migration takes the domain to another host.

    Measured (libvirt 9.0, QEMU 7.2): a domain that is paused in the middle of its migration runs
    on at the target, and a cancellation in the moment of the switch-over leaves libvirt or QEMU
    waiting for ever. So nobody may interfere, and the room is free when it has left.
    """
    if _job(handle) == _MIGRATION_OUT:
        raise BusyError(name, "it is on its way to another host", "wait until it has left")


def _job(handle: Any) -> int | None:
    """Return its long job under way (virDomainJobOperation); None if there is none."""
    try:
        job = handle.jobStats()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
            return None  # it does not run
        raise
    return int(job.get("operation", 0)) if job["type"] else None


def throttle(handle: Any, percent: int | None) -> None:
    """Leave the domain's CPUs `percent` of the time; None: all of it."""
    quota_us = _NO_QUOTA if percent is None else max(_LEAST_QUOTA_US, _PERIOD_US * percent // 100)
    limits = {"vcpu_period": _PERIOD_US, "vcpu_quota": quota_us}
    handle.setSchedulerParametersFlags(limits, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def throttled(handle: Any) -> bool:
    """Return True if the domain's CPUs have a quota that leaves them less than all of the time."""
    try:
        limits = handle.schedulerParametersFlags(libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        if lost(error):
            raise
        return False  # no control group for CPUs, or the domain has just ended
    return 0 < int(limits.get("vcpu_quota", _NO_QUOTA)) < int(limits.get("vcpu_period", 0))


def lookup(connection: Any, name: str, again: bool = True) -> Any:
    """Look up the handle of the domain called `name`, or None."""
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        # The binding loses the code when Python frees another handle in the same instant.
        if error.get_error_code() is None and again:
            return lookup(connection, name, again=False)
        raise


def seen(handle: Any, stats: dict[str, int]) -> Domain | None:
    """Read the domain with these STATS; None when it went away meanwhile."""
    state, reason = int(stats["state.state"]), int(stats["state.reason"])
    rss_kib = stats.get("balloon.rss")
    try:
        incoming = states.may_be_incoming(state, reason)
        persistent = not incoming or bool(handle.isPersistent())
        # The reason alone may be left over from a save that broke off.
        saving = states.may_be_saving(state, reason) and _job(handle) is not None
        label = label_of(handle)
        # libvirtd tells it by heart, and forgets with its restart why the domain does not run.
        kept = label is not None and not states.is_active(state) and bool(handle.hasManagedSaveImage())
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
    return Domain(
        name=str(handle.name()),
        state=state,
        reason=reason,
        persistent=persistent,
        label=label,
        rss_mb=None if rss_kib is None else int(rss_kib) // _KIB_PER_MIB,
        saving=saving,
        throttled=label is not None and states.is_active(state) and throttled(handle),
        managed_save=kept,
    )


def weight_of(handle: Any) -> int | None:
    """Read the CPU weight of a running domain; None where the host knows no weights."""
    try:
        return int(handle.schedulerParameters()["cpu_shares"])
    except (libvirt.libvirtError, KeyError):
        return None


def label_of(handle: Any) -> Label | None:
    """Our label on the domain, whichever cluster's; None when it has none."""
    try:
        text = handle.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        raise
    return parse_label(str(text))


def mark_frozen(handle: Any, frozen: Frozen) -> None:
    """Write into our label whether its guest froze its jobs."""
    label = label_of(handle)
    if label is None or label.frozen is frozen:
        return
    where = libvirt.VIR_DOMAIN_AFFECT_LIVE
    if handle.isPersistent():
        where |= libvirt.VIR_DOMAIN_AFFECT_CONFIG
    text = label_text(replace(label, frozen=frozen))
    handle.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, text, PREFIX, NAMESPACE, where)


class StaleDomain:
    """The stale domains of one host, by name, with the number that libvirtd gave to that start.

    Measured (libvirt 11.3): a libvirtd that is killed between its first note of a start and the
    emulator's process finds the note again and shows the domain as paused (starting up), in the
    middle of a job that never ends, after every further restart as well. No call helps; without
    its note it forgets the domain.
    """

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
        """Return the domain as libvirtd shows it, or ended where it is known to be one of these."""
        if domain is None or self._known.get(domain.name) != handle.ID():
            return domain
        if (domain.state, domain.reason) != _STARTING:
            return domain
        return replace(domain, state=DomainState.SHUTOFF, reason=ShutoffReason.CRASHED)
