"""Conservative backfill on nodes keeps its promises, and starts everybody when a naive one does."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.sim.replay.policy_replay import Setting, reference
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.schedulers.conservative import Conservative
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.schedulers.node_sets import nodes_in
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import ReservationEntry
from backfill.sim.schedulers.rooms import Nodes
from backfill.sim.traces.models import ModelJob
from tests.unit.harvest_inputs import policy, trace_of

NODES, CPUS = 4, 3
NAMES = tuple(f"n{i}" for i in range(NODES))

jobs = st.lists(
    st.tuples(st.integers(0, 15), st.integers(1, 9), st.integers(0, 9), st.integers(1, NODES * CPUS)),
    min_size=1,
    max_size=16,
).map(lambda drawn: [ModelJob(s, r, p, r + more) for s, r, more, p in sorted(drawn)])
entries = st.lists(
    st.builds(
        ReservationEntry,
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=NODES, unique=True).map(tuple),
        st.integers(0, 30).map(float),
        st.integers(1, 20).map(float),
        st.booleans(),
    ),
    max_size=2,
).map(tuple)


@dataclass
class Naive:
    """Looks at every second of every node; a span is (start, end, nodes, CPUs on each)."""

    jobs: list[ModelJob]
    kept: tuple[ReservationEntry, ...]
    starts: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    promises: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # what each was promised at its arrival

    def play(self) -> None:
        now, gone = 0, set[int]()
        while len(self.starts) < len(self.jobs):
            ended = {j for j, (at, _) in self.starts.items() if at + self.jobs[j].run_s <= now}
            early = {j for j in ended - gone if self.end(j) > now}
            gone |= ended
            waiting = [
                j
                for j, job in enumerate(self.jobs)
                if j not in self.starts and job.submit_s - self.jobs[0].submit_s <= now
            ]
            for j in waiting:
                if j not in self.promises or (early and self.promises[j][0] > now):
                    self.promises.pop(j, None)
                    self.promises[j] = self.earliest(j, now, gone)
                    self.first.setdefault(j, self.promises[j][0])
            for j in [j for j in waiting if self.promises[j][0] == now]:
                self.starts[j] = self.promises.pop(j)
            now += 1

    def end(self, j: int) -> int:
        return self.starts[j][0] + self.jobs[j].estimate_s

    def shape(self, j: int) -> tuple[int, int]:
        nodes = -(-self.jobs[j].processors // CPUS)
        return nodes, -(-self.jobs[j].processors // nodes)

    def earliest(self, j: int, now: int, gone: set[int]) -> tuple[int, list[int]]:
        spans = [
            (at, at + self.jobs[i].estimate_s, nodes, self.shape(i)[1])
            for i, (at, nodes) in (*self.starts.items(), *self.promises.items())
            if i not in gone
        ]
        for one in self.kept:
            numbers = [NAMES.index(name) for name in one.nodes]
            spans.append((int(one.at_s), int(one.at_s + one.for_s), numbers, CPUS))
        need, cpus = self.shape(j)
        at = now
        while True:
            times = range(at, at + self.jobs[j].estimate_s)
            fit = [
                node
                for node in range(NODES)
                if all(
                    cpus + sum(c for a, e, on, c in spans if a <= t < e and node in on) <= CPUS for t in times
                )
            ]
            if len(fit) >= need:
                return at, fit[:need]
            at += 1


@given(jobs, entries)
@settings(max_examples=60, deadline=None)
def test_starts_equal_the_oracle(drawn: list[ModelJob], kept: tuple[ReservationEntry, ...]) -> None:
    """At the same second on the same nodes, and never later than was promised at the arrival."""
    naive = Naive(drawn, kept)
    naive.play()
    setting = Setting(
        Cluster(NODES, CPUS), trace_of(drawn), None, NAMES, 64, kept=kept, scheduler="conservative"
    )
    found = reference(setting, policy()).tales
    told = {t.index: (t.start_s - START_S, [NAMES.index(host) for host in t.hosts]) for t in found}
    assert told == naive.starts
    assert all(naive.starts[j][0] <= naive.first[j] for j in naive.starts)


@given(jobs, st.integers(1, CPUS), st.lists(st.floats(0.0, 3.0), min_size=16, max_size=16))
@settings(max_examples=60, deadline=None)
def test_jobs_that_are_held_up_break_nothing_else(
    drawn: list[ModelJob], cpus: int, late_s: list[float]
) -> None:
    """They end behind their estimates: room is never exceeded, and everybody starts in the end."""
    queue = Conservative(Nodes([cpus] * NODES))
    fitting = [job for job in drawn if job.processors <= NODES]
    coming = [
        Request(str(i), (job.submit_s, i), job.processors, 1 + i % cpus, float(job.estimate_s))
        for i, job in enumerate(fitting)
    ]
    ends: list[tuple[float, Request]] = []
    free, now_s, left = [cpus] * NODES, 0.0, len(coming)

    def start(request: Request, nodes: int) -> None:
        nonlocal left
        left -= 1
        assert nodes.bit_count() == request.nodes
        for node in nodes_in(nodes):
            free[node] -= request.cpus
            assert free[node] >= 0
        ends.append((now_s + request.estimate_s + late_s[int(request.name)], request))

    while left:
        due = [end_s for end_s, _ in ends] + [float(request.order[0]) for request in coming]
        now_s = min([*due, queue.wake_s(now_s)])
        assert now_s < inf
        for end_s, request in [one for one in ends if one[0] <= now_s]:
            ends.remove((end_s, request))
            queue.ended(request)
            for node in nodes_in(request.placed):
                free[node] += request.cpus
        while coming and coming[0].order[0] <= now_s:
            queue.add(coming.pop(0))
        if queue.waits:
            queue.schedule(now_s, start)


def test_a_withdrawn_job_leaves_its_place_to_the_others() -> None:
    """Whoever waited behind it gains."""
    queue = Conservative(Nodes([1]))
    begun: list[str] = []
    for number, name in enumerate("abc"):
        queue.add(Request(name, (0.0, number), 1, 1, 5.0))
    queue.schedule(0.0, lambda request, nodes: begun.append(request.name))
    assert (begun, queue.wake_s(0.0)) == (["a"], 5.0)
    queue.withdraw("b")
    queue.schedule(1.0, lambda request, nodes: begun.append(request.name))
    assert queue.wake_s(1.0) == 5.0
