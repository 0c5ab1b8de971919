"""Who is let in: users who may only ask are few at a time, so that a hook always finds a thread."""

from __future__ import annotations

import os
import threading

# Each takes a thread and a file descriptor of the daemon, whose number is limited.
MOST_STRANGERS = 32


def trusted(uid: int) -> bool:
    """Whether a user may act and is believed as a hook: root and the daemon's own."""
    return uid in (0, os.getuid())


class Doorkeeper:
    """Counts clients of users who are not trusted. Safe from several threads."""

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self._most = most
        self._inside = 0
        self._lock = threading.Lock()

    def admit(self, uid: int) -> bool:
        """Whether a client of this user may come in now; `leave` has to follow if so."""
        if trusted(uid):
            return True
        with self._lock:
            if self._inside >= self._most:
                return False
            self._inside += 1
            return True

    def leave(self, uid: int) -> None:
        """A client that was admitted has gone."""
        if not trusted(uid):
            with self._lock:
                self._inside -= 1
