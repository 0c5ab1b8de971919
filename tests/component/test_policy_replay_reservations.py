"""Reservations in a replay with policies: kept clear by Slurm, looked ahead to by the daemon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backfill.core.policies.gaps import Gaps
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.policy_replay import Run, Setting, reference
from backfill.sim.replay.policy_replay import run as played
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.schedulers.machine import Cluster, SchedulerName
from backfill.sim.schedulers.reservations import ReservationEntry
from backfill.sim.traces.models import ModelJob, htc_pilot
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import JobTrace
from backfill.ui.commands.replay import main
from backfill.ui.parser import BAD_DATA
from backfill.ui.report.gantt import Gantt, Look
from tests.unit.harvest_inputs import policy, trace_of
from tests.unit.policy_files import text

NODES = 5
NAMES = tuple(f"n{i}" for i in range(NODES))

jobs = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 9), st.integers(1, 2 * NODES)),
    min_size=1,
    max_size=20,
).map(lambda drawn: trace_of(ModelJob(s, r, p, r + more) for s, r, more, p in sorted(drawn)))
entries = st.lists(
    st.builds(
        ReservationEntry,
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=NODES, unique=True).map(tuple),
        st.integers(0, 60).map(float),
        st.integers(1, 30).map(float),
        st.booleans(),
    ),
    max_size=3,
).map(tuple)


schedulers = st.sampled_from(("easy", "fcfs"))  # conservative: tests/property


def bare(trace: JobTrace, cpus: int, kept: tuple[ReservationEntry, ...], scheduler: SchedulerName) -> Run:
    fitting = trace.fitting(NODES * cpus)
    cluster = Cluster(NODES, cpus)
    setting = Setting(cluster, fitting, None, NAMES, 1024, kept=kept, scheduler=scheduler)
    return reference(setting, policy())


@dataclass(frozen=True)
class Naive:
    """With reservations on nodes of one CPU, worked out anew at every second."""

    trace: JobTrace
    kept: tuple[ReservationEntry, ...]
    scheduler: SchedulerName

    def fits(self, free: set[str], need: int, at_s: float, estimate_s: float) -> list[str]:
        """The first nodes that are free and not kept meanwhile; too few: none."""
        closed = {
            name
            for one in self.kept
            for name in one.nodes
            if one.at_s < at_s + estimate_s and one.at_s + one.for_s > at_s
        }
        found = [name for name in NAMES if name in free and name not in closed]
        return found[:need] if len(found) >= need else []

    def starts(self) -> list[float]:
        """Of every job, in the trace's order."""
        found: dict[int, float] = {}
        has: dict[int, list[str]] = {}
        now_s = 0.0
        while len(found) < len(self.trace):
            for job in [j for j in has if found[j] + self.trace.run[j] <= now_s]:
                del has[job]
            submit, first = self.trace.submit, self.trace.submit[0]
            waiting = [j for j in range(len(submit)) if j not in found and submit[j] - first <= now_s]
            promised: tuple[float, list[str]] | None = None
            for job in waiting:
                nodes = self.place(job, now_s, found, has, promised)
                if nodes:
                    found[job], has[job] = now_s, nodes
                elif promised is None:
                    promised = self.promise(job, now_s, found, has)
            now_s += 1.0
        return [found[job] for job in range(len(self.trace))]

    def place(
        self,
        job: int,
        now_s: float,
        found: dict[int, float],
        has: dict[int, list[str]],
        promised: tuple[float, list[str]] | None,
    ) -> list[str]:
        free = set(NAMES).difference(*has.values())
        need, estimate_s = self.trace.processors[job], self.trace.estimate[job]
        if promised is None:
            return self.fits(free, need, now_s, estimate_s)
        if self.scheduler == "fcfs":
            return []
        at_s, nodes = promised
        if now_s + estimate_s > at_s:
            return self.fits(free.difference(nodes), need, now_s, estimate_s)
        fit = self.fits(free, 1, now_s, estimate_s) and [
            name for name in NAMES if self.fits(free & {name}, 1, now_s, estimate_s)
        ]
        first = [name for name in fit if name in nodes] + [n for n in fit if n not in nodes]
        return first[:need] if len(first) >= need else []

    def promise(
        self, job: int, now_s: float, found: dict[int, float], has: dict[int, list[str]]
    ) -> tuple[float, list[str]]:
        """When the head fits by estimates, and on which nodes: busy ones rather than idle ones."""
        need, estimate_s = self.trace.processors[job], self.trace.estimate[job]
        at_s = now_s
        while True:
            busy = {n for j in has if found[j] + self.trace.estimate[j] > at_s for n in has[j]}
            free = set(NAMES) - busy
            if self.fits(free, need, at_s, estimate_s):
                fit = [n for n in NAMES if self.fits(free & {n}, 1, at_s, estimate_s)]
                working = set().union(*has.values())
                fit.sort(key=lambda name: name not in working)
                return at_s, fit[:need]
            at_s += 1.0


@settings(max_examples=80, deadline=None)
@given(jobs, entries, schedulers)
def test_it_looks_ahead(
    trace: JobTrace, kept: tuple[ReservationEntry, ...], scheduler: SchedulerName
) -> None:
    """Every job starts when a naive scheduler, which works everything out anew, starts it."""
    fitting = trace.fitting(NODES)
    assume(len(fitting))
    starts = bare(trace, 1, kept, scheduler).high_starts()
    found = [starts[i] - START_S for i in range(len(fitting))]
    assert found == Naive(fitting, kept, scheduler).starts()


@settings(max_examples=40, deadline=None)
@given(jobs, entries, st.integers(1, 3), schedulers)
def test_nothing_runs_where_and_while_nodes_are_kept(
    trace: JobTrace, kept: tuple[ReservationEntry, ...], cpus: int, scheduler: SchedulerName
) -> None:
    """By its estimate every job is over before; and all of them run in the end."""
    fitting = trace.fitting(NODES * cpus)
    assume(len(fitting))
    for tale in bare(trace, cpus, kept, scheduler).tales:
        begin_s, limit_s = tale.start_s - START_S, fitting.estimate[tale.index]
        for one in kept:
            if one.at_s < begin_s + limit_s and one.at_s + one.for_s > begin_s:
                assert not set(one.nodes) & set(tale.hosts)


@settings(max_examples=25, deadline=None)
@given(jobs, entries, st.integers(1, 2), schedulers)
def test_the_simulated_slurm_agrees(
    trace: JobTrace, kept: tuple[ReservationEntry, ...], cpus: int, scheduler: SchedulerName
) -> None:
    """With a daemon that has nothing to do every job is where the run without it has it."""
    fitting = trace.fitting(NODES * cpus)
    assume(len(fitting))
    costs = ReplayCosts(steps=StepCosts(hook_s=0.0))
    cluster = Cluster(NODES, cpus)
    setting = Setting(cluster, fitting, None, NAMES, 1024, 0, 0, 0, costs, 0, kept, scheduler)
    alone, whole = reference(setting, policy()), played(setting, policy(), inf)
    told = [[(t.index, t.start_s, t.end_s, t.hosts) for t in one.tales] for one in (alone, whole)]
    assert told[0] == told[1]


def test_an_instance_has_left_when_the_maintenance_begins() -> None:
    """Its host is clear in time, stays clear, and has work again afterwards; nothing is lost."""
    high = trace_of([ModelJob(0, 10, 1), ModelJob(4000, 10, 1)])
    low = trace_of(htc_pilot(1, 40, 1.0, backlog=40))
    kept = (ReservationEntry(("n0", "n1"), 1000.0, 600.0),)
    names = ("n0", "n1")
    rules = replace(policy(), hosts=names, gaps=Gaps(clear_before_s=30.0))
    addresses = ("10.0.0.1/8", "10.0.0.2/8")
    rules = replace(rules, instances=replace(rules.instances, names=("v1", "v2"), addresses=addresses))
    setting = Setting(Cluster(2), high, low, names, 4096, 16, kept=kept)
    gantt = Gantt()
    found = played(setting, rules, reference(setting, rules).ledger.window.end_s, gantt)
    spans = [s for s in gantt.spans(found.tales, high.name) if s.look in (Look.LOW, Look.RUNNING)]
    times = [(s.start_s - START_S, s.end_s - START_S) for s in spans]
    assert any(end_s <= 1000 for _, end_s in times)
    assert any(start_s >= 1600 for start_s, _ in times)
    assert not [span for span in times if span[0] < 1600 and span[1] > 1000]
    assert sum(tale.lost_s for tale in found.tales) == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("reservations: [{nodes: bm9, at_s: 1h, for_s: 1h}]", "has bm9, which is no host"),
        ("reservations: [{nodes: bm1, at_s: 1h, for_s: 0}]", "it must be more than 0"),
        ("reservation: []", "did you mean reservations?"),
        ("", "the reservations file is empty"),
        ("- 1", "the reservations file has no keys"),
        ("reservations: []\n" + "#" * 1_000_000, "is larger than 1000000 bytes"),
    ],
)
def test_a_wrong_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    """With its line and the remedy, and nothing is replayed."""
    (tmp_path / "t.swf").write_text("".join(swf_lines([(0, 60, 1, 60)], ())))
    (tmp_path / "p.yaml").write_text(text())
    (tmp_path / "r.yaml").write_text(content)
    options = ["--policy", str(tmp_path / "p.yaml"), "--reservations", str(tmp_path / "r.yaml")]
    assert main([str(tmp_path / "t.swf"), "--cluster", "2x2", *options]) == BAD_DATA
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


def test_a_maintenance_may_be_under_way_when_the_replay_begins(tmp_path: Path) -> None:
    """As one of processors may, without a policy: its nodes are kept from the first moment on."""
    (tmp_path / "t.swf").write_text("".join(swf_lines([ModelJob(0, 60, 2), ModelJob(0, 60, 2)], ())))
    (tmp_path / "policy.yaml").write_text(text())
    (tmp_path / "kept.yaml").write_text("reservations: [{nodes: bm1, at_s: 0, for_s: 10m}]\n")
    out = tmp_path / "jobs.csv"
    options = ("--policy", str(tmp_path / "policy.yaml"), "--reservations", str(tmp_path / "kept.yaml"))
    assert main([str(tmp_path / "t.swf"), "--cluster", "2x2", *options, "--jobs-csv", str(out)]) == 0
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    assert [row[-1] for row in rows] == ["bm2", "bm2"]
