"""The hardware at work: boots, and copies of jobs that compute, stop and go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.hypervisor.hardware import Count, KeptRun, Segment, SimMachine, SimRun

ROUNDING = 1e-6


class MachineListener(Protocol):
    """Hears everything that slurmctld could hear of a machine."""

    def answers(self, machine: SimMachine, *, registers: bool) -> None:
        """Note that the machine's slurmd can be reached (again)."""

    def falls_silent(self, machine: SimMachine) -> None:
        """Note that the machine's slurmd can no longer be reached."""

    def finishes(self, run: SimRun) -> None:
        """Note that a copy of a job came to its end."""


class Watchman(Protocol):
    """Judges the deeds of copies of jobs."""

    def stale_copy(self, run: SimRun, machine: SimMachine) -> None:
        """Note that the machine got CPU with a copy inside that Slurm had given up."""

    def two_copies(self, run: SimRun, other: SimRun) -> None:
        """Two copies of one job compute at the same time."""


class Machines:
    """All machines and the copies of jobs on them, stale ones included."""

    def __init__(self, events: EventQueue, watchman: Watchman) -> None:
        self.serving: dict[str, SimMachine] = {}  # by node: the last slurmd to register wins
        self.segments: list[Segment] = []
        self.listener: MachineListener | None = None
        # The place of a job's end among the events of its instant; 0: in its turn.
        self.ticket_of: Callable[[str], int] = lambda job: 0
        # A copy answers whoever it works for, or no longer does.
        self.heard: Callable[[SimRun, bool], None] = lambda run, answers: None
        self._events = events
        self._watchman = watchman
        self._runs: dict[str, list[SimRun]] = {}

    # --- machines -------------------------------------------------------------------------

    def update(self, machine: SimMachine, *, on: bool | None = None) -> None:
        """Let everything follow from a change of power, CPU state or network."""
        if on is not None:
            machine.on = on
        alive = machine.on and machine.powered
        if alive != machine.alive:
            machine.alive = alive
            self._wake_up(machine) if alive else self._stand_still(machine)
        self._tell(machine, registers=False)

    def destroy(self, machine: SimMachine) -> None:
        """Drop the machine and all copies on it."""
        self.update(machine, on=False)
        for run in tuple(machine.runs):
            self.lose(run, machine)
        machine.booted = False
        if self.serving.get(machine.node) is machine:
            del self.serving[machine.node]

    def start_boot(self, machine: SimMachine, boot_s: float | None) -> None:
        """Begin to boot; None: it never gets to slurmd."""
        machine.boot_left_s, machine.booted = boot_s, False
        self.update(machine, on=True)

    def move(self, machine: SimMachine, host: str) -> None:
        """Move the machine, with its copies, to `host`."""
        going = [run for run in machine.runs if run.since_s is not None]
        for run in going:
            self._halt(run)
        machine.host = host
        for run in going:
            self._go(run)

    def throttle(self, machine: SimMachine, *, on: bool) -> None:
        """Take almost all CPU time from the machine, or give it back."""
        machine.throttled = on
        for run in machine.runs:
            self._follow(run)

    def freeze(self, machine: SimMachine, *, on: bool) -> None:
        """Let the guest keep its jobs still, or let them go on."""
        machine.frozen = on
        for run in machine.runs:
            self._follow(run)

    def set_clock(self, machine: SimMachine) -> float:
        """Correct its clock; returns by how much, s."""
        lag_s, machine.lag_s = machine.lag_s, 0.0
        return lag_s

    def _wake_up(self, machine: SimMachine) -> None:
        now_s = self._events.now_s
        if machine.booted:
            machine.lag_s += now_s - machine.stopped_at_s
            machine.stood_s += now_s - machine.stopped_at_s
        elif machine.boot_left_s is not None:
            machine.boot_from_s = now_s
            machine.boot = self._events.after(machine.boot_left_s, partial(self._end_boot, machine))
        for run in machine.runs:
            if run.stale and not run.finished and not machine.frozen:
                self._watchman.stale_copy(run, machine)
            self._follow(run)

    def _stand_still(self, machine: SimMachine) -> None:
        now_s = self._events.now_s
        machine.stopped_at_s = now_s
        machine.unheard_s = now_s if machine.unheard_s is None else machine.unheard_s
        if machine.boot is not None and machine.boot_left_s is not None:
            machine.boot.cancel()
            machine.boot = None
            machine.boot_left_s -= now_s - machine.boot_from_s
        for run in machine.runs:
            self._follow(run)

    def _end_boot(self, machine: SimMachine) -> None:
        machine.booted, machine.boot, machine.boot_left_s = True, None, None
        machine.booted_s = self._events.now_s
        self._tell(machine, registers=True)

    def _tell(self, machine: SimMachine, *, registers: bool) -> None:
        reachable = machine.connected and machine.findable
        answering = machine.alive and machine.booted and reachable
        if answering == machine.answering or self.listener is None:
            return
        machine.answering = answering
        if answering:
            self.serving[machine.node] = machine
            self.listener.answers(machine, registers=registers)
        else:
            machine.silent_s = self._events.now_s
            self.listener.falls_silent(machine)

    # --- copies of jobs -------------------------------------------------------------------

    def launch(self, job: str, restart: int, nodes: Iterable[str], needed_s: float) -> None:
        """Start a copy on the machines that serve these nodes now."""
        run = SimRun(job, restart, tuple(self.serving[node] for node in nodes), needed_s)
        for machine in run.machines:
            machine.runs.append(run)
        self._runs.setdefault(job, []).append(run)
        self._follow(run)

    def resume(self, job: str, nodes: Iterable[str], needed_s: float, since_s: float) -> None:
        """Add a copy, the job's first, that has computed on these machines since then."""
        run = SimRun(job, 0, tuple(self.serving[node] for node in nodes), needed_s)
        for machine in run.machines:
            machine.runs.append(run)
        self._runs[job] = [run]
        run.since_s = since_s
        self._end_at(run, since_s + needed_s)

    def reinstate(self, kept: KeptRun, machines: Iterable[SimMachine]) -> None:
        """Let a copy that was lost go on from a checkpoint, as soon as all of its machines do."""
        run = SimRun(
            kept.job, kept.restart, tuple(machines), kept.needed_s, kept.done_s, stopped=kept.stopped
        )
        for machine in run.machines:
            machine.runs.append(run)
        self._runs.setdefault(kept.job, []).append(run)
        self._follow(run)

    def find(self, job: str, restart: int) -> SimRun | None:
        """Return the copy of this job in this restart, unless it is gone."""
        for run in self._runs.get(job, ()):
            if run.restart == restart:
                return run
        return None

    def whole(self, job: str, restart: int) -> SimRun | None:
        """Return the copy, if all of it is still there."""
        run = self.find(job, restart)
        return None if run is not None and run.broken else run

    def lose(self, run: SimRun, machine: SimMachine) -> None:
        """Drop what the copy has on one machine; the rest stays where it is, on disk as well."""
        if run.machines == (machine,):
            self.kill(run)
            return
        run.broken = True
        self._follow(run)
        machine.runs.remove(run)
        run.machines = tuple(other for other in run.machines if other is not machine)

    def kill(self, run: SimRun) -> None:
        """Drop the copy from all its machines."""
        self._halt(run)
        self._hear(run, answers=False)
        for machine in run.machines:
            if run in machine.runs:
                machine.runs.remove(run)
        runs = self._runs.get(run.job, [])
        if run in runs:
            runs.remove(run)
        if not runs:
            self._runs.pop(run.job, None)

    def signal(self, run: SimRun, *, stopped: bool) -> None:
        """SIGSTOP or SIGCONT for the copy."""
        run.stopped = stopped
        self._follow(run)

    def _follow(self, run: SimRun) -> None:
        answers = not (run.stopped or run.finished or run.broken)
        answers = answers and all(
            machine.alive and machine.booted and not machine.frozen for machine in run.machines
        )
        self._hear(run, answers=answers)
        may = answers and not any(machine.throttled for machine in run.machines)
        if may and run.since_s is None:
            self._go(run)
        elif not may:
            self._halt(run)

    def _hear(self, run: SimRun, *, answers: bool) -> None:
        if answers != run.answers:
            run.answers = answers
            self.heard(run, answers)

    def _go(self, run: SimRun) -> None:
        for other in self._runs.get(run.job, ()):
            if other is not run and other.since_s is not None:
                self._watchman.two_copies(run, other)
        run.since_s = self._events.now_s
        self._end_at(run, self._events.now_s + (run.needed_s - run.done_s))

    def _end_at(self, run: SimRun, at_s: float) -> None:
        run.end = self._events.at(at_s, partial(self._finish, run), self.ticket_of(run.job))

    def _halt(self, run: SimRun) -> None:
        if run.end is not None:
            run.end.cancel()
            run.end = None
        if run.since_s is None:
            return
        start_s, end_s = run.since_s, self._events.now_s
        run.since_s = None
        if end_s > start_s:
            self.segments.append(self._segment(run, start_s, end_s))
            run.done_s += end_s - start_s

    def _finish(self, run: SimRun) -> None:
        self._halt(run)
        run.done_s, run.finished = run.needed_s, True
        if self.listener is not None:
            self.listener.finishes(run)

    @staticmethod
    def _segment(run: SimRun, start_s: float, end_s: float) -> Segment:
        first = run.machines[0]
        return Segment(run.job, run.restart, first.node, first.host, run.done_s, start_s, end_s)

    # --- what the counting jobs wrote -----------------------------------------------------

    def all_segments(self) -> Iterator[Segment]:
        """Everything computed so far, the copies that compute right now included."""
        yield from self.segments
        for runs in self._runs.values():
            for run in runs:
                if run.since_s is not None and self._events.now_s > run.since_s:
                    yield self._segment(run, run.since_s, self._events.now_s)

    def tally(self, every_s: float) -> list[Count]:
        """Return the lines of all counting jobs, one per `every_s` of computing, in order of time."""
        counts = [count for s in self.all_segments() for count in _counts(s, every_s)]
        return sorted(counts, key=lambda count: count.at_s)


def _counts(segment: Segment, every_s: float) -> Iterator[Count]:
    done_s = segment.done_s
    end_s = done_s + (segment.end_s - segment.start_s)  # as Run.done_s is added up: no gaps
    first = math.floor(done_s / every_s + ROUNDING) + 1
    last = math.floor(end_s / every_s + ROUNDING)
    for i in range(first, last + 1):
        at_s = segment.start_s + i * every_s - done_s
        yield Count(segment.job, segment.restart, i, at_s, segment.node)
