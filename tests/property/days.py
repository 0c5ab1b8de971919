"""Random days of a simulated cluster: its work, and what goes wrong meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from hypothesis import note
from hypothesis import strategies as st

from backfill.core.changes import Claimed, HoldSet
from backfill.core.cluster import ENDED
from backfill.core.lifecycle import Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet, Priorities
from backfill.drivers.simulated.books import Manners
from backfill.drivers.simulated.model import Reservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports import UnreachableError
from backfill.sim.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE

HOSTS = ("bm1", "bm2", "bm3")
ACCIDENTS = (
    "kill daemon",
    "stop slurm",
    "cut host",
    "requeue",
    "cancel",
    "drain",
    "crash instance",
    "calls fail",
    "answers lost",
    "slurm calls fail",
    "slurm answers lost",
    "stops fail",
    "stops are slow",
    "change ladder",
    "false hook",
    "hook again",
    "never boots",
    "close host",
    "maintenance",
)
Work = list[tuple[float, float]]  # run time and arrival, seconds


@dataclass(frozen=True)
class Accident:
    """What goes wrong, when (seconds after the start), and a number that picks the victim."""

    kind: str
    at_s: float
    pick: int


def accidents(*, but: Iterable[str] = ()) -> st.SearchStrategy[list[Accident]]:
    """Up to six of them."""
    kinds = [kind for kind in ACCIDENTS if kind not in but]
    moments = st.floats(1.0, 90.0).map(lambda s: round(s, 2))
    one = st.builds(Accident, st.sampled_from(kinds), moments, st.integers(0, 5))
    return st.lists(one, max_size=6)


lows = st.lists(
    st.tuples(st.integers(5, 60).map(float), st.floats(0.0, 40.0)), min_size=1, max_size=6
)
highs = st.lists(
    st.tuples(st.integers(2, 30).map(float), st.floats(5.0, 80.0)), min_size=1, max_size=4
)


def policies(ladder: tuple[RungRule, ...], **rules: object) -> PolicySet:
    """Up to twelve small instances on three hosts."""
    given = PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=TWELVE,
        hosts=HOSTS,
        ladder=Ladder(ladder),
    )
    return replace(given, **rules)  # type: ignore[arg-type]  # its own fields


class _Errors(logging.Handler):
    """Keeps what the decision loop calls an error, such as a plan that does not settle."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


_ERRORS = _Errors()
logging.getLogger("backfill.cycle").addHandler(_ERRORS)


class Day:
    """One simulated day with its work and its accidents. `shared`: jobs and instances share hosts.

    `dead`: when nobody could evict.
    """

    def __init__(self, rules: PolicySet, *, shared: bool = False) -> None:
        _ERRORS.found.clear()
        # The hook is built to wait longer than the daemon takes for its word, as on any cluster.
        self.sim = SimulatedWorld(manners=Manners(hook_timeout_s=rules.answer_within_s + 1))
        self.sim.checks.shared = shared
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.add_partition("batch", tier=10, feature="metal")
        for host in HOSTS:
            self.sim.add_host(host, cpus=2, features=("metal",))
        self.run = Rehearsal(self.sim, rules, MemoryJournal())
        self._rules, self._costs = rules, self.run.costs
        self.jobs: list[str] = []
        self.dead: list[tuple[float, float]] = []

    def fill(self, low: Work, high: Work, wrong: Iterable[Accident], *, odd: bool = False) -> None:
        """Submit all work, arrange all accidents. `odd`: some want 2 CPUs."""
        for run_s, at_s in low:
            self.submit("htc", run_s, at_s, cpus=1 + (int(run_s) % 2 if odd else 0))
        for run_s, at_s in high:
            self.submit("batch", run_s, at_s)
        for accident in wrong:
            happen = getattr(self, "_" + accident.kind.replace(" ", "_"))
            self.sim.at(self.sim.now_s + accident.at_s, partial(happen, accident.pick))

    def submit(self, partition: str, run_s: float, at_s: float, cpus: int = 1) -> None:
        """One job, `at_s` seconds from now."""
        at_s += self.sim.now_s
        self.jobs.append(self.sim.submit(partition, run_s, at_s=at_s, cpus=cpus))

    # --- accidents -----------------------------------------------------------------------------

    def _kill_daemon(self, pick: int) -> None:
        if self.run.alive:
            self.run.kill()
            back_s = self.sim.now_s + 1.0 + pick
            self.dead.append((self.sim.now_s, back_s + 3.0))
            self.sim.at(back_s, self.run.start)

    def _stop_slurm(self, pick: int) -> None:
        self.sim.stop_slurm()
        self.sim.at(self.sim.now_s + 5.0 * (1 + pick), self.sim.start_slurm)

    def _cut_host(self, pick: int) -> None:
        host, back_s = HOSTS[pick % 3], self.sim.now_s + 4.0 * (1 + pick)
        self.sim.cut_host(host)
        self.dead.append((self.sim.now_s, back_s + 6.0))
        self.sim.at(back_s, lambda: self.sim.join_host(host))

    def _low_job(self, pick: int) -> str | None:
        low = [j for j in self.jobs if self.sim.job(j).partition == "htc"]
        alive = [j for j in low if self.sim.job(j).active]
        return alive[pick % len(alive)] if alive else None

    def _requeue(self, pick: int) -> None:
        job = self._low_job(pick)
        if job is not None:
            self.sim.requeue_behind(job, delay_s=10.0)

    def _cancel(self, pick: int) -> None:
        job = self._low_job(pick)
        if job is not None:
            self.sim.user_cancel(job)

    def _drain(self, pick: int) -> None:
        host = HOSTS[pick % 3]
        self.sim.admin_drain(host, "a disk is being changed")
        self.sim.at(self.sim.now_s + 15.0, lambda: self.sim.admin_drain(host, ""))

    def _crash_instance(self, pick: int) -> None:
        names = sorted(n for h in self.sim.hosts.values() for n in h.instances)
        if names:
            self.sim.crash_instance(names[pick % len(names)])

    def _calls_fail(self, pick: int) -> None:
        call = ("create", "suspend", "restore", "migrate", "thaw", "wake")[pick]
        self.sim.faults.fail(call, UnreachableError("vn", "no answer"), times=2)

    def _answers_lost(self, pick: int) -> None:
        call = ("create", "suspend", "restore", "migrate", "thaw", "delete")[pick]
        self.sim.faults.fail(call, UnreachableError("vn", "no answer"), times=1, acts=True)

    def _slurm_calls_fail(self, pick: int) -> None:
        call = ("drain", "undrain", "suspend_job", "resume_job", "create_node", "set_address")[pick]
        self.sim.faults.fail(call, UnreachableError("slurm", "no answer"), times=2)

    def _slurm_answers_lost(self, pick: int) -> None:
        calls = ("drain", "suspend_job", "resume_job", "requeue_job", "create_node", "delete_node")
        self.sim.faults.fail(calls[pick], UnreachableError("slurm", "no answer"), acts=True)

    def _stops_fail(self, pick: int) -> None:
        """The answer to a hook may then be no: it was said that there is no room."""
        self.dead.append((self.sim.now_s, self.sim.now_s + 60.0))
        error = UnreachableError("vn", "no answer")
        self.sim.faults.fail("pause", error, times=1 + pick // 2, acts=pick % 2 == 0)

    def _stops_are_slow(self, pick: int) -> None:
        """Some of them for longer than a hook waits."""
        usual = self._costs
        self.dead.append((self.sim.now_s, self.sim.now_s + 30.0))
        self.run.costs = replace(usual, pause_s=0.5 * (1 + pick))
        self.sim.at(self.sim.now_s + 20.0, lambda: setattr(self.run, "costs", usual))

    def _change_ladder(self, pick: int) -> None:
        """Without its first rung, for a while; also a daemon that starts meanwhile has it so."""
        usual = self._rules
        rungs = usual.ladder.rungs[1:] or usual.ladder.rungs
        self._decide_by(replace(usual, ladder=Ladder(rungs)))
        self.sim.at(self.sim.now_s + 5.0 * (1 + pick), lambda: self._decide_by(usual))

    def _decide_by(self, rules: PolicySet) -> None:
        self.run.policies = self.run.cycle.policies = rules

    def _false_hook(self, pick: int) -> None:
        """For a job that nobody knows (any more)."""
        self._claim(f"99999{pick}", HOSTS[pick % 3])

    def _hook_again(self, pick: int) -> None:
        """Of a job whose hook has spoken, or never did."""
        high = [j for j in self.jobs if self.sim.job(j).partition == "batch"]
        holding = [j for j in high if self.sim.job(j).active]
        if holding:
            job = self.sim.job(holding[pick % len(holding)])
            self._claim(job.id, job.nodes[0])

    def _claim(self, job_id: str, host: str) -> None:
        if self.run.alive and host in self.run.world.hosts:
            self.run.cycle.take([Claimed(job_id, (host,), self.sim.now_s, waiting=True)])

    def _never_boots(self, pick: int) -> None:
        self.sim.faults.never_boots(f"vn{1 + pick}", 1)

    def _close_host(self, pick: int) -> None:
        subject = (*HOSTS, "vn1", "vn2", "vn3")[pick]
        self._hold(subject, on=True)
        self.sim.at(self.sim.now_s + 8.0, lambda: self._hold(subject, on=False))

    def _hold(self, subject: str, *, on: bool) -> None:
        if self.run.alive:
            self.run.cycle.take([HoldSet(subject, self.sim.now_s, on, "a test")])

    def _maintenance(self, pick: int) -> None:
        """Of which one hears some seconds before, or as it begins."""
        start_s = self.sim.now_s + 5.0 * (pick // 3)
        self.sim.slurm.reserve([HOSTS[pick % 3]], Reservation(start_s, start_s + 25.0, True))

    # --- its end -------------------------------------------------------------------------------

    def over(self) -> bool:
        """Whether every job has ended."""
        return all(self.sim.job(j).state in ENDED for j in self.jobs)

    def quiet(self) -> bool:
        """Nothing is left but records of failures that nobody needs to repeat."""
        managed = self.run.world.managed.values()
        return self.run.alive and all(m.phase is Phase.FAILED for m in managed)

    def until(self, done: Callable[[], bool], limit_s: float) -> None:
        """Let time pass; what happened last is told if `done` does not come about."""
        try:
            self.run.until(done, limit_s)
        except TimeoutError:
            for record in list(self.run.journal.read())[-60:]:
                note(f"{record.at_s:.2f} {record.kind} {record.subject} {record.body}")
            raise

    def broken(self) -> list[object]:
        """Promises that were broken although somebody could act, and plans without an end."""
        found = [v for v in self.sim.audit() if v.kind != "room" or not self._excused(v.at_s)]
        return [*found, *_ERRORS.found]

    def _excused(self, at_s: float) -> bool:
        return any(begin_s <= at_s <= end_s for begin_s, end_s in self.dead)
