"""Makes a scheduler by its name, for a room, or for the machine of a bare replay."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from backfill.sim.schedulers.conservative import Conservative
from backfill.sim.schedulers.easy import Easy
from backfill.sim.schedulers.fast_pool import FastEasy, FastFcfs
from backfill.sim.schedulers.fcfs import Fcfs
from backfill.sim.schedulers.machine import NEVER, Machine, Scheduler, SchedulerName
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import Kept
from backfill.sim.schedulers.rooms import Room, RoomPool
from backfill.sim.traces.trace import JobTrace

_FAMILY: dict[SchedulerName, type[Fcfs]] = {"fcfs": Fcfs, "easy": Easy, "conservative": Conservative}


def scheduler_in(name: SchedulerName, room: Room) -> Fcfs:
    """Return the scheduler of this name for a room."""
    return _FAMILY[name](room)


def scheduler_on(name: SchedulerName, trace: JobTrace, machine: Machine, kept: Sequence[Kept]) -> Scheduler:
    """Return the same for the processors of a machine, of which some may be kept."""
    if not kept and name == "fcfs":
        return FastFcfs(machine)
    if not kept and name == "easy":
        return FastEasy(trace, machine)
    return OnMachine(scheduler_in(name, RoomPool(machine.free, kept)), trace, machine)


class OnMachine:
    """Asks a scheduler of the family after every event; a request's number is its job."""

    def __init__(self, scheduler: Fcfs, trace: JobTrace, machine: Machine) -> None:
        self._scheduler = scheduler
        self._estimate = trace.estimate
        self._machine = machine
        self._now = 0
        self._running: dict[int, Request] = {}

    def arrived(self, job: int, now: int) -> None:
        size = self._machine.processors[job]
        self._scheduler.add(Request(str(job), (now, job), size, 1, self._estimate[job]))
        self.run_pass(now)

    def completed(self, job: int, now: int) -> None:
        self._now = now
        self._scheduler.ended(self._running.pop(job))

    def run_pass(self, now: int) -> None:
        self._now = now
        if self._scheduler.waits:
            self._scheduler.schedule(now, self._start)

    def next_wake(self) -> int:
        wake = self._scheduler.wake_s(self._now) if self._scheduler.waits else inf
        return NEVER if wake == inf else int(wake)

    def _start(self, request: Request, place: int) -> None:
        job = request.order[1]
        self._running[job] = request
        self._machine.start(job, self._now)
