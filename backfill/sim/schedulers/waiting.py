"""Waiting jobs, indexed by size, so that a backfill scan looks only at jobs that could start."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort

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
