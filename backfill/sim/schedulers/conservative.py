"""Conservative backfill: every job gets a reservation when it arrives and may only gain.

Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from backfill.sim.schedulers.machine import NEVER, Cluster, Machine
from backfill.sim.schedulers.reservations import Span
from backfill.sim.schedulers.reserved_pool import timeline_of
from backfill.sim.traces.trace import Trace


class Conservative:
    """Reservations lie in one timeline with the running jobs' estimates and what is `kept`.

    A job that ends before its estimate leaves a hole. Then the waiting jobs, one after the other
    in queue order, give up their place and take the earliest one there is, which is never later.
    """

    __slots__ = ("_early", "_estimate", "_machine", "_reserved", "_timeline", "_wakes")

    def __init__(self, trace: Trace, cluster: Cluster, machine: Machine, kept: Sequence[Span] = ()) -> None:
        self._machine = machine
        self._estimate = trace.estimate
        self._timeline = timeline_of(trace, cluster, kept)
        self._reserved: dict[int, int] = {}  # job -> start; in queue order, as they arrive so
        self._wakes: list[tuple[int, int]] = []  # (start, job); outdated where it differs
        self._early = False

    def arrived(self, job: int, now: int) -> None:
        start = self._book(job, now)
        if start == now and self._machine.processors[job] <= self._machine.free:
            self._machine.start(job, now)
        else:
            self._reserved[job] = start
            heappush(self._wakes, (start, job))

    def completed(self, job: int, now: int) -> None:
        expected = self._machine.starts[job] + self._estimate[job]
        self._timeline.forget_before(now)
        if now < expected:
            self._timeline.release(now, expected, self._machine.processors[job])
            self._early = True

    def run_pass(self, now: int) -> None:
        if self._early:
            self._early = False
            self._compress(now)
        machine, reserved = self._machine, self._reserved
        if self.next_wake() > now:
            return
        due = [job for job, start in reserved.items() if start <= now]
        for job in due:
            if machine.processors[job] <= machine.free:
                machine.start(job, now)
                del reserved[job]

    def next_wake(self) -> int:
        wakes, reserved = self._wakes, self._reserved
        while wakes and reserved.get(wakes[0][1]) != wakes[0][0]:
            heappop(wakes)
        return wakes[0][0] if wakes else NEVER

    def _book(self, job: int, now: int) -> int:
        processors, duration = self._machine.processors[job], self._estimate[job]
        start = self._timeline.earliest(processors, duration, now)
        assert start is not None, "a job larger than the machine is left out before the replay"
        self._timeline.claim(start, start + duration, processors)
        return start

    def _compress(self, now: int) -> None:
        for job, start in self._reserved.items():
            if start > now:
                processors, end = self._machine.processors[job], start + self._estimate[job]
                self._timeline.release(start, end, processors)
                earlier = self._book(job, now)
                if earlier != start:
                    self._reserved[job] = earlier
                    heappush(self._wakes, (earlier, job))
