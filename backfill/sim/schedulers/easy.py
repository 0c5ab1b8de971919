"""EASY backfill: only the first job that does not fit has a reservation.

Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush

from backfill.sim.schedulers.machine import NEVER, Machine
from backfill.sim.schedulers.waiting import WaitingJobs
from backfill.sim.traces.trace import Trace

NOBODY = -1


class Easy:
    """The head waits for `_shadow`, when by estimates it fits; `_extra` is left over then.

    Between completions room only shrinks and time only passes, so a job that was passed over
    stays so: an arrival asks the new job alone. A completion exactly at its estimate had been
    counted on, so it changes neither `_shadow` nor `_extra`.
    """

    __slots__ = (
        "_estimate",
        "_extra",
        "_head",
        "_machine",
        "_processors",
        "_running",
        "_shadow",
        "_stale",
        "_waiting",
    )

    def __init__(self, trace: Trace, machine: Machine) -> None:
        self._machine = machine
        self._processors = trace.processors
        self._estimate = trace.estimate
        self._running: list[tuple[int, int, int]] = []  # (estimated end, job, processors), sorted
        self._waiting = WaitingJobs(trace.processors, trace.estimate)  # all but the head
        self._head = NOBODY
        self._shadow = 0
        self._extra = 0
        self._stale = False

    def arrived(self, job: int, now: int) -> None:
        size = self._processors[job]
        if self._head == NOBODY:
            if size <= self._machine.free:
                self._start(job, now)
            else:
                self._head = job
                self._reserve()
        elif size <= self._machine.free and self._may_pass(job, size, now):
            self._start(job, now)
        else:
            self._waiting.add(job)

    def completed(self, job: int, now: int) -> None:
        expected = self._machine.starts[job] + self._estimate[job]
        running = self._running
        del running[bisect_left(running, (expected, job))]
        if expected != now:
            self._stale = True

    def run_pass(self, now: int) -> None:
        if self._head == NOBODY:
            return
        if self._processors[self._head] <= self._machine.free:
            self._start_heads(now)
        if self._head == NOBODY:
            return
        if self._stale:
            self._reserve()
        sizes = self._waiting.sizes
        if sizes and sizes[0] <= self._machine.free:
            self._backfill(now)

    def next_wake(self) -> int:
        return NEVER

    def _start(self, job: int, now: int) -> None:
        self._machine.start(job, now)
        insort(self._running, (now + self._estimate[job], job, self._processors[job]))

    def _start_heads(self, now: int) -> None:
        machine, waiting = self._machine, self._waiting
        while self._head != NOBODY and self._processors[self._head] <= machine.free:
            self._start(self._head, now)
            self._head = waiting.next_after(self._head)
            if self._head != NOBODY:
                waiting.remove(self._head)
        self._stale = True

    def _reserve(self) -> None:
        """Find when by estimates the head fits; all that end at that very instant count."""
        need = self._processors[self._head]
        free = self._machine.free
        shadow = NEVER
        for end, _, processors in self._running:
            if end > shadow:
                break
            free += processors
            if free >= need:
                shadow = end
        self._shadow = shadow
        self._extra = free - need
        self._stale = False

    def _may_pass(self, job: int, size: int, now: int) -> bool:
        """Whether a job may overtake the head; what it takes of the extra room is booked."""
        if now + self._estimate[job] <= self._shadow:
            return True
        if size <= self._extra:
            self._extra -= size
            return True
        return False

    def _backfill(self, now: int) -> None:
        """Go once through the waiting jobs in queue order, by merging the sizes' own queues."""
        waiting, machine = self._waiting, self._machine
        fitting = waiting.sizes[: bisect_right(waiting.sizes, machine.free)]
        found = [(self._candidate(size, self._head, now), size) for size in fitting]
        candidates = [(job, size) for job, size in found if job != NOBODY]
        heapify(candidates)
        while candidates:
            job, size = heappop(candidates)
            if size > machine.free:
                continue  # room only shrinks during a pass: no job of this size can follow
            if self._may_pass(job, size, now):
                self._start(job, now)
                waiting.remove(job)
            following = self._candidate(size, job, now)
            if following != NOBODY:
                heappush(candidates, (following, size))

    def _candidate(self, size: int, after: int, now: int) -> int:
        if size <= self._extra:
            return self._waiting.first(size, after)
        return self._waiting.first_short(size, after, self._shadow - now)
