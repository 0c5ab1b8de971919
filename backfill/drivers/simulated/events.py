"""The simulated future: callbacks in order of time, then of the order in which they were set."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

# Less than any place that is drawn in its turn.
_EARLY = 1 << 62
# Epoch seconds are rounded to a quarter of a microsecond.
_ROUNDING = 1e-6


def next_round_s(now_s: float, every_s: float, at_s: float) -> float:
    """Return the next moment after `now_s` of what comes round each `every_s`, as it did at `at_s`."""
    return at_s + (math.floor((now_s - at_s) / every_s + _ROUNDING) + 1) * every_s


@dataclass(slots=True, eq=False)
class SimEvent:
    """One thing that will happen at `at_s` unless it is cancelled."""

    at_s: float
    action: Callable[[], None] | None

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: SimEvent) -> bool:
        return False  # both have the same place in the same instant: one of them is cancelled


class EventQueue:
    """Simulated time and everything that is due; equal times keep their order of arrival."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s
        self._heap: list[tuple[float, int, SimEvent]] = []
        self._count = 0
        self._stepping = False
        self._until_s = start_s

    def at(self, at_s: float, action: Callable[[], None], ticket: int = 0) -> SimEvent:
        """Do `action` at `at_s`, or now if past. `ticket`: as if asked when it was drawn."""
        if at_s < self.now_s:
            at_s = self.now_s
        event = SimEvent(at_s, action)
        heapq.heappush(self._heap, (at_s, ticket or self.ticket(), event))
        return event

    def ticket(self, *, early: bool = False) -> int:
        """Draw a place among the events of whatever instant; `early`: before all that are not."""
        self._count += 1
        return self._count - _EARLY if early else self._count

    def pass_to(self, at_s: float) -> bool:
        """Let time pass within a callback; refused where anything may be due until then."""
        if at_s > self._until_s or (self._heap and self._heap[0][0] <= at_s):
            return False
        self.now_s = at_s
        return True

    def after(self, delay_s: float, action: Callable[[], None]) -> SimEvent:
        """Do `action` in `delay_s` seconds."""
        return self.at(self.now_s + delay_s, action)

    def next_s(self) -> float | None:
        """Return the time of the next event, or None."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def step_to(self, until_s: float) -> None:
        """Let everything happen that is due up to and including `until_s`."""
        if until_s < self.now_s:
            raise ValueError(f"simulated time cannot go back from {self.now_s} to {until_s}")
        if self._stepping:
            raise RuntimeError("a callback must not move simulated time; answer the hook later")
        self._stepping, self._until_s = True, until_s
        try:
            heap = self._heap
            while heap and heap[0][0] <= until_s:
                at_s, _, event = heapq.heappop(heap)
                if event.action is not None:
                    self.now_s = at_s
                    event.action()
            self.now_s = until_s
        finally:
            self._stepping = False
