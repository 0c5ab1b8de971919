"""systemd's notification protocol (sd_notify(3)): one datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable

_LOG = logging.getLogger("backfill.notify")
# A sign of life comes so often, and at least so many times within $WATCHDOG_USEC.
_BEAT_S, _BEATS = 1.0, 3
# What is late by more than this is not about to begin.
_LATE_S = 30.0


def notify(state: str, within_s: float = 0.0) -> None:
    """Tell the service manager, if one listens. Never fails: it is only news.

    A manager that does not read, as while it reloads its units, misses it after `within_s`.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(within_s)
            sock.sendto(state.encode(), address)
    except OSError:
        return


class Heartbeat:
    """Signs of life for systemd's watchdog, from the daemon's own thread: about one a second.

    `late_s` tells for how long what the daemon does regularly is overdue: a daemon that looks at
    nothing any more is as good as dead, and gives no sign.
    """

    def __init__(self, late_s: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._late_s, self._monotonic = late_s, monotonic
        self._every_s = min(_BEAT_S, _watchdog_s() / _BEATS)
        self._next_s = monotonic()
        self._missed = 0  # signs in a row

    def beat(self) -> None:
        """Give a sign, if it is time for one."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        late_s = self._late_s()
        if late_s <= _LATE_S:
            self._missed = 0
            notify("WATCHDOG=1")
            return
        self._missed += 1
        if self._missed == 2:  # one alone follows a sleep of the machine
            _LOG.error(
                "nothing has been read for %d s, as the thread that begins it does not: systemd gets no "
                "sign of life any more, and starts the daemon anew; without systemd, restart it",
                late_s,
            )


def _watchdog_s() -> float:
    """Return how long systemd waits for a sign."""
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isascii() and given.isdigit() and int(given) else float("inf")
