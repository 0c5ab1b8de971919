"""Translates libvirt's errors into the typed errors of the ports."""

from __future__ import annotations

import errno

import libvirt

from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

# libvirt 11.2 tells it apart from an agent that is not there; our binding may be older.
AGENT_COMMAND_TIMEOUT = 112
_BY_CODE: dict[int, type[DriverError]] = {
    libvirt.VIR_ERR_NO_DOMAIN: NotFoundError,
    libvirt.VIR_ERR_DOM_EXIST: AlreadyThereError,
    libvirt.VIR_ERR_OPERATION_INVALID: BusyError,
    libvirt.VIR_ERR_OPERATION_TIMEOUT: BusyError,
    libvirt.VIR_ERR_RESOURCE_BUSY: BusyError,
    libvirt.VIR_ERR_OPERATION_ABORTED: BusyError,
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE: UnreachableError,
    libvirt.VIR_ERR_AGENT_UNSYNCED: UnreachableError,
    AGENT_COMMAND_TIMEOUT: UnreachableError,
    libvirt.VIR_ERR_NO_CONNECT: UnreachableError,
    libvirt.VIR_ERR_INVALID_CONN: UnreachableError,
    libvirt.VIR_ERR_UNKNOWN_HOST: UnreachableError,
    libvirt.VIR_ERR_NO_MEMORY: NoCapacityError,
    libvirt.VIR_ERR_AUTH_FAILED: RefusedError,
    libvirt.VIR_ERR_AUTH_UNAVAILABLE: RefusedError,
    libvirt.VIR_ERR_ACCESS_DENIED: RefusedError,
    libvirt.VIR_ERR_OPERATION_DENIED: RefusedError,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED: RefusedError,
    libvirt.VIR_ERR_NO_SUPPORT: RefusedError,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED: RefusedError,
    libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED: RefusedError,
    libvirt.VIR_ERR_CPU_INCOMPATIBLE: RefusedError,
    libvirt.VIR_ERR_MIGRATE_UNSAFE: RefusedError,
    libvirt.VIR_ERR_INVALID_ARG: RefusedError,
    libvirt.VIR_ERR_XML_ERROR: RefusedError,
    libvirt.VIR_ERR_XML_DETAIL: RefusedError,
    libvirt.VIR_ERR_XML_INVALID_SCHEMA: RefusedError,
}
# Of an error of the system: its errno comes along from libvirtd (measured on 9.0).
_BY_ERRNO: dict[int, type[DriverError]] = {
    errno.ENOSPC: NoCapacityError,
    errno.EDQUOT: NoCapacityError,
    errno.ENOMEM: NoCapacityError,
}
# For errors whose code says only "failed". QEMU speaks English: libvirt starts it with LC_ALL=C. What
# libvirt says in another language is a plain DriverError, after which the call is repeated.
_BY_TEXT: tuple[tuple[str, type[DriverError]], ...] = (
    ("No space left on device", NoCapacityError),
    ("Cannot allocate memory", NoCapacityError),
    ("cannot set up guest memory", NoCapacityError),
    ("already exists", AlreadyThereError),
    # The emulator has sent its memory once and has not run since (libvirtd died in between):
    # until it is thawed it can be neither saved nor moved.
    ("paused due to previous migration", BusyError),
    # The emulator has stopped with an internal error: what was in the guest cannot go on.
    ("Resetting the Virtual Machine is required", RefusedError),
)
# Codes that libvirt also uses for other things, but from its network layer mean a lost connection.
_LINK_DOMAINS = frozenset({libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE})


def kind_of(code: int, domain: int, text: str, number: int = 0) -> type[DriverError]:
    """Return the typed error that stands for libvirt's `code` (virErrorNumber) from `domain`.

    `number`: errno, where the code is that of an error of the system.
    An error without a code (0) is the binding's own: libvirt's was lost, as when libvirtd dies in
    the middle of a call. Then nobody knows what came of it, whatever the text says.
    """
    if not code:
        return UnreachableError
    if code in _BY_CODE:
        return _BY_CODE[code]
    if domain in _LINK_DOMAINS:
        return UnreachableError
    if code == libvirt.VIR_ERR_SYSTEM_ERROR and number in _BY_ERRNO:
        return _BY_ERRNO[number]
    for part, kind in _BY_TEXT:
        if part in text:
            return kind
    return DriverError


def lost(error: libvirt.libvirtError) -> bool:
    """Return True if libvirt did not answer: what was asked is not known."""
    return _kind(error) is UnreachableError


def is_unsupported(error: DriverError) -> bool:
    """Return True if libvirt said that the host cannot have a domain as its document describes it."""
    cause = error.__cause__
    return (
        isinstance(cause, libvirt.libvirtError)
        and cause.get_error_code() == libvirt.VIR_ERR_CONFIG_UNSUPPORTED
    )


def translate(error: libvirt.libvirtError, subject: str, host: str) -> DriverError:
    """Make the typed error for `error`, which came up while `subject` was handled on `host`."""
    text, kind = _text(error), _kind(error)
    if kind is UnreachableError:
        return kind(subject, f"no answer through libvirt on {host}: {text}")
    if kind is NotFoundError:
        return kind(subject, f"there is no such instance on {host} any more: {text}")
    return kind(subject, f"libvirt on {host} said: {text}")


def _kind(error: libvirt.libvirtError) -> type[DriverError]:
    code, domain = error.get_error_code() or 0, error.get_error_domain() or 0
    return kind_of(code, domain, _text(error), error.get_int1() or 0)


def _text(error: libvirt.libvirtError) -> str:
    return " ".join(str(error).split())
