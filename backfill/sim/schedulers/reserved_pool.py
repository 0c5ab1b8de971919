"""FCFS and EASY on a pool of processors of which some are kept for others at certain times."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.timeline import Timeline
from backfill.sim.schedulers.machine import NEVER, Cluster, Machine
from backfill.sim.schedulers.reservations import Span
from backfill.sim.traces.trace import Trace


class ReservedPool:
    """A job starts when by its estimate it is over before anybody needs its processors.

    One timeline has the running jobs' estimates, what is kept, and the head's own reservation. Who
    may overtake the head must fit beside all of them to its end; under FCFS nobody may.
    """

    __slots__ = ("_estimate", "_head_start", "_machine", "_openings", "_overtakes", "_queue", "_room")

    def __init__(
        self, trace: Trace, cluster: Cluster, machine: Machine, kept: Sequence[Span], *, overtakes: bool
    ) -> None:
        self._machine = machine
        self._estimate = trace.estimate
        self._overtakes = overtakes
        self._room = timeline_of(trace, cluster, kept)
        # When kept processors are free again: a pass is due though nothing arrives or completes.
        self._openings = [*(span.end for span in kept), NEVER]
        self._queue: list[int] = []
        self._head_start: int | None = None  # the beginning of its reservation

    def arrived(self, job: int, now: int) -> None:
        queue, machine = self._queue, self._machine
        queue.append(job)
        # An arrival comes before what else happens at its instant where events have passes of
        # their own; otherwise those who were passed over would be so again.
        if len(queue) == 1 or self.next_wake() <= now or machine.next_end() <= now:
            self.run_pass(now)
        elif self._overtakes and self._passes(job, now):
            queue.pop()

    def completed(self, job: int, now: int) -> None:
        machine, room = self._machine, self._room
        expected = machine.starts[job] + self._estimate[job]
        room.forget_before(now)
        if now < expected:
            room.release(now, expected, machine.processors[job])

    def run_pass(self, now: int) -> None:
        while self._openings[0] <= now:
            del self._openings[0]
        self._start_heads(now)
        if self._overtakes and len(self._queue) > 1:
            head, *others = self._queue
            self._queue = [head, *(job for job in others if not self._passes(job, now))]

    def next_wake(self) -> int:
        return self._openings[0]

    def _start_heads(self, now: int) -> None:
        queue, machine, room = self._queue, self._machine, self._room
        started = 0
        for head in queue:
            size, length = machine.processors[head], self._estimate[head]
            if self._head_start is not None:
                room.release(self._head_start, self._head_start + length, size)
                self._head_start = None
            start = room.earliest(size, length, now)
            assert start is not None, "a job larger than the machine is left out before the replay"
            room.claim(start, start + length, size)
            if start > now or size > machine.free:
                self._head_start = start
                break
            machine.start(head, now)
            started += 1
        del queue[:started]

    def _passes(self, job: int, now: int) -> bool:
        """Start the job beside whatever is known of the time until its end, if it fits there."""
        size, end = self._machine.processors[job], now + self._estimate[job]
        if size > self._machine.free or self._room.least_free(now, end) < size:
            return False
        self._room.claim(now, end, size)
        self._machine.start(job, now)
        return True


def timeline_of(trace: Trace, cluster: Cluster, kept: Sequence[Span]) -> Timeline[int]:
    """Room over time before any job runs, from the first submission on."""
    room: Timeline[int] = Timeline(cluster.processors, trace.submit[0] if len(trace) else 0)
    for span in kept:
        room.claim(span.start, span.end, span.processors)
    return room
