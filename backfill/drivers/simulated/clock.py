"""Simulated time behind the Clock port."""

from __future__ import annotations

from collections.abc import Callable

from backfill.drivers.simulated.events import EventQueue


class SimulatedClock:
    """Time that passes only when it is told to."""

    def __init__(self, events: EventQueue, step_to: Callable[[float], None]) -> None:
        self._events = events
        self._step_to = step_to

    def now(self) -> float:
        """Simulated epoch seconds."""
        return self._events.now_s

    def ahead(self) -> float:
        """Nobody sets this clock."""
        return 0.0

    def advance(self, by_s: float) -> None:
        """Let `by_s` seconds pass with everything that happens in them."""
        self._step_to(self._events.now_s + by_s)
