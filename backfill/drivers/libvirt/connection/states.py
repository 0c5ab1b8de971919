"""Translates libvirt's domain states, with their reasons, into ours. Pure."""

from __future__ import annotations

from enum import IntEnum

from backfill.core.model.fleet import InstanceState


class DomainState(IntEnum):
    """virDomainState of libvirt-domain.h."""

    NOSTATE = 0
    RUNNING = 1
    BLOCKED = 2
    PAUSED = 3
    SHUTDOWN = 4
    SHUTOFF = 5
    CRASHED = 6
    PMSUSPENDED = 7


class RunningReason(IntEnum):
    """The members of virDomainRunningReason that matter here."""

    BOOTED = 1
    UNPAUSED = 5


class PausedReason(IntEnum):
    """The members of virDomainPausedReason that matter here."""

    MIGRATION = 2
    SAVE = 3
    IO_ERROR = 5
    WATCHDOG = 6
    PANICKED = 10
    STARTING_UP = 11
    POSTCOPY_FAILED = 13


class ShutoffReason(IntEnum):
    """The members of virDomainShutoffReason that matter here."""

    CRASHED = 3
    SAVED = 5
    FAILED = 6


_BEING_FILLED = (PausedReason.STARTING_UP, PausedReason.MIGRATION)


def is_active(state: int) -> bool:
    """Return True if an emulator process exists."""
    return state not in (DomainState.NOSTATE, DomainState.SHUTOFF, DomainState.CRASHED)


def may_be_saving(state: int, reason: int) -> bool:
    """Return True if only its job tells if its memory is being written to disk."""
    return state == DomainState.PAUSED and reason == PausedReason.SAVE


def was_saved(state: int, reason: int) -> bool:
    """Return True if libvirtd says that it does not run because its memory was written to disk."""
    return state == DomainState.SHUTOFF and reason == ShutoffReason.SAVED


def instance_state(state: int, reason: int, persistent: bool, saved: bool) -> InstanceState:
    """Our state. `saved`: a complete memory image is on disk.

    Measured: an incoming migration shows as PAUSED, first STARTING_UP then MIGRATION, and becomes
    persistent only when it is complete; a restored instance stays PAUSED with reason MIGRATION.
    """
    if state in (DomainState.PAUSED, DomainState.PMSUSPENDED):
        return _standing_still(reason, persistent)
    if is_active(state):
        return InstanceState.RUNNING
    if saved:
        return InstanceState.SUSPENDED
    if state == DomainState.CRASHED or reason in (ShutoffReason.CRASHED, ShutoffReason.FAILED):
        return InstanceState.CRASHED
    return InstanceState.OFF


_ODD: dict[int, str] = {
    PausedReason.IO_ERROR: (
        "QEMU stopped it because it could not write to its disk; make room on the file system of "
        "its disk, or mend it: it goes on where it stopped"
    ),
    PausedReason.PANICKED: "its kernel has panicked; look at its console",
    PausedReason.POSTCOPY_FAILED: (
        "its move broke off after it had changed hosts, so that a part of its memory is on each: "
        "it cannot go on where it stopped"
    ),
    PausedReason.WATCHDOG: "its own watchdog stopped it; look at its console",
}


def odd(state: int, reason: int) -> str | None:
    """Say what stopped its guest without anybody's order, with the next step, or None."""
    return _ODD.get(reason) if state == DomainState.PAUSED else None


def may_be_restarted(state: int, reason: int) -> bool:
    """Return True if a memory image on disk tells that it was booted anew by somebody else.

    We remove the image before a restored guest goes on; a guest whose save failed has its own
    reason, and so has one that somebody else restored.
    """
    running = state in (DomainState.RUNNING, DomainState.BLOCKED)
    return running and reason in (RunningReason.BOOTED, RunningReason.UNPAUSED)


def may_be_incoming(state: int, reason: int) -> bool:
    """Return True if only its persistence tells if a migration is still bringing it here."""
    return state == DomainState.PAUSED and reason in _BEING_FILLED


def _standing_still(reason: int, persistent: bool) -> InstanceState:
    if reason in _BEING_FILLED and not persistent:
        return InstanceState.MIGRATING
    if reason == PausedReason.STARTING_UP:
        return InstanceState.BUILDING
    return InstanceState.PAUSED
