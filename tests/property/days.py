"""Random days of a simulated cluster: its work, and what goes wrong meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial

from hypothesis import note
from hypothesis import strategies as st

from backfill.core.model.changes import Claimed, HoldSet, NodeManaged
from backfill.core.model.cluster import ENDED, JobState
from backfill.core.model.fleet import InstanceSpec, Tag
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet, Priorities
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.hypervisor.hardware import Violation
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.slurm.model import SimReservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.checkpoint_order import CommandError, checkpoint_order
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError
from backfill.ports.storage import Record
from backfill.sim.scenarios.rehearsal import Rehearsal
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
    "clock set",
    "reboot",
)
# What a hostile week brings as well.
HOSTILE = (
    "jobs unseen",
    "nodes unseen",
    "half unseen",
    "slurm forgets jobs",
    "instances unseen",
    "thaw refused",
    "guests silent",
    "file server out",
    "suspend refused",
    "journal restored",
    "disk full",
    "admin suspends",
    "power cut",
    "finishes",
    "undrained",
)
# And what a second one brings.
SECOND = (
    "disk hangs",
    "few instances seen",
    "calls are slow",
    "checkpoint",
    "clock set",
    "half unseen",
    "undrained",
    "journal restored",
    "kill daemon",
)
# What a slow machine does slowly, beside what has an accident of its own.
_OFTEN = ("thaw_s", "wake_s", "wake_again_s", "drain_s", "undrain_s", "slurm_call_s", "create_node_s")
Work = list[tuple[float, float]]  # run time and arrival, seconds


@dataclass(frozen=True)
class Accident:
    """What goes wrong, when (seconds after the start), and a number, 0 to 5, for whom and how."""

    kind: str
    at_s: float
    pick: int


def accidents(*, but: Iterable[str] = (), more: Iterable[str] = ()) -> st.SearchStrategy[list[Accident]]:
    """Up to six of them."""
    kinds = [*(kind for kind in ACCIDENTS if kind not in but), *more]
    moments = st.floats(1.0, 90.0).map(lambda s: round(s, 2))
    one = st.builds(Accident, st.sampled_from(kinds), moments, st.integers(0, 5))
    return st.lists(one, max_size=6)


lows = st.lists(st.tuples(st.integers(5, 60).map(float), st.floats(0.0, 40.0)), min_size=1, max_size=6)
highs = st.lists(st.tuples(st.integers(2, 30).map(float), st.floats(5.0, 80.0)), min_size=1, max_size=4)


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
        said = record.getMessage()
        if not said.startswith("the journal cannot be written"):  # which it is told to say
            self.found.append(said)


class HangingJournal(MemoryJournal):
    """On a disk that may hang, as behind `PromptJournal`: one batch waits, and may be stored after all."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self._late: list[Record] = []
        self._stored: list[Record] = []  # of which the daemon was told that they are not

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none; while it hangs nobody knows which."""
        new = list(records)
        if self.hangs:
            self._late = self._late or new
            raise UnreachableError("journal", "its disk did not answer within 1 s")
        known = set(map(id, self._stored))
        super().append(record for record in new if id(record) not in known)
        self._stored = []

    def answer(self, *, stored: bool) -> None:
        """The disk answers: what waited for it was stored, or refused."""
        self.hangs, late, self._late = False, self._late, []
        if stored and not self.full:
            super().append(late)
            self._stored = late


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
        self.run = Rehearsal(self.sim, rules, HangingJournal())
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
        self.submit_one(partition, run_s, at_s, cpus=cpus)

    def submit_one(self, partition: str, run_s: float, at_s: float, **wishes: object) -> None:
        """One job with wishes of its own, fields of SimJob."""
        at_s += self.sim.now_s
        self.jobs.append(self.sim.submit(partition, run_s, at_s=at_s, **wishes))

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
        end_s = self.sim.now_s + 60.0
        self.dead.append((self.sim.now_s, end_s + 5.0))
        error = UnreachableError("vn", "no answer")
        order = self.sim.faults.fail("pause", error, times=1 + pick // 2, acts=pick % 2 == 0)
        self.sim.at(end_s, order.end)

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
        # As they are by then: at the day's end they ask for no idle instance.
        self.sim.at(self.sim.now_s + 5.0 * (1 + pick), lambda: self._decide_by(self._rules))

    def _decide_by(self, rules: PolicySet) -> None:
        self.run.policies = self.run.cycle.policies = rules

    def _false_hook(self, pick: int) -> None:
        """For a job that nobody knows (any more)."""
        self._claim(f"99999{pick}", HOSTS[pick % 3])

    # --- readings that lack what is there ----------------------------------------------------

    def _misread(self, odd: Odd, pick: int, host: str | None = None) -> None:
        """Once, or (every second) twice in a row."""
        self.sim.faults.misread(odd, subject=host, times=1 + pick % 2)

    def _jobs_unseen(self, pick: int) -> None:
        self._misread(Odd.NO_JOBS, pick)

    def _nodes_unseen(self, pick: int) -> None:
        self._misread(Odd.NO_NODES, pick)

    def _half_unseen(self, pick: int) -> None:
        self._misread(Odd.HALF, pick)

    def _instances_unseen(self, pick: int) -> None:
        """Whoever asks for room meanwhile may be told that there is some."""
        self.dead.append((self.sim.now_s, self.sim.now_s + 10.0))
        self._misread(Odd.NO_INSTANCES, pick, HOSTS[pick % 3])

    def _few_instances_seen(self, pick: int) -> None:
        """Of a host; whoever asks for room meanwhile may be told that there is some."""
        self.dead.append((self.sim.now_s, self.sim.now_s + 10.0))
        self._misread(Odd.FEW_INSTANCES, pick, HOSTS[pick % 3])

    def _slurm_forgets_jobs(self, pick: int) -> None:
        """Whoever asks: until it has read its own state, some seconds."""
        order = self.sim.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
        self.sim.at(self.sim.now_s + 2.0 + pick, order.end)

    # --- returns that take long --------------------------------------------------------------

    def _refuse(self, call: str, error: DriverError, for_s: float) -> None:
        order = self.sim.faults.fail(call, error, times=-1)
        self.sim.at(self.sim.now_s + for_s, order.end)

    def _thaw_refused(self, pick: int) -> None:
        """By a hypervisor whose lock somebody holds, for minutes."""
        self._refuse("thaw", BusyError("vn", "cannot acquire state change lock"), 60.0 * (1 + pick))

    def _guests_silent(self, pick: int) -> None:
        for call in ("wake", "release", "freeze"):
            self._refuse(call, UnreachableError("vn", "its agent is silent"), 60.0 * (1 + pick))

    def _file_server_out(self, pick: int) -> None:
        """For 75 s, the shortest time that was ever too long, or more."""
        self.sim.stop_file_server()
        self.sim.at(self.sim.now_s + 75.0 * (1 + pick), self.sim.start_file_server)

    # --- what others do ----------------------------------------------------------------------

    def _suspend_refused(self, pick: int) -> None:
        """For a while, or for one job for ever."""
        if pick < 3:
            error = RefusedError("job", "a plugin of this site refuses")
            self._refuse("suspend_job", error, 20.0 * (1 + pick))
        elif job := self._low_job(pick):
            error = RefusedError("job", "it must not be suspended")
            self.sim.faults.fail("suspend_job", error, subject=job, times=-1)

    def _journal_restored(self, pick: int) -> None:
        """The daemon's disk broke; what there is of its journal is some minutes old.

        What is newer than the book is taken over after 10 s, and not stopped before.
        """
        self.dead.append((self.sim.now_s, self.sim.now_s + 25.0 + pick))
        if self.run.alive and isinstance(self.run.journal, MemoryJournal):
            # A copy lacks the end and nothing else, also where the clock was set back meanwhile.
            old_s, kept = self.run.now_s - 30.0 * (1 + pick), list(self.run.journal.read())
            while kept and kept[-1].at_s > old_s:
                kept.pop()
            self._kill_daemon(pick)
            self.run.journal = HangingJournal()
            self.run.journal.append(kept)

    def _disk_full(self, pick: int) -> None:
        """Nothing can be journaled for a while: a daemon that dies meanwhile has to do without."""
        journal = self.run.journal
        if isinstance(journal, MemoryJournal):
            journal.full = True
            self.sim.at(self.sim.now_s + 15.0 * (1 + pick), lambda: setattr(journal, "full", False))

    def _disk_hangs(self, pick: int) -> None:
        """It takes what was written last in the end, or not; the daemon may have died meanwhile."""
        journal = self.run.journal
        if isinstance(journal, HangingJournal):
            journal.hangs = True
            answer = partial(journal.answer, stored=pick % 2 == 0)
            self.sim.at(self.sim.now_s + 10.0 * (1 + pick), answer)

    def _calls_are_slow(self, pick: int) -> None:
        """All but stops take thirty times as long: what follows one another comes in another order."""
        usual = self._costs  # also where it is slow already
        slow = {f.name: 30.0 * getattr(usual, f.name) for f in fields(usual) if f.name in _OFTEN}
        self.run.costs = replace(usual, **slow)
        self.sim.at(self.sim.now_s + 10.0 * (1 + pick), lambda: setattr(self.run, "costs", self._costs))

    def _checkpoint(self, pick: int) -> None:
        """Somebody orders one of a job, if it can be had now."""
        job = self._low_job(pick)
        if job is not None and self.run.alive:
            with suppress(CommandError):
                _, nodes = checkpoint_order(self.run.world, job)
                self.run.cycle.take([NodeManaged(node) for node in nodes])

    def _admin_suspends(self, pick: int) -> None:
        """An admin stops a job, and lets it go on after some time."""
        job = self._low_job(pick)
        if job is not None:
            self.sim.admin_suspend(job)
            self.sim.at(self.sim.now_s + 20.0 * (1 + pick), partial(self._admin_resumes, job))

    def _admin_resumes(self, job: str) -> None:
        if self.sim.job(job).state is JobState.SUSPENDED:
            self.sim.admin_resume(job)

    def _power_cut(self, pick: int) -> None:
        """A host loses its power, and boots after some time."""
        host, back_s = HOSTS[pick % 3], self.sim.now_s + 20.0 * (1 + pick)
        self.sim.kill_host(host)
        self.dead.append((self.sim.now_s, back_s + 6.0))
        self.sim.at(back_s, lambda: self.sim.power_host(host, 10.0))

    def _finishes(self, pick: int) -> None:
        """A job comes to its end as its last guest is stopped, or is seen to before its time."""
        job = self._low_job(pick)
        if job is not None and "CONFIGURING" not in self.sim.job(job).flags:
            self.sim.finish_job(job)

    def _undrained(self, pick: int) -> None:
        """An admin lifts a drain of ours, because the node looks fine."""
        ours = sorted(m.name for m in self.run.world.managed.values() if m.name in self.sim.nodes)
        if ours:
            self.sim.admin_drain(ours[pick % len(ours)], "")

    def _hook_again(self, pick: int) -> None:
        """Of a job whose hook has spoken, or never did."""
        high = [j for j in self.jobs if self.sim.job(j).partition == "batch"]
        holding = [j for j in high if self.sim.job(j).active]
        if holding:
            job = self.sim.job(holding[pick % len(holding)])
            self._claim(job.id, job.nodes[0])

    def _claim(self, job_id: str, host: str) -> None:
        if self.run.alive and host in self.run.world.hosts:
            self.run.cycle.take([Claimed(job_id, (host,), self.run.now_s, waiting=True)])

    def _never_boots(self, pick: int) -> None:
        self.sim.faults.never_boots(f"vn{1 + pick}", 1)

    def _close_host(self, pick: int) -> None:
        subject = (*HOSTS, "vn1", "vn2", "vn3")[pick]
        if self.run.alive:
            self._hold(subject, on=True)
            self.sim.at(self.sim.now_s + 8.0, lambda: self._open(subject))

    def _open(self, subject: str) -> None:
        """The admin looks from time to time whether it is open: a restored journal may close it again."""
        if self.run.alive and {*self.run.world.closed, *self.run.world.off} & {subject}:
            self._hold(subject, on=False)
        self.sim.at(self.sim.now_s + 60.0, lambda: self._open(subject))

    def _hold(self, subject: str, *, on: bool) -> None:
        self.run.cycle.take([HoldSet(subject, self.run.now_s, on, "a test")])

    def _maintenance(self, pick: int) -> None:
        """Of which one hears some seconds before, or as it begins."""
        start_s = self.sim.now_s + 5.0 * (pick // 3)
        self.sim.slurm.reserve([HOSTS[pick % 3]], SimReservation(start_s, start_s + 25.0, True))

    def _clock_set(self, pick: int) -> None:
        """The machine's, by a person or its time server; the daemon may be down meanwhile."""
        self.sim.set_clock((21600.0, -21600.0, 70.0, -70.0, 315360000.0, 1.5)[pick])

    def _old_copy(self, pick: int) -> None:
        """A host's disk comes from a backup: an instance that was removed is there once more."""
        removed = sorted(self.run.world.removed.items())
        host = HOSTS[pick % 3]
        if removed and self.run.alive:
            name, generation = removed[pick % len(removed)]
            flavour, tag = self._rules.instances.flavour, Tag(self._rules.cluster, name, generation)
            self.sim.provider.create(InstanceSpec(name, host, tag, flavour, "default", "10.77.1.99/16"))

    def _reboot(self, pick: int) -> None:
        """The controller's machine, which comes back with another time of day."""
        if self.run.alive:
            self._kill_daemon(pick)
            self.sim.reboot_clock((0.0, 0.0, 21600.0, -21600.0, -1.5, 90.0)[pick])

    # --- its end -------------------------------------------------------------------------------

    def keep_no_spares(self) -> None:
        """At the end of the day the policy asks for no idle instance."""
        rules = self._rules
        self._rules = replace(rules, scale=replace(rules.scale, warm=0))
        self._decide_by(self._rules)

    def over(self) -> bool:
        """Whether every job has ended."""
        return all(self.sim.job(j).state in ENDED for j in self.jobs)

    def quiet(self) -> bool:
        """Nothing is left but records of failures that nobody needs to repeat.

        An instance of which a restored journal says nothing is left, too: it is taken over only
        after some seconds, and must end all the same.
        """
        managed = self.run.world.managed.values()
        return self.run.alive and all(m.phase is Phase.FAILED for m in managed) and not self.left()

    def does_as_told(self) -> bool:
        """Whether a person does what refusals ask for: what waits for somebody's word begins anew or ends.

        Whoever is told of silent nodes looks which of them have no machine any more, and sets those DOWN.
        """
        asking = (Code.COPY_BESIDE, Code.COPY_UNSURE, Code.LEFT_OVER_STILL)
        waits = [r for r in self.run.cycle.last.refusals if r.code in asking]
        facts = [fact.value for r in waits for fact in r.facts if fact.name == "jobs"]
        named = {str(job) for value in facts if isinstance(value, tuple) for job in value}
        alive = sorted(job for job in named if self.sim.job(job).active)
        for job in alive:
            if self.sim.job(job).requeue:
                self.sim.requeue_behind(job, delay_s=10.0)
            else:
                self.sim.user_cancel(job)
        dead = [r.subject for r in self.run.cycle.last.refusals if r.code is Code.BROKEN_NETWORK]
        there = {name for host in HOSTS for name in self.sim.hosts[host].instances}
        for name in dead:
            if name in self.sim.nodes and name not in there:
                self.sim.slurm.set_down(name, "its machine is gone")
        return bool(alive or dead)

    def left(self) -> str:
        """Say which nodes and instances of ours there really are, or return an empty text."""
        nodes = self.sim.nodes.difference(HOSTS)
        there = [name for host in HOSTS for name in self.sim.hosts[host].instances]
        return f"nodes {sorted(nodes)}, instances {sorted(there)}" if nodes or there else ""

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
        return [*self.unexcused(), *_ERRORS.found]

    def unexcused(self) -> list[Violation]:
        """All that the audit finds, but for rooms that were wanted when nobody could act."""
        return [v for v in self.sim.audit() if v.kind != "room" or not self._excused(v.at_s)]

    def errors(self) -> list[tuple[str, str]]:
        """What the decision loop called an error."""
        return [("unsettled", str(text)) for text in _ERRORS.found]

    def _excused(self, at_s: float) -> bool:
        return any(begin_s <= at_s <= end_s for begin_s, end_s in self.dead)
