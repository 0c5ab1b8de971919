"""Replays a trace on bare metal alone: what a run with instances is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from backfill.sim.replay.ledger import Ledger
from backfill.sim.replay.trace_cluster import START_S, JobTale
from backfill.sim.schedulers.family import scheduler_in
from backfill.sim.schedulers.machine import SchedulerName, Tie
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import ReservationEntry, kept_nodes
from backfill.sim.schedulers.rooms import Nodes
from backfill.sim.traces.trace import JobTrace


class BareReplay:
    """Slurm on nodes without anything else: a job's script begins at its allocation.

    The same passes at the same instants as in the simulated slurmctld, so that a job which no
    instance delays begins at the same time there. It begins at `start_s`. Ties: see `replay`.
    """

    def __init__(
        self,
        trace: JobTrace,
        names: Sequence[str],
        cpus: int,
        ledger: Ledger,
        kept: Sequence[ReservationEntry] = (),
        scheduler: SchedulerName = "easy",
        tie: Tie = "batch",
        start_s: float = START_S,
    ) -> None:
        self.tales: list[JobTale] = []
        self._trace, self._names, self._cpus, self._ledger = trace, tuple(names), cpus, ledger
        self._queue = scheduler_in(scheduler, Nodes([cpus] * len(names), kept_nodes(kept, names, start_s)))
        self._eventwise = tie == "eventwise"
        self._running: list[tuple[float, int, Request]] = []  # a heap: by end, then in queue order
        self._now_s = start_s
        first, ticks = trace.begin, trace.ticks_per_s
        self._arrivals = [*(start_s + (at - first) / ticks for at in trace.submit), inf]
        self._number = 0  # of the next job

    def run(self) -> None:
        """From the first arrival to the last end."""
        queue, running, arrivals = self._queue, self._running, self._arrivals
        while (arrival_s := arrivals[self._number]) < inf or running or queue.waits:
            end_s = running[0][0] if running else inf
            wake_s = queue.wake_s(self._now_s) if queue.waits else inf
            self._now_s = min(arrival_s, end_s, wake_s)
            if self._eventwise:
                self._arrive()
                self._end()
            else:
                self._end()
                self._arrive()
            if not self._eventwise or wake_s < min(arrival_s, end_s):
                self._pass()

    def _pass(self) -> None:
        if self._queue.waits:
            self._queue.schedule(self._now_s, self._start)

    def _arrive(self) -> None:
        """Submit all jobs that are due."""
        while self._arrivals[self._number] <= self._now_s:
            self._submit(self._number)
            self._number += 1
            if self._eventwise:
                self._pass()

    def _end(self) -> None:
        """End all jobs that are due."""
        running, now_s = self._running, self._now_s
        while running and running[0][0] <= now_s:
            request = heappop(running)[2]
            self._queue.ended(request)
            tale = self.tales[request.order[1]]
            tale.end_s, tale.completed, tale.run_s = now_s, True, now_s - tale.start_s
            self._ledger.ran(tale, tale.start_s, now_s)
            if self._eventwise:
                self._pass()

    def _submit(self, number: int) -> None:
        trace, now_s = self._trace, self._now_s
        processors = trace.processors[number]
        nodes = -(-processors // self._cpus)
        each = -(-processors // nodes)
        estimate_s = trace.estimate[number] / trace.ticks_per_s
        self._queue.add(Request(str(number), (now_s, number), nodes, each, estimate_s))
        self.tales.append(JobTale(number, True, each * nodes, now_s))

    def _start(self, request: Request, nodes: int) -> None:
        number = request.order[1]
        tale = self.tales[number]
        tale.start_s, tale.names, tale.placed = self._now_s, self._names, nodes
        run_s = self._trace.run[number] / self._trace.ticks_per_s
        heappush(self._running, (self._now_s + run_s, number, request))
