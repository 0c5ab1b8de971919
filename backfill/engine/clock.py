"""The daemon's time: it goes on as the machine is up, whatever its clock is set to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Two clocks cannot be read in one instant. Within so much they are taken to agree as before.
_SAME_S = 0.005
_TRIES = 5


def uptime_s() -> float:
    """Seconds since the machine's boot, those in which it slept included; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SteadyClock:
    """See `backfill.ports.storage.Clock`. Safe from several threads.

    It begins as the machine's clock and then counts the machine's uptime. A step of the machine's
    clock, forward or back, is no time that passes: nothing is over because of it, and no picture is
    older or newer than it is.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        uptime: Callable[[], float] = uptime_s,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._wall, self._uptime = wall, uptime
        self._boot = boot()
        self._lock = threading.Lock()
        self._ahead_s = 0.0
        self._base_s = 0.0
        self._base_s = -self._difference()[0]

    def now(self) -> float:
        """Epoch seconds; never less than before, and never a step more."""
        return self._base_s + self._uptime()

    def ahead(self) -> float:
        """Seconds by which `now` is ahead of the machine's clock: the same until that is set."""
        with self._lock:
            ahead_s, error_s = self._difference()
            if abs(ahead_s - self._ahead_s) > max(_SAME_S, error_s):
                self._ahead_s = ahead_s
            return self._ahead_s

    def reading(self) -> tuple[str, float]:
        """Return the id of this boot of the machine, and its uptime in seconds."""
        return self._boot, self._uptime()

    def _difference(self) -> tuple[float, float]:
        """By how much we are ahead, and how wrong that may be: the best of some readings."""
        found = []
        for _ in range(_TRIES):
            before_s = self._uptime()
            wall_s = self._wall()
            took_s = self._uptime() - before_s
            found.append((took_s, self._base_s + before_s + took_s / 2 - wall_s))
            if took_s < _SAME_S / 10:
                break
        took_s, ahead_s = min(found)
        return ahead_s, took_s
