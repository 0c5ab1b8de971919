"""FCFS, EASY and conservative backfill start every job when a deliberately naive oracle does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.sim.replay.bare import ReplayResult, replay
from backfill.sim.schedulers.machine import SCHEDULERS, TIES, Cluster, SchedulerName, Tie
from backfill.sim.traces.trace import TraceBuilder

PROCESSORS = 8
MODES = [(scheduler, tie) for scheduler in SCHEDULERS for tie in TIES]


@dataclass(frozen=True)
class Job:
    submit: int
    number: int
    run: int
    estimate: int
    processors: int


@dataclass
class Oracle:
    """Works everything out anew in every pass; `promised` is each job's first reservation."""

    jobs: list[Job]
    processors: int
    scheduler: str
    tie: str
    starts: dict[Job, int] = field(default_factory=dict)
    promised: dict[Job, int] = field(default_factory=dict)
    reserved: dict[Job, int] = field(default_factory=dict)
    running: list[Job] = field(default_factory=list)
    queue: list[Job] = field(default_factory=list)
    early: bool = False

    def solve(self) -> dict[Job, int]:
        coming = sorted(self.jobs, key=lambda job: (job.submit, job.number))
        while coming or self.running or self.queue:
            now = min(
                [job.submit for job in coming]
                + [self.end(job) for job in self.running]
                + list(self.reserved.values())
            )
            arrivals = [job for job in coming if job.submit == now]
            coming = [job for job in coming if job.submit != now]
            if self.tie == "batch":
                for job in self.ending(now):
                    self.finish(job, now)
                self.queue += arrivals
                self.run_pass(now)
            else:
                for job in arrivals:
                    self.queue.append(job)
                    self.run_pass(now)
                for job in self.ending(now):
                    self.finish(job, now)
                    self.run_pass(now)
                self.run_pass(now)
        return self.starts

    def end(self, job: Job) -> int:
        return self.starts[job] + job.run

    def estimated_end(self, job: Job) -> int:
        return self.starts[job] + job.estimate

    def ending(self, now: int) -> list[Job]:
        ending = [job for job in self.running if self.end(job) == now]
        return sorted(ending, key=lambda job: (job.submit, job.number))

    def finish(self, job: Job, now: int) -> None:
        self.running.remove(job)
        self.early = self.early or now < self.estimated_end(job)

    def free(self) -> int:
        return self.processors - sum(job.processors for job in self.running)

    def start(self, job: Job, now: int) -> None:
        assert job.processors <= self.free(), "the oracle itself overbooks"
        self.starts[job] = now
        self.running.append(job)
        self.queue.remove(job)
        self.reserved.pop(job, None)

    def run_pass(self, now: int) -> None:
        if self.scheduler == "conservative":
            self.conservative_pass(now)
            return
        while self.queue and self.queue[0].processors <= self.free():
            self.start(self.queue[0], now)
        if self.scheduler == "easy" and self.queue:
            self.backfill(now)

    def backfill(self, now: int) -> None:
        head, *others = self.queue
        instants = sorted({self.estimated_end(job) for job in self.running})
        shadow = next(time for time in instants if self.free_then(time) >= head.processors)
        extra = self.free_then(shadow) - head.processors
        for job in others:
            if job.processors > self.free():
                continue
            if now + job.estimate <= shadow:
                self.start(job, now)
            elif job.processors <= extra:
                extra -= job.processors
                self.start(job, now)

    def free_then(self, time: int) -> int:
        gone = [job for job in self.running if self.estimated_end(job) <= time]
        return self.free() + sum(job.processors for job in gone)

    def conservative_pass(self, now: int) -> None:
        if self.early:
            self.early = False
            for job in self.queue:
                if job in self.reserved and self.reserved[job] > now:
                    del self.reserved[job]
                    self.reserved[job] = self.earliest(job, now)
        for job in self.queue:
            if job not in self.reserved:
                self.reserved[job] = self.promised[job] = self.earliest(job, now)
        for job in list(self.queue):
            if self.reserved[job] <= now and job.processors <= self.free():
                self.start(job, now)

    def earliest(self, job: Job, now: int) -> int:
        spans = [(self.starts[j], self.estimated_end(j), j.processors) for j in self.running]
        spans += [(t, t + j.estimate, j.processors) for j, t in self.reserved.items()]
        for begin in sorted({now} | {end for _, end, _ in spans if end > now}):
            window = range(begin, begin + job.estimate)
            instants = {begin} | {start for start, _, _ in spans if start in window}
            if all(
                sum(p for start, end, p in spans if start <= t < end) + job.processors <= self.processors
                for t in instants
            ):
                return begin
        raise AssertionError("a job that fits the machine fits when all others have ended")


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 15), st.integers(1, 9), st.integers(0, 8), st.integers(1, PROCESSORS)),
            min_size=1,
            max_size=24,
        )
    )
    return [Job(s, number, run, run + over, p) for number, (s, run, over, p) in enumerate(rows)]


def run(jobs: list[Job], processors: int, scheduler: SchedulerName, tie: Tie) -> ReplayResult:
    builder = TraceBuilder()
    for job in jobs:
        builder.add(job.number, job.submit, job.run, job.processors, job.estimate)
    return replay(builder.build(), Cluster(processors), scheduler, tie)


def in_queue_order(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.submit, job.number))


def starts_of(jobs: list[Job], result: ReplayResult) -> dict[Job, int]:
    return dict(zip(in_queue_order(jobs), result.starts, strict=True))


def make_jobs(seed: int, count: int, spread: int) -> list[Job]:
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        length = rng.choice([rng.randint(1, 20), rng.randint(1, 2000)])
        estimate = rng.choice([length, length + rng.randint(0, 500), 2000])
        size = rng.choice([1, 1, 1, 2, 3, rng.randint(1, 32)])
        jobs.append(Job(rng.randint(0, spread), number, length, max(length, estimate), size))
    return jobs


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@given(jobs=job_lists())
@settings(max_examples=250, deadline=None)
def test_starts_equal_the_oracle(scheduler: SchedulerName, tie: Tie, jobs: list[Job]) -> None:
    """Every scheduler starts every job at the very instant at which the naive one does."""
    expected = Oracle(jobs, PROCESSORS, scheduler, tie).solve()
    assert starts_of(jobs, run(jobs, PROCESSORS, scheduler, tie)) == expected


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@pytest.mark.parametrize("spread", [0, 3000])
def test_long_queues_equal_the_oracle(scheduler: SchedulerName, tie: Tie, spread: int) -> None:
    """Hundreds of waiting jobs, where the index by size and estimate is at work, change nothing."""
    count = 120 if scheduler == "conservative" else 700
    jobs = make_jobs(seed=spread + 1, count=count, spread=spread)
    expected = Oracle(jobs, 32, scheduler, tie).solve()
    assert starts_of(jobs, run(jobs, 32, scheduler, tie)) == expected


@pytest.mark.parametrize(("scheduler", "tie"), MODES)
@given(jobs=job_lists())
@settings(max_examples=60, deadline=None)
def test_capacity_is_never_exceeded(scheduler: SchedulerName, tie: Tie, jobs: list[Job]) -> None:
    """No job starts before its submission, and never do more processors work than there are."""
    starts = starts_of(jobs, run(jobs, PROCESSORS, scheduler, tie))
    assert all(start >= job.submit for job, start in starts.items())
    for now in starts.values():
        active = [job for job, start in starts.items() if start <= now < start + job.run]
        assert sum(job.processors for job in active) <= PROCESSORS


@pytest.mark.parametrize("tie", TIES)
@given(jobs=job_lists())
@settings(max_examples=60, deadline=None)
def test_fcfs_keeps_the_order(tie: Tie, jobs: list[Job]) -> None:
    """Under FCFS nobody starts before somebody who is ahead in the queue."""
    result = run(jobs, PROCESSORS, "fcfs", tie)
    assert all(first <= second for first, second in pairwise(result.starts))


@given(jobs=job_lists())
@settings(max_examples=250, deadline=None)
def test_a_backfilled_job_never_delays_the_head(jobs: list[Job]) -> None:
    """A head starts no later than the reservation that it got without those who overtook it."""
    starts = starts_of(jobs, run(jobs, PROCESSORS, "easy", "batch"))
    order = in_queue_order(jobs)
    for position, head in enumerate(order):
        ahead = order[:position]
        became_head = max([head.submit, *(starts[job] for job in ahead)])
        behind = set(order[position:])
        running = [
            (starts[job] + job.estimate, job.processors)
            for job in order
            if starts[job] <= became_head < starts[job] + job.run
            and not (job in behind and starts[job] == became_head)
        ]
        free = PROCESSORS - sum(processors for _, processors in running)
        reservation = became_head
        for end, processors in sorted(running):
            if free >= head.processors:
                break
            free += processors
            reservation = end
        assert starts[head] <= reservation


@given(jobs=job_lists())
@settings(max_examples=150, deadline=None)
def test_conservative_keeps_its_promises(jobs: list[Job]) -> None:
    """Under conservative backfill no job starts later than it was told at its submission."""
    oracle = Oracle(jobs, PROCESSORS, "conservative", "batch")
    oracle.solve()
    starts = starts_of(jobs, run(jobs, PROCESSORS, "conservative", "batch"))
    assert all(starts[job] <= promised for job, promised in oracle.promised.items())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_order_of_events_at_one_instant(scheduler: SchedulerName) -> None:
    """`eventwise` lets an arrival go first where `batch` sees the completion beforehand."""
    waits = [Job(0, 1, 10, 10, 6), Job(1, 2, 10, 10, 8), Job(10, 3, 5, 5, 2)]
    batch = starts_of(waits, run(waits, PROCESSORS, scheduler, "batch"))
    eventwise = starts_of(waits, run(waits, PROCESSORS, scheduler, "eventwise"))
    assert batch == eventwise == {waits[0]: 0, waits[1]: 10, waits[2]: 20}


def test_an_unexpected_end_at_an_arrival_tells_the_tie_modes_apart() -> None:
    """Job 3 arrives when job 1 ends early: `eventwise` backfills it, `batch` starts the head."""
    jobs = [Job(0, 1, 10, 30, 6), Job(1, 2, 10, 10, 8), Job(10, 3, 15, 15, 2)]
    batch = starts_of(jobs, run(jobs, PROCESSORS, "easy", "batch"))
    eventwise = starts_of(jobs, run(jobs, PROCESSORS, "easy", "eventwise"))
    assert [batch[job] for job in jobs] == [0, 10, 20]
    assert [eventwise[job] for job in jobs] == [0, 25, 10]
