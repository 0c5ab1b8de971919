"""The daemon's time: the machine's clock, but never backwards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_LOG = logging.getLogger("backfill.clock")
# While it is ahead of a machine's clock that went back, it runs slower by this share.
_SLOWER = 0.1
# From here on a step back is worth a line in the log, seconds.
_WORTH_TELLING_S = 0.5
# A daemon that is further ahead had better start anew: what Slurm plans by the hour is compared
# with our time.
TOO_FAR_S = 60.0


class SteadyClock:
    """See `backfill.ports.Clock`. Safe from several threads.

    A picture that is older than what is known is ignored, and a deadline is a moment of this clock:
    if it went back with the machine's, every picture would be ignored and no deadline would come
    until it was again where it had been.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._read_s = monotonic()
        self._now_s = wall()
        self._ahead_s = 0.0

    def now(self) -> float:
        """Epoch seconds, never less than before."""
        with self._lock:
            self._read()
            return self._now_s

    def ahead(self) -> float:
        """Seconds by which `now` is ahead of the machine's clock; 0 unless that went back."""
        with self._lock:
            self._read()
            return self._ahead_s

    def _read(self) -> None:
        read_s, wall_s = self._monotonic(), self._wall()
        passed_s = max(0.0, read_s - self._read_s)
        back_s = self._now_s + passed_s - wall_s - self._ahead_s
        if back_s > _WORTH_TELLING_S:
            _LOG.warning("the machine's clock went back by %.1f s; see to its time server", back_s)
        # No faster than time passes: to have been ahead is made good little by little.
        steady_s = self._now_s + passed_s * (1.0 - _SLOWER)
        self._now_s = max(wall_s, steady_s)
        self._ahead_s = self._now_s - wall_s
        self._read_s = read_s
