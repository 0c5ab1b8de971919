"""Replays a trace on a bare cluster under FCFS, EASY or conservative backfill."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from backfill.sim.schedulers.family import scheduler_on
from backfill.sim.schedulers.machine import NEVER, Cluster, Machine, Scheduler, SchedulerName, Tie
from backfill.sim.schedulers.reservations import PoolEntry, kept_processors
from backfill.sim.traces.trace import JobTrace

CSV_HEADER = "job_id,submit,start,end,processors\n"
ROWS_PER_CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`starts[i]` is the start, in the trace's ticks, of job i of `trace`.

    `trace` holds the jobs that fit the cluster; the others are counted in its `left_out`.
    """

    trace: JobTrace
    cluster: Cluster
    scheduler: SchedulerName
    tie: Tie
    starts: array[int]
    reservations: int = 0

    def csv_chunks(self) -> Iterator[str]:
        """Yield the file `job_id,submit,start,end,processors` (seconds) in queue order."""
        yield CSV_HEADER
        trace = self.trace
        names = trace.job_id if trace.labels is None else map(quoted, trace.labels)
        rows = zip(names, trace.submit, self.starts, trace.run, trace.processors, strict=True)
        if trace.ticks_per_s == 1:
            lines = (f"{n},{submit},{t},{t + run},{p}\n" for n, submit, t, run, p in rows)
        else:
            shown = self._seconds
            lines = (
                f"{n},{shown(submit)},{shown(t)},{shown(t + run)},{p}\n" for n, submit, t, run, p in rows
            )
        while chunk := "".join(islice(lines, ROWS_PER_CHUNK)):
            yield chunk

    def _seconds(self, ticks: int) -> str:
        whole, rest = divmod(abs(ticks), self.trace.ticks_per_s)
        sign = "-" if ticks < 0 else ""
        return f"{sign}{whole}.{rest:03d}".rstrip("0").rstrip(".")


def quoted(text: str) -> str:
    """Return a cell of a CSV file: `12_[1,3]` has a comma in it."""
    if not set(',"\r\n').intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def replay(
    trace: JobTrace,
    cluster: Cluster,
    scheduler: SchedulerName = "easy",
    tie: Tie = "batch",
    reservations: Sequence[PoolEntry] = (),
) -> ReplayResult:
    """Decide every job's start; jobs that need more than the cluster has are left out.

    `batch`: at one instant all completions, then all arrivals, then one pass. `eventwise`: at one
    instant arrivals come before completions, and each event is followed by its own pass.
    """
    trace = trace.fitting(cluster.processors)
    machine = Machine(trace, cluster)
    model = scheduler_on(scheduler, trace, machine, kept_processors(reservations, trace, cluster))
    run = _run_batch if tie == "batch" else _run_eventwise
    run(trace.submit, machine, model)
    return ReplayResult(trace, cluster, scheduler, tie, machine.starts, len(reservations))


def _run_batch(submit: array[int], machine: Machine, model: Scheduler) -> None:
    """Go from instant to instant.

    In one pass the waiting jobs come before the new ones, so "completions, arrivals, one pass" is
    the same as a pass after the completions that goes on with each arrival.
    """
    count, arrived = len(submit), 0
    while True:
        end, wake = machine.next_end(), model.next_wake()
        now = min(end, wake, submit[arrived] if arrived < count else NEVER)
        if now == NEVER:
            return
        while machine.next_end() == now:
            model.completed(machine.complete_next(), now)
        if now in (end, wake):
            model.run_pass(now)
        while arrived < count and submit[arrived] == now:
            model.arrived(arrived, now)
            arrived += 1


def _run_eventwise(submit: array[int], machine: Machine, model: Scheduler) -> None:
    count, arrived = len(submit), 0
    while True:
        arrival = submit[arrived] if arrived < count else NEVER
        now = min(machine.next_end(), model.next_wake(), arrival)
        if now == NEVER:
            return
        while arrived < count and submit[arrived] == now:
            model.arrived(arrived, now)
            arrived += 1
        while machine.next_end() == now:
            model.completed(machine.complete_next(), now)
            model.run_pass(now)
        if model.next_wake() == now:
            model.run_pass(now)
