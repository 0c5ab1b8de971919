"""The proof of a host, before instances are made on it: its clock, the directory we share, its filter.

It runs beside everything else, on a connection of its own: a directory that hangs on the host, or
here, keeps no reading and no eviction waiting. Nothing is destroyed for it, and what is there stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import libvirt

from backfill.drivers.libvirt.connection.storage import as_pool
from backfill.drivers.libvirt.errors import lost
from backfill.drivers.libvirt.filtering import GuestFilter
from backfill.ports.errors import DriverError

# A proven host may lose its mount, and its clock its source.
_EVERY_S = 600.0
_AGAIN_S = 20.0
_LEFT_S = 3600.0
_END_S = 5.0
_FIRST = "it is just being proven: its clock, and that it shares its directory with the daemon"
# Memory of the host: what is made there has the time of the host's clock, and of no file server's.
_LOCAL = "/run"
_PREFIX = ".backfill-proof-"
_EMPTY = "<volume><name>{name}</name><capacity>0</capacity><allocation>0</allocation></volume>"


@dataclass(frozen=True, slots=True)
class HostTerms:
    """What a host has to show. `root`: the directory that it shares with the daemon's machine.

    `clock_offset_s`: how far its clock may be off the daemon's, the error of measuring included.
    `guest_filter`: what it has to know before it is given a guest that refers to it.
    """

    root: Path
    clock_offset_s: float
    guest_filter: GuestFilter | None = None


def prove(connection: Any, host: str, terms: HostTerms, now: Callable[[], float] = time.time) -> str | None:
    """Try a host over its own connection; return what is wrong, and what to do; None: nothing.

    Raises libvirtError where it does not answer.
    """
    problem = _clock(connection, host, terms, now) or _directory(connection, host, terms.root)
    if problem or terms.guest_filter is None:
        return problem
    return _filter(connection, host, terms.guest_filter)


def _clock(connection: Any, host: str, terms: HostTerms, now: Callable[[], float]) -> str | None:
    try:
        with as_pool(connection, _LOCAL, "backfill-clock") as pool:
            began_s = now()
            volume = pool.createXML(_EMPTY.format(name=_name()))
            ended_s = now()
            try:
                made_s = float(_stamp(volume))
            finally:
                volume.delete()
    except libvirt.libvirtError as error:
        return _failed(host, error, f"its clock cannot be read through {_LOCAL} there")
    bound_s = (ended_s - began_s) / 2
    offset_s = made_s - (began_s + ended_s) / 2
    if abs(offset_s) + bound_s <= terms.clock_offset_s:
        return None
    if bound_s > terms.clock_offset_s:
        return (
            f"its clock cannot be measured: {host} takes too long to answer; see to its load, and its network"
        )
    side = "ahead of" if offset_s > 0 else "behind"
    return (
        f"its clock is {abs(offset_s):.1f} s {side} the daemon's, and readiness.clock_offset_s is "
        f"{terms.clock_offset_s:g}; see that a time service runs on {host} and here"
    )


def _stamp(volume: Any) -> str:
    document = fromstring(volume.XMLDesc())  # noqa: S314 - libvirtd's answer, not an outside document
    return document.findtext("target/timestamps/mtime") or "nan"


def _directory(connection: Any, host: str, root: Path) -> str | None:
    """Return a directory in which we see what libvirtd writes: there is one only where both share it.

    The cluster's own directory is made with its first instance; until then the one above is tried.
    """
    name = _name()
    root = root if root.is_dir() else root.parent
    try:
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        _sweep(root)
        with as_pool(connection, str(root), "backfill-proof") as pool:
            volume = pool.createXML(_EMPTY.format(name=name))
            try:
                seen = (root / name).exists()
            finally:
                volume.delete()
    except libvirt.libvirtError as error:
        return _failed(host, error, f"libvirtd cannot write into {root} there")
    except OSError as error:
        return f"{root} cannot be used on the daemon's machine: {error.strerror}; see to that directory"
    if seen:
        return None
    return (
        f"{root} there is not the directory of that name on the daemon's machine: what libvirtd "
        f"writes there is not seen here; mount the shared directory at both, or give {host} its own"
    )


def _filter(connection: Any, host: str, wanted: GuestFilter) -> str | None:
    """Make the filter known there as it is wanted; guests that run there follow a changed one at once."""
    try:
        connection.nwfilterDefineXML(wanted.document())
    except libvirt.libvirtError as error:
        if lost(error):
            raise
        if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
            return (
                "libvirt has no driver for network filters there, and libvirt.guest_network.closed needs it; "
                f"install it on {host} (libvirt-daemon-driver-nwfilter)"
            )
        said = " ".join(str(error).split())
        return (
            f"the filter {wanted.name} for guests' cards cannot be made there: {said}; "
            f"see `virsh nwfilter-list` on {host}"
        )
    return None


def _sweep(root: Path) -> None:
    """Remove what a daemon has left that ended in the middle of a proof."""
    for left in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _LEFT_S:
                left.unlink()


def _failed(host: str, error: libvirt.libvirtError, what: str) -> str:
    if lost(error):
        raise error
    said = " ".join(str(error).split())
    if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
        return (
            f"libvirt has no storage driver there; install it on {host} (libvirt-daemon-driver-storage-core)"
        )
    return f"{what}: {said}; mount it on {host} so that its root may write, or correct libvirt.directory"


def _name() -> str:
    return f"{_PREFIX}{os.getpid()}-{time.monotonic_ns():x}"


@dataclass(slots=True)
class _Proof:
    """What is known of one host. `ended_s`: when it was last tried, by the monotonic clock."""

    problem: str = _FIRST
    ended_s: float | None = None
    under_way: bool = False
    life: int = 0


class HostProofs:
    """Proves hosts in threads of their own and remembers what came of it. Thread-safe.

    `attempt(host)` returns what is wrong, or None, or raises DriverError; it may take long. `told(host)` is
    called when a verdict is another than before.
    """

    def __init__(
        self,
        attempt: Callable[[str], str | None],
        told: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempt, self._told, self._now_s = attempt, told, now_s
        self._proofs: dict[str, _Proof] = {}
        self._lock = threading.Lock()
        self._work: dict[str, threading.Thread] = {}
        self._ended = False

    def problem(self, host: str) -> str:
        """Return why no instance is to be made on the host; begin a proof where one is due. At once."""
        with self._lock:
            proof = self._proofs.setdefault(host, _Proof())
            now_s = self._now_s()
            if proof.under_way or self._ended:
                return proof.problem
            wait_s = _AGAIN_S if proof.problem else _EVERY_S
            if proof.ended_s is None or now_s >= proof.ended_s + wait_s:
                proof.under_way = True
                self._work[host] = threading.Thread(
                    target=self._prove, args=(host, proof.life), name=f"proof-{host}", daemon=True
                )
                self._work[host].start()
            return proof.problem

    def end(self, within_s: float = _END_S) -> None:
        """Begin no more proofs, and let those under way take back what they made.

        One that hangs is left after `within_s`; what it made is swept by a later proof.
        """
        with self._lock:
            self._ended = True
            under_way = tuple(self._work.values())
        until_s = time.monotonic() + within_s
        for work in under_way:
            work.join(max(0.0, until_s - time.monotonic()))

    def forget(self, host: str) -> None:
        """Forget what was proven of a host that was out of reach: it may have booted anew, without mounts."""
        with self._lock:
            known = self._proofs.get(host)
            if known is not None and known.ended_s is not None:
                self._proofs[host] = _Proof(life=known.life + 1)

    def _prove(self, host: str, life: int) -> None:
        try:
            problem = self._attempt(host) or ""
        except DriverError as error:
            problem = f"that could not be proven: {error.problem}"
        except Exception as error:
            logging.getLogger("backfill.libvirt").exception("proving %s failed in an unforeseen way", host)
            problem = f"defect in the driver: {error!r}"
        with self._lock:
            proof = self._proofs[host]
            if proof.life != life:
                return
            news = proof.problem != problem
            self._proofs[host] = _Proof(problem, self._now_s(), life=life)
        if news:
            with contextlib.suppress(RuntimeError):  # a daemon that ends needs no hint
                self._told(host)
