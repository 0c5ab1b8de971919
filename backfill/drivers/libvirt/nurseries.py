"""Who raises a parent of instant clones is told here that its host is wanted meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Nurseries:
    """Counts by host how often that was said: whoever began before stops. Safe from all threads."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._lock = threading.Lock()

    def begun(self, host: str) -> Callable[[], bool]:
        """A function that tells whether `end` was called since this."""
        before = self._ended.get(host, 0)
        return lambda: self._ended.get(host, 0) != before

    def end(self, host: str) -> None:
        """Let all stop that have begun on `host`."""
        with self._lock:
            self._ended[host] = self._ended.get(host, 0) + 1
