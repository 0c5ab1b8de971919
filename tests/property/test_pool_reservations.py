"""Reservations on a pool: each scheduler starts each job when an oracle, second by second, does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backfill.sim.replay.bare import replay
from backfill.sim.schedulers.machine import SCHEDULERS, TIES, Cluster, SchedulerName, Tie
from backfill.sim.schedulers.reservations import PoolEntry
from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.trace import JobTrace
from tests.unit.harvest_inputs import trace_of

PROCESSORS = 8
MODES = [(scheduler, tie) for scheduler in SCHEDULERS for tie in TIES]

traces = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 8), st.integers(1, PROCESSORS)),
    min_size=1,
    max_size=16,
).map(lambda rows: trace_of(ModelJob(s, r, p, r + over) for s, r, over, p in sorted(rows)))
entries = st.lists(
    st.builds(PoolEntry, st.integers(0, 50), st.integers(1, 20), st.integers(0, PROCESSORS)), max_size=3
)


@dataclass
class Oracle:
    """Counts processors second by second, and makes a pass in each second, due or not."""

    trace: JobTrace
    entries: list[PoolEntry]
    scheduler: SchedulerName
    tie: Tie
    starts: dict[int, int] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    reserved: dict[int, int] = field(default_factory=dict)  # conservative: every job's start
    ended_early: bool = False

    def solve(self) -> list[int]:
        trace = self.trace
        now = trace.submit[0]
        while len(self.starts) < len(trace):
            arrivals = [job for job in range(len(trace)) if trace.submit[job] == now]
            ending = [job for job in self.running if self.starts[job] + trace.run[job] == now]
            ending.sort()
            if self.tie == "batch":
                for job in ending:
                    self.finish(job, now)
                self.queue += arrivals
            else:
                for job in arrivals:
                    self.queue.append(job)
                    self.make_pass(now)
                for job in ending:
                    self.finish(job, now)
                    self.make_pass(now)
            self.make_pass(now)
            now += 1
        return [self.starts[job] for job in range(len(trace))]

    def kept(self, second: int) -> int:
        since = second - self.trace.submit[0]
        there = [e for e in self.entries if e.at_s <= since < e.at_s + e.for_s]
        return min(PROCESSORS, sum(e.processors or PROCESSORS for e in there))

    def finish(self, job: int, now: int) -> None:
        self.running.remove(job)
        self.ended_early |= now < self.starts[job] + self.trace.estimate[job]

    def fits(self, job: int, start: int, promised: dict[int, int]) -> bool:
        """From `start` to its estimated end, beside running jobs and what others were promised."""
        trace = self.trace
        begun = {job: self.starts[job] for job in self.running} | promised
        for second in range(start, start + trace.estimate[job]):
            used = [j for j, at in begun.items() if at <= second < at + trace.estimate[j]]
            taken = sum(trace.processors[j] for j in used) + self.kept(second)
            if taken + trace.processors[job] > PROCESSORS:
                return False
        return True

    def start(self, job: int, now: int) -> bool:
        """Start it, unless so many are not free yet at this very instant."""
        busy = sum(self.trace.processors[j] for j in self.running)
        if busy + self.trace.processors[job] > PROCESSORS:
            return False
        self.starts[job] = now
        self.running.append(job)
        self.queue.remove(job)
        return True

    def earliest(self, job: int, now: int, promised: dict[int, int]) -> int:
        start = now
        while not self.fits(job, start, promised):
            start += 1
        return start

    def make_pass(self, now: int) -> None:
        if self.scheduler == "conservative":
            self.keep_promises(now)
            return
        while self.queue and self.fits(self.queue[0], now, {}) and self.start(self.queue[0], now):
            pass
        if self.scheduler == "easy" and self.queue:
            head, *others = self.queue
            promised = {head: self.earliest(head, now, {})}
            for job in others:
                if self.fits(job, now, promised):
                    self.start(job, now)

    def keep_promises(self, now: int) -> None:
        if self.ended_early:
            self.ended_early = False
            for job in [job for job in self.queue if self.reserved.get(job, now) > now]:
                del self.reserved[job]
                self.reserved[job] = self.earliest(job, now, self.reserved)
        for job in self.queue:
            if job not in self.reserved:
                self.reserved[job] = self.earliest(job, now, self.reserved)
        for job in list(self.queue):
            if self.reserved[job] <= now and self.start(job, now):
                del self.reserved[job]


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@given(traces, entries)
@example(  # the third job can overtake from 10 on; the fourth, which comes then, may not go first
    trace_of(
        [ModelJob(0, 100, 4, 100), ModelJob(1, 9, 8, 9), ModelJob(2, 20, 4, 20), ModelJob(10, 20, 4, 20)]
    ),
    [PoolEntry(5, 5, 3)],
)
@settings(max_examples=60)
def test_starts_equal_the_oracle(
    scheduler: SchedulerName, tie: Tie, trace: JobTrace, kept: list[PoolEntry]
) -> None:
    """Whatever is kept, part of the machine or all of it, and however entries overlap."""
    found = replay(trace, Cluster(PROCESSORS), scheduler, tie, kept)
    assert list(found.starts) == Oracle(trace, kept, scheduler, tie).solve()


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@given(traces)
@settings(max_examples=40)
def test_what_is_kept_when_all_is_over_changes_nothing(
    scheduler: SchedulerName, tie: Tie, trace: JobTrace
) -> None:
    """With the timeline that reservations need every job starts as it does without any."""
    found = replay(trace, Cluster(PROCESSORS), scheduler, tie, [PoolEntry(1e6, 1.0)])
    assert found.starts == replay(trace, Cluster(PROCESSORS), scheduler, tie).starts
