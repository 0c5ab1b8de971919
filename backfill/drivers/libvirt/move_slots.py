"""One at a time between two hosts: moves of instances wait here for their turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from backfill.ports.errors import BusyError


@dataclass(slots=True)
class MoveSlots:
    """A slot for every pair of hosts, whichever the direction.

    Two moves at once between the same two hosts share one network, so together they take as long
    and each stops its guest for longer; and two paused guests that moved at once were seen to hold
    up both libvirtd until their keepalive gave up (31 s, libvirt 9.0).
    """

    _slots: dict[frozenset[str], threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def between(self, name: str, one: str, other: str, patience_s: float) -> Iterator[None]:
        """Inside, no other instance moves between these hosts. BusyError when patience ends."""
        with self._lock:
            slot = self._slots.setdefault(frozenset({one, other}), threading.Lock())
        if not slot.acquire(timeout=patience_s):
            raise BusyError(
                name,
                f"others were moving between {one} and {other} for {patience_s:g} s",
                "it will be tried again",
            )
        try:
            yield
        finally:
            slot.release()
