"""The high-priority jobs of a replay: each is submitted when its time comes."""

from __future__ import annotations

from functools import partial
from math import inf

from backfill.sim.replay.trace_cluster import TraceCluster
from backfill.sim.traces.trace import JobTrace


class Arrivals:
    """Comes by itself as an event, or is asked by the fast-forward, which knows when it is due."""

    def __init__(self, sim: TraceCluster, trace: JobTrace) -> None:
        self._sim, self._trace = sim, trace
        self.next_s = self._due_s(0)  # of the next job; infinite: none is left
        self._number = 0  # of the next job
        self._asked = -1  # for which an event waits
        self._ticket = 0
        self._paused = False
        sim.fast_forward.arrivals = self
        self.submit()
        self.go_on()

    def submit(self) -> None:
        """All that is due."""
        trace, number, now_s = self._trace, self._number, self._sim.now_s
        ticks = trace.ticks_per_s
        while self.next_s <= now_s:
            self._sim.add_high(
                number, trace.run[number] / ticks, trace.estimate[number] / ticks, trace.processors[number]
            )
            number += 1
            self.next_s = self._due_s(number)
        self._number = number
        self._ticket = self._sim.ticket(early=self._sim.shape.tie == "eventwise")

    def _due_s(self, number: int) -> float:
        trace = self._trace
        if number >= len(trace):
            return inf
        return self._sim.start_s + (trace.submit[number] - trace.begin) / trace.ticks_per_s

    def go_on(self) -> None:
        """Come by itself from now on."""
        self._paused = False
        if self.next_s < inf and self._asked != self._number:
            self._asked = self._number
            self._sim.at(self.next_s, partial(self._come, self._number), self._ticket)

    def pause(self) -> None:
        """Somebody else asks from now on."""
        self._paused = True

    def _come(self, number: int) -> None:
        if number != self._number:
            return  # somebody else has asked
        self._asked = -1
        if not self._paused:
            self.submit()
            self.go_on()
