"""EASY and FCFS on processors of which none is kept, at the speed that a bare replay of a year wants.

It decides as `easy` and `fcfs` do, which `tests/property/test_schedulers.py` holds. Here a job is a
number and its size a number in a column: a request as an object for each would double the time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from heapq import heapify, heappop, heappush

from backfill.sim.schedulers.machine import NEVER, Machine
from backfill.sim.traces.trace import JobTrace

NOBODY = -1


class FastFcfs:
    """Nobody overtakes: behind a job that does not fit, all wait."""

    __slots__ = ("_machine", "_queue")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._queue: deque[int] = deque()

    def arrived(self, job: int, now: int) -> None:
        machine = self._machine
        if self._queue or machine.processors[job] > machine.free:
            self._queue.append(job)
        else:
            machine.start(job, now)

    def completed(self, job: int, now: int) -> None:
        """Do nothing: the machine counts the room."""

    def run_pass(self, now: int) -> None:
        machine, queue = self._machine, self._queue
        while queue and machine.processors[queue[0]] <= machine.free:
            machine.start(queue.popleft(), now)

    def next_wake(self) -> int:
        return NEVER


class FastEasy:
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

    def __init__(self, trace: JobTrace, machine: Machine) -> None:
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
        """Return True if a job may overtake the head; book what it takes of the extra room."""
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


SMALL = 64


class WaitingJobs:
    """Jobs in queue order (a job is its index in the trace), found by size and estimate.

    A plain scan of a long queue asks every job again after each completion. Here every size has
    its own queue, and a list by estimate: a size whose shortest job is too long is passed over
    with one comparison. Leaving is a mark; marked entries are swept when they are the majority.
    """

    __slots__ = ("_by_size", "_estimate", "_processors", "_waits", "count", "sizes")

    def __init__(self, processors: array[int], estimate: array[int]) -> None:
        self._processors = processors
        self._estimate = estimate
        self._waits = bytearray(len(processors))
        self._by_size: dict[int, _Size] = {}
        self.count = 0
        self.sizes: list[int] = []

    def add(self, job: int) -> None:
        """Append a job, which must come after all others in queue order."""
        size = self._processors[job]
        queue = self._by_size.get(size)
        if queue is None:
            queue = self._by_size[size] = _Size(self._estimate, self._waits)
        if not queue.count:
            insort(self.sizes, size)
        queue.append(job)
        self._waits[job] = 1
        self.count += 1

    def remove(self, job: int) -> None:
        """Take a waiting job out."""
        size = self._processors[job]
        self._waits[job] = 0
        self.count -= 1
        queue = self._by_size[size]
        queue.count -= 1
        if not queue.count:
            queue.clear()
            del self.sizes[bisect_left(self.sizes, size)]

    def next_after(self, job: int) -> int:
        """Return the first waiting job after this one in queue order, -1 if there is none."""
        return self._waits.find(1, job + 1) if self.count else -1

    def first(self, size: int, after: int) -> int:
        """Return the first waiting job of this size after job `after`, -1 if there is none."""
        return self._by_size[size].first(after)

    def first_short(self, size: int, after: int, longest: int) -> int:
        """Like `first`, of the jobs whose estimate is `longest` at most."""
        return self._by_size[size].first_short(after, longest)


class _Size:
    """The waiting jobs of one size."""

    __slots__ = ("_estimate", "_fifo", "_fresh", "_shortest", "_waits", "count")

    def __init__(self, estimate: array[int], waits: bytearray) -> None:
        self._estimate = estimate
        self._waits = waits
        self._fifo: list[int] = []
        self._shortest: list[tuple[int, int]] = []  # (-estimate, -job): the shortest at the end
        self._fresh: list[int] = []  # not yet in _shortest: most jobs leave before it is asked for
        self.count = 0

    def append(self, job: int) -> None:
        self._fifo.append(job)
        self._fresh.append(job)
        self.count += 1

    def clear(self) -> None:
        self._fifo.clear()
        self._shortest.clear()
        self._fresh.clear()

    def first(self, after: int) -> int:
        self._sweep()
        waits = self._waits
        fifo = self._fifo
        for position in range(bisect_right(fifo, after), len(fifo)):
            if waits[fifo[position]]:
                return fifo[position]
        return -1

    def first_short(self, after: int, longest: int) -> int:
        self._sort_fresh()
        shortest, waits = self._shortest, self._waits
        while shortest and not waits[-shortest[-1][1]]:
            shortest.pop()
        if not shortest or -shortest[-1][0] > longest:
            return -1
        begin = bisect_left(shortest, (-longest,))
        # Few short ones: look at each. Many: the first of them is near in the queue.
        if (len(shortest) - begin) ** 2 <= len(shortest) * SMALL:
            found = [-job for _, job in shortest[begin:] if -job > after and waits[-job]]
            return min(found, default=-1)
        self._sweep()
        fifo, estimate = self._fifo, self._estimate
        for position in range(bisect_right(fifo, after), len(fifo)):
            job = fifo[position]
            if waits[job] and estimate[job] <= longest:
                return job
        return -1

    def _sort_fresh(self) -> None:
        fresh = self._fresh
        if not fresh:
            return
        waits, estimate, shortest = self._waits, self._estimate, self._shortest
        entries = [(-estimate[job], -job) for job in fresh if waits[job]]
        fresh.clear()
        if len(entries) <= SMALL:
            for entry in entries:
                insort(shortest, entry)
        else:
            shortest.extend(entries)
            shortest.sort()
        if len(shortest) > SMALL + 2 * self.count:
            self._shortest = [entry for entry in shortest if waits[-entry[1]]]

    def _sweep(self) -> None:
        if len(self._fifo) > SMALL + 2 * self.count:
            waits = self._waits
            self._fifo = [job for job in self._fifo if waits[job]]
