"""The bare cluster of a replay: free processors, running jobs, and the schedulers' contract."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, Protocol, TypeAlias, get_args

from backfill.sim.traces.trace import JobTrace

SchedulerName: TypeAlias = Literal["easy", "fcfs", "conservative"]
Tie: TypeAlias = Literal["batch", "eventwise"]
SCHEDULERS: tuple[SchedulerName, ...] = get_args(SchedulerName)
TIES: tuple[Tie, ...] = get_args(Tie)

NOT_STARTED = -(2**63)
NEVER = 2**63


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes; a job's processors may lie on any of them, as with `sbatch -n`."""

    nodes: int
    cpus: int = 1

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read `128x1` (nodes x CPUs of each) or `128`; ValueError if it is neither."""
        match = re.fullmatch(r"([1-9]\d{0,8})(?:[x*]([1-9]\d{0,5}))?", text.strip().lower())
        if match is None:
            raise ValueError(f"cluster {text!r} is not of the form NODESxCPUS, for example 128x1; correct it")
        return cls(int(match[1]), int(match[2] or 1))

    @property
    def processors(self) -> int:
        return self.nodes * self.cpus


class Machine:
    """Running jobs and their ends; all times in the trace's ticks."""

    __slots__ = ("_ends", "free", "processors", "run", "starts")

    def __init__(self, trace: JobTrace, cluster: Cluster) -> None:
        self.free = cluster.processors
        self.processors = trace.processors
        self.run = trace.run
        self.starts: array[int] = array("q", [NOT_STARTED]) * len(trace)
        self._ends: list[tuple[int, int]] = []

    def start(self, job: int, now: int) -> None:
        """Start a job; there must be room."""
        self.free -= self.processors[job]
        self.starts[job] = now
        heappush(self._ends, (now + self.run[job], job))

    def next_end(self) -> int:
        """Return when the next running job completes, NEVER if none runs."""
        return self._ends[0][0] if self._ends else NEVER

    def complete_next(self) -> int:
        """Complete that job, of several the first in queue order, and return it."""
        job = heappop(self._ends)[1]
        self.free += self.processors[job]
        return job


class Scheduler(Protocol):
    """Decides which waiting jobs start; told of each event after the machine has changed.

    `arrived` includes the pass that follows an arrival. `completed` only notes; `run_pass`
    follows after one completion or after all of one instant.
    """

    def arrived(self, job: int, now: int) -> None: ...

    def completed(self, job: int, now: int) -> None: ...

    def run_pass(self, now: int) -> None: ...

    def next_wake(self) -> int:
        """Return when to run a pass though nothing arrives or completes, NEVER if not needed."""
        ...
