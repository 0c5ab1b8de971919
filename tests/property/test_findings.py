"""What plans keep from earlier ones makes them faster, never different: tests/conftest.py looks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.changes import HoldSet
from backfill.core.fleet import Flavour
from backfill.core.guards import Limits
from backfill.core.lifecycle import Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports import UnreachableError
from backfill.sim.rehearsal import Rehearsal

HOSTS = ("bm1", "bm2", "bm3")
LADDERS = (
    (RungRule(Rung.PAUSE, 1.0, 10.0), RungRule(Rung.SUSPEND, 60.0, 40.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.PAUSE, 1.0, 5.0), RungRule(Rung.MIGRATE, 30.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.MIGRATE, 5.0), RungRule(Rung.PAUSE, 1.0, 1000.0)),
    (RungRule(Rung.REQUEUE),),
)
ACCIDENTS = (
    "kill daemon",
    "stop slurm",
    "cut host",
    "requeue",
    "cancel",
    "drain",
    "crash instance",
    "calls fail",
    "close host",
)


def policies(ladder: tuple[RungRule, ...], warm: int) -> PolicySet:
    return PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(
            names=tuple(f"vn{i}" for i in range(1, 9)),
            addresses=tuple(f"10.77.1.{i}/16" for i in range(1, 9)),
            flavour=Flavour(cpus=1, memory_mb=256),
        ),
        hosts=(*HOSTS, "bm4"),  # the last one is never seen
        ladder=Ladder(ladder),
        scale=Scale(idle_s=20, boot_within_s=30, retry_after_s=5, give_up_after=3, warm=warm),
        limits=Limits(stale_after_s=10.0),
    )


class Day:
    """A simulated day on three hosts, with what goes wrong in it."""

    def __init__(self, ladder: tuple[RungRule, ...], warm: int) -> None:
        self.sim = SimulatedWorld()
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.add_partition("batch", tier=10, feature="metal")
        for host in HOSTS:
            self.sim.add_host(host, cpus=2, features=("metal",))
        self.run = Rehearsal(self.sim, policies(ladder, warm), MemoryJournal())
        self.jobs: list[str] = []

    def submit(self, partition: str, run_s: float, at_s: float, cpus: int = 1) -> None:
        at_s += self.sim.now_s
        self.jobs.append(self.sim.submit(partition, run_s, at_s=at_s, cpus=cpus))

    def arrange(self, kind: str, at_s: float, pick: int) -> None:
        happen = getattr(self, "_" + kind.replace(" ", "_"))
        self.sim.at(self.sim.now_s + at_s, lambda: happen(pick))

    def _kill_daemon(self, pick: int) -> None:
        if self.run.alive:
            self.run.kill()
            self.sim.at(self.sim.now_s + 1.0 + pick, self.run.start)

    def _stop_slurm(self, pick: int) -> None:
        self.sim.stop_slurm()
        self.sim.at(self.sim.now_s + 5.0 * (1 + pick), self.sim.start_slurm)

    def _cut_host(self, pick: int) -> None:
        self.sim.cut_host(HOSTS[pick % 3])
        self.sim.at(self.sim.now_s + 4.0 * (1 + pick), lambda: self.sim.join_host(HOSTS[pick % 3]))

    def _low_jobs(self) -> list[str]:
        seen = [self.sim.job(j) for j in self.jobs]
        return [j.id for j in seen if j.partition == "htc" and j.active]

    def _requeue(self, pick: int) -> None:
        for job in self._low_jobs()[pick : pick + 1]:
            self.sim.requeue_behind(job, delay_s=10.0)

    def _cancel(self, pick: int) -> None:
        for job in self._low_jobs()[pick : pick + 1]:
            self.sim.user_cancel(job)

    def _drain(self, pick: int) -> None:
        host = HOSTS[pick % 3]
        self.sim.admin_drain(host, "a disk is being changed")
        self.sim.at(self.sim.now_s + 15.0, lambda: self.sim.admin_drain(host, ""))

    def _crash_instance(self, pick: int) -> None:
        names = sorted(n for h in self.sim.hosts.values() for n in h.instances)
        for name in names[pick : pick + 1]:
            self.sim.crash_instance(name)

    def _calls_fail(self, pick: int) -> None:
        call = ("create", "suspend", "restore", "migrate", "thaw", "wake")[pick]
        self.sim.faults.fail(call, UnreachableError("vn", "no answer"), times=2)

    def _close_host(self, pick: int) -> None:
        subject = (*HOSTS, "vn1", "vn2", "vn3")[pick]
        self._hold(subject, on=True)
        self.sim.at(self.sim.now_s + 8.0, lambda: self._hold(subject, on=False))

    def _hold(self, subject: str, *, on: bool) -> None:
        if self.run.alive:
            self.run.cycle.take([HoldSet(subject, self.sim.now_s, on, "a test")])


seconds = st.floats(1.0, 80.0).map(lambda s: round(s, 2))
lows = st.lists(st.tuples(st.integers(5, 60).map(float), seconds), min_size=1, max_size=6)
highs = st.lists(st.tuples(st.integers(2, 30).map(float), seconds), min_size=1, max_size=4)
accidents = st.lists(st.tuples(st.sampled_from(ACCIDENTS), seconds, st.integers(0, 5)), max_size=6)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(LADDERS), st.integers(0, 2), lows, highs, accidents)
def test_a_plan_that_goes_on_from_findings_is_the_plan(
    ladder: tuple[RungRule, ...],
    warm: int,
    low: list[tuple[float, float]],
    high: list[tuple[float, float]],
    wrong: list[tuple[str, float, int]],
) -> None:
    """Whatever happens outside, plan after plan is equal: actions, refusals, times, their order."""
    day = Day(ladder, warm)
    for run_s, at_s in low:
        day.submit("htc", run_s, at_s, cpus=1 + int(run_s) % 2)
    for run_s, at_s in high:
        day.submit("batch", run_s, at_s)
    for kind, at_s, pick in wrong:
        day.arrange(kind, at_s, pick)
    day.run.run(200.0)


def test_another_policy_is_followed_at_once(findings_kept: list[int]) -> None:
    """Nothing that was found out under one policy is used under another."""
    day = Day(LADDERS[0], 1)
    day.submit("htc", 500.0, 1.0)
    day.run.run(30.0)
    cycle = day.run.cycle
    cycle.policies = replace(cycle.policies, scale=Scale(warm=3))
    day.run.run(30.0)
    assert len(day.run.world.managed) == 4
    assert max(findings_kept) > 4
