"""EASY on nodes decides as EASY on a pool where it must, and keeps its promise to the head."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.bare import replay
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.policy_replay import Setting, reference
from backfill.sim.replay.policy_replay import run as played
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.schedulers.easy import Easy
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.schedulers.node_sets import nodes_in
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.rooms import Nodes
from backfill.sim.traces.trace import JobTrace, TraceBuilder
from tests.unit.harvest_inputs import policy

NODES = 6

# (submit, run, more estimate, nodes or processors, CPUs on each)
drawn_jobs = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(1, 20), st.integers(0, 10), st.integers(1, NODES), st.integers(1, 4)
    ),
    min_size=1,
    max_size=25,
)


def trace(jobs: list[tuple[int, int, int, int, int]]) -> JobTrace:
    builder = TraceBuilder()
    for number, (submit, run, more, processors, _) in enumerate(jobs, 1):
        builder.add(number, submit, run, processors, run + more)
    return builder.build()


def bare(jobs: JobTrace, cluster: Cluster, policies: PolicySet) -> list[float]:
    names = tuple(f"n{i}" for i in range(cluster.nodes))
    found = reference(Setting(cluster, jobs, node_names=names, memory_mb=1024), policies)
    starts = found.high_starts()
    return [starts[i] - START_S + jobs.submit[0] for i in range(len(jobs))]


@settings(max_examples=60, deadline=None)
@given(drawn_jobs)
def test_on_nodes_of_one_cpu_it_is_easy(drawn: list[tuple[int, int, int, int, int]]) -> None:
    """Without instances every job starts exactly when the replay on a pool starts it."""
    jobs, cluster = trace(drawn), Cluster(NODES, 1)
    expected = replay(jobs, cluster, "easy", "batch").starts
    assert bare(jobs, cluster, policy()) == [float(start) for start in expected]


@settings(max_examples=30, deadline=None)
@given(drawn_jobs, st.integers(1, 3))
def test_the_run_without_instances_is_the_simulated_slurm_with_nothing_to_do(
    drawn: list[tuple[int, int, int, int, int]], cpus: int
) -> None:
    """EASY alone and the whole simulation, with a hook that takes no time, agree on every job."""
    cluster, policies = Cluster(NODES, cpus), policy()
    names = tuple(f"n{i}" for i in range(NODES))
    costs = ReplayCosts(steps=StepCosts(hook_s=0.0))
    setting = Setting(cluster, trace(drawn), node_names=names, memory_mb=1024, costs=costs)
    alone, whole = reference(setting, policies), played(setting, policies, float("inf"))
    told = [[(t.index, t.start_s, t.end_s, t.hosts) for t in one.tales] for one in (alone, whole)]
    assert told[0] == told[1]


@dataclass
class Stage:
    """Plays one queue by hand and looks at every pass."""

    easy: Easy = field(default_factory=lambda: Easy(Nodes([4] * NODES)))
    running: dict[str, tuple[Request, float]] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def free_at(self, time_s: float) -> list[int]:
        """Free CPUs of each node, by estimates."""
        free = [4] * NODES
        for request, _ in self.running.values():
            for node in nodes_in(request.placed):
                free[node] -= request.cpus * (request.end_s > time_s)
        return free

    def earliest(self, head: Request, now_s: float) -> float:
        """When the head fits by estimates if nobody else comes, worked out naively."""
        times = sorted({now_s, *(max(now_s, request.end_s) for request, _ in self.running.values())})
        for time_s in times:
            if sum(free >= head.cpus for free in self.free_at(time_s)) >= head.nodes:
                return time_s
        raise AssertionError("the head never fits")

    def run_pass(self, now_s: float, waiting: list[tuple[Request, float]]) -> None:
        runs = {request.name: run_s for request, run_s in waiting}
        promised: list[float] = []

        def start(request: Request, nodes: int) -> None:
            left = [w for w, _ in waiting if w.name not in self.running and w.name in runs]
            head = min(left, key=lambda w: w.order)
            if request is not head:  # it overtakes: what was the head promised before?
                promised.append(self.earliest(head, now_s))
            assert nodes.bit_count() == request.nodes
            self.running[request.name] = (request, now_s + runs[request.name])
            assert min(self.free_at(now_s - 1e9)) >= 0
            if request is not head:
                assert self.earliest(head, now_s) <= promised[-1]
            self.begun.append(request.name)

        self.easy.schedule(now_s, start)


@settings(max_examples=80, deadline=None)
@given(drawn_jobs)
def test_nobody_who_overtakes_delays_the_head(drawn: list[tuple[int, int, int, int, int]]) -> None:
    """With nodes of several CPUs too: room is never exceeded, the head never waits longer."""
    stage = Stage()
    waiting: list[tuple[Request, float]] = []
    coming = sorted(enumerate(drawn), key=lambda item: (item[1][0], item[0]))
    while coming or waiting or stage.running:
        ends = [end_s for _, end_s in stage.running.values()]
        now_s = float(min([job[0] for _, job in coming[:1]] + ends))
        for name in [n for n, (_, end_s) in stage.running.items() if end_s == now_s]:
            stage.easy.ended(stage.running.pop(name)[0])
        while coming and coming[0][1][0] == now_s:
            number, (submit, run, more, nodes, cpus) = coming.pop(0)
            request = Request(str(number), (submit, number), nodes, cpus, float(run + more))
            stage.easy.add(request)
            waiting.append((request, float(run)))
        stage.run_pass(now_s, waiting)
        waiting = [(request, run) for request, run in waiting if request.name not in stage.begun]
    assert sorted(stage.begun, key=int) == [str(number) for number in range(len(drawn))]


def test_a_withdrawn_job_is_forgotten() -> None:
    """A waiting job that is taken back lets the next one be the head."""
    easy = Easy(Nodes([1]))
    begun: list[str] = []
    first, second = (Request(name, (0.0, i), 1, 1, 5.0) for i, name in enumerate("ab"))
    easy.add(first)
    easy.add(second)
    easy.withdraw("a")
    easy.schedule(0.0, lambda request, nodes: begun.append(request.name))
    assert (begun, easy.waits) == (["b"], 0)
