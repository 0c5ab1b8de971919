"""Replays a trace on bare metal alone: what a run with instances is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from backfill.sim.ledger import Ledger
from backfill.sim.metal_queues import NodeScheduler, queue_on
from backfill.sim.scenario import ReservationEntry
from backfill.sim.trace import Trace
from backfill.sim.trace_cluster import START_S, JobTale
from backfill.sim.waiting_asks import Ask


class BareReplay:
    """Slurm on nodes without anything else: a job's script begins at its allocation.

    The same pass at the same instants as in the simulated slurmctld, after all ends and arrivals,
    so that a job which no instance delays begins at the same time there. Times: see START_S.
    """

    def __init__(
        self,
        trace: Trace,
        names: Sequence[str],
        cpus: int,
        ledger: Ledger,
        kept: Sequence[ReservationEntry] = (),
        scheduler: NodeScheduler = "easy",
    ) -> None:
        self.tales: list[JobTale] = []
        self._trace, self._names, self._cpus, self._ledger = trace, tuple(names), cpus, ledger
        self._queue = queue_on(scheduler, names, cpus, kept, START_S)
        # When nodes that were kept are free again; behind them never.
        self._openings = [*sorted(START_S + entry.at_s + entry.for_s for entry in kept), inf]
        self._running: list[tuple[float, int, Ask]] = []  # a heap: by end, then by start
        self._started = 0
        self._now_s = START_S

    def run(self) -> None:
        """From the first arrival to the last end."""
        queue, running, openings = self._queue, self._running, self._openings
        trace, count = self._trace, len(self._trace)
        first, ticks = trace.submit[0], trace.ticks_per_s
        arrivals = [*(START_S + (at - first) / ticks for at in trace.submit), inf]
        number = 0
        while number < count or running or queue.waits:
            end_s = running[0][0] if running else inf
            now_s = self._now_s = min(arrivals[number], end_s, openings[0])
            while openings[0] <= now_s:
                del openings[0]
            while running and running[0][0] <= now_s:
                self._end(heappop(running)[2])
            while arrivals[number] <= now_s:
                self._arrive(number)
                number += 1
            if queue.waits:
                queue.schedule(now_s, self._start)

    def _arrive(self, number: int) -> None:
        trace, now_s = self._trace, self._now_s
        processors = trace.processors[number]
        nodes = -(-processors // self._cpus)
        each = -(-processors // nodes)
        estimate_s = trace.estimate[number] / trace.ticks_per_s
        self._queue.add(Ask(str(number), (now_s, number), nodes, each, estimate_s))
        self.tales.append(JobTale(number, True, each * nodes, now_s))

    def _start(self, ask: Ask, nodes: int) -> None:
        number = ask.order[1]
        tale = self.tales[number]
        tale.start_s, tale.names, tale.placed = self._now_s, self._names, nodes
        self._started += 1
        run_s = self._trace.run[number] / self._trace.ticks_per_s
        heappush(self._running, (self._now_s + run_s, self._started, ask))

    def _end(self, ask: Ask) -> None:
        self._queue.ended(ask)
        tale, now_s = self.tales[ask.order[1]], self._now_s
        tale.end_s, tale.completed, tale.run_s = now_s, True, now_s - tale.start_s
        self._ledger.ran(tale, tale.start_s, now_s)
