"""The cluster's key in a guest: munge's, or Slurm's own, which may be changed while guests live."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from backfill.core.model.fleet import Instance, InstanceState
from backfill.drivers.libvirt.guest.seed import MUNGE_KEY
from backfill.drivers.libvirt.settings import Surroundings
from backfill.ports.errors import DriverError, RefusedError

_log = logging.getLogger("backfill.libvirt")
# A guest that boots has no agent yet.
_AGAIN_S = 5.0
# So many hosts at once, and on each one guest after the other: each silent agent costs a thread here,
# and there one of libvirtd's, for seconds.
_AT_ONCE = 8


def read_key(around: Surroundings) -> bytes:
    """Read the key as it is now on the daemon's machine. RefusedError: unreadable, or empty."""
    path = around.slurm_key or around.munge_key
    what = "Slurm's key" if around.slurm_key else "the munge key"
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise RefusedError(
            path, f"cannot read {what}: {error.strerror}", "run the daemon as a user who may"
        ) from error
    if around.slurm_key and not key:
        raise RefusedError(path, f"{what} is empty", "write it as Slurm has it")
    return key


def key_place(around: Surroundings) -> str:
    """Where the key belongs in a guest; Slurm tells a single key from a set of them by its file's name."""
    if not around.slurm_key:
        return MUNGE_KEY
    return "/etc/slurm/" + ("slurm.jwks" if PurePath(around.slurm_key).suffix == ".jwks" else "slurm.key")


@dataclass(slots=True)
class _Given:
    """What is known of one guest. `digest`: of the key that it has for certain."""

    digest: bytes = b""
    again_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Errand:
    """A key for guests of one host."""

    host: str
    key: bytes
    digest: bytes
    guests: tuple[tuple[str, _Given], ...]


class KeyHandover:
    """Gives guests that run Slurm's key when it has changed. Thread-safe; nobody waits for it.

    Those that stand still get it when they come back, before anything is asked of them
    (`LibvirtProvider.prove`). `give(host, name, key)` may take long and raise DriverError.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        give: Callable[[str, str, bytes], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._give, self._now_s = read, give, now_s
        self._guests: dict[tuple[str, str, int], _Given] = {}
        self._errands: deque[_Errand] = deque()  # those that wait for a thread
        self._hosts: set[str] = set()  # of all errands, those under way included
        self._threads = 0
        self._lock = threading.Lock()
        self._told = ""

    def look(self, host: str, instances: Iterable[Instance]) -> None:
        """Begin to hand the key to those of the host's guests that run and may lack it. At once.

        While an errand to the host is under way, it is not looked at again.
        """
        try:
            key = self._read()
        except DriverError as error:
            if self._told != str(error):
                _log.warning("guests cannot be given Slurm's key: %s", error)
            self._told = str(error)
            return
        digest = hashlib.sha256(key).digest()
        with self._lock:
            lacking = () if host in self._hosts else self._lacking(host, instances, digest)
            if not lacking:
                return
            self._errands.append(_Errand(host, key, digest, lacking))
            self._hosts.add(host)
            if self._threads == _AT_ONCE:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="key-handover", daemon=True).start()

    def _lacking(
        self, host: str, instances: Iterable[Instance], digest: bytes
    ) -> tuple[tuple[str, _Given], ...]:
        now_s = self._now_s()
        running = (one for one in instances if one.state is InstanceState.RUNNING)
        known = (
            (one.name, self._guests.setdefault((host, one.name, one.tag.generation), _Given()))
            for one in running
        )
        return tuple((n, given) for n, given in known if given.digest != digest and now_s >= given.again_s)

    def _work(self) -> None:
        """Do one errand after the other until none waits."""
        while (errand := self._next()) is not None:
            for name, given in errand.guests:
                self._hand(errand, name, given)
            with self._lock:
                self._hosts.remove(errand.host)

    def _next(self) -> _Errand | None:
        with self._lock:
            if self._errands:
                return self._errands.popleft()
            self._threads -= 1
            return None

    def _hand(self, errand: _Errand, name: str, given: _Given) -> None:
        try:
            self._give(errand.host, name, errand.key)
            given.digest = errand.digest
        except DriverError as error:
            _log.debug("Slurm's key is not handed to %s yet: %s", name, error)
        except Exception:  # noqa: BLE001 - a defect must not end the handing over for good
            _log.exception("handing Slurm's key to %s failed in an unforeseen way", name)
        finally:
            given.again_s = self._now_s() + _AGAIN_S
