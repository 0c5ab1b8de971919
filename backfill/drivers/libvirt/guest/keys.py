"""The cluster's key in a guest: munge's, or Slurm's own, which may be changed while guests live."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
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
    under_way: bool = False
    again_s: float = 0.0


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
        self._lock = threading.Lock()
        self._told = ""

    def look(self, host: str, instances: Iterable[Instance]) -> None:
        """Begin to hand the key to those of the host's guests that run and may lack it. At once."""
        try:
            key = self._read()
        except DriverError as error:
            if self._told != str(error):
                _log.warning("guests cannot be given Slurm's key: %s", error)
            self._told = str(error)
            return
        digest = hashlib.sha256(key).digest()
        for instance in instances:
            if instance.state is not InstanceState.RUNNING:
                continue
            who = (host, instance.name, instance.tag.generation)
            with self._lock:
                given = self._guests.setdefault(who, _Given())
                if given.digest == digest or given.under_way or self._now_s() < given.again_s:
                    continue
                given.under_way = True
            threading.Thread(
                target=self._hand, args=(who, given, key, digest), name=f"key-{instance.name}", daemon=True
            ).start()

    def _hand(self, who: tuple[str, str, int], given: _Given, key: bytes, digest: bytes) -> None:
        host, name, _ = who
        try:
            self._give(host, name, key)
            given.digest = digest
        except DriverError as error:
            _log.debug("Slurm's key is not handed to %s yet: %s", name, error)
        except Exception:  # noqa: BLE001 - a defect must not end the handing over for good
            _log.exception("handing Slurm's key to %s failed in an unforeseen way", name)
        finally:
            with self._lock:
                given.under_way, given.again_s = False, self._now_s() + _AGAIN_S
