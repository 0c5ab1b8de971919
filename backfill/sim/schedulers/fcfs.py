"""First come, first served: jobs start strictly in queue order."""

from __future__ import annotations

from collections import deque

from backfill.sim.schedulers.machine import NEVER, Machine


class Fcfs:
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
        """Need nothing but the room, which the machine counts."""

    def run_pass(self, now: int) -> None:
        machine, queue = self._machine, self._queue
        while queue and machine.processors[queue[0]] <= machine.free:
            machine.start(queue.popleft(), now)

    def next_wake(self) -> int:
        return NEVER
