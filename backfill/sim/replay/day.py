"""A day out of a daemon's journal: what was done in it, and its jobs as traces that a policy can be tried on.

High-priority jobs come when Slurm gave them their nodes, so that hosts are wanted when they were;
low-priority jobs come when they were submitted, and compute as long as they did, the part before the day
left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import Phase
from backfill.core.model.plan import AnswerClaim, SetNode
from backfill.core.model.records import decode
from backfill.core.policy import PolicySet
from backfill.ports.storage import Record
from backfill.sim.replay.ledger import counts_of
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.trace import JobDetails, JobTrace, TraceBuilder

# So far before the day every record is read; of what is older only the last word on each job and host.
LEAD_S = 7 * 86_400.0
_CHANGES = (ch.JobSeen, ch.JobGone, ch.HostSeen, ch.Claimed, ch.WorkLost)
_READ = frozenset(kind.__name__ for kind in (*_CHANGES, SetNode, AnswerClaim))
_STEPS = frozenset(kind.__name__ for kind in (*vars(act).values(),) if isinstance(kind, type))
# A job that was never seen to run, and names no limit, is taken to compute for so long.
_UNKNOWN_S = 3600.0


class EmptyDayError(Exception):
    """The journal tells of no such day: one sentence."""


@dataclass(frozen=True, slots=True)
class DayFigures:
    """What a day came to; core hours, and seconds from a hook's word to its answer."""

    metal_core_h: float
    worked_core_h: float
    lost_core_h: float
    low_completed: int
    evictions: int
    room_median_s: float | None
    room_worst_s: float | None
    steps: dict[str, int]


@dataclass(frozen=True, slots=True)
class JournalDay:
    """A day: its figures, its work, and the cluster that it was done on."""

    start_s: float
    end_s: float
    figures: DayFigures
    cluster: Cluster
    hosts: frozenset[str]  # that are nodes
    high: JobTrace
    low: JobTrace
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Ran:
    """A job as the journal tells it: when it ran, so far as that is of the day."""

    job: Job
    since_s: float | None = None  # it runs since then
    core_s: float = 0.0  # in the day
    run_s: float = 0.0  # of its latest run, in all
    before_s: float = 0.0  # of that before the day
    first_s: float | None = None
    last_s: float = 0.0
    ended: bool = False
    life: int = 0  # of the daemon that saw it last


@dataclass(slots=True)
class _DayBook:
    policies: PolicySet
    start_s: float
    end_s: float
    jobs: dict[str, _Ran] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    claimed: dict[str, float] = field(default_factory=dict)
    rooms: list[float] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    evictions: int = 0
    completed: set[tuple[str, int]] = field(default_factory=set)  # runs that did: a job and its restarts
    completed_in_day: int = 0
    lost_core_s: float = 0.0
    starts: list[float] = field(default_factory=list)  # of the daemon

    def take(self, record: Record) -> None:
        """Follow one record."""
        kind = str(record.body.get("t"))
        inside = self.start_s <= record.at_s < self.end_s
        if kind in _STEPS and record.kind == "intent":
            self.steps[kind] += inside
        elif record.kind == "daemon" and record.body.get("event") == "start":
            self.starts.append(record.at_s)
        elif kind in _READ:
            self._value(decode(record.body), record.at_s, inside=inside)

    def _value(self, value: Any, at_s: float, *, inside: bool) -> None:
        match value:
            case ch.JobSeen():
                self._job(value.job, at_s, inside=inside)
            case ch.JobGone():
                self._stop(value.id, at_s, ended=True)
            case ch.HostSeen():
                self.hosts[value.host.name] = value.host
            case ch.Claimed() | AnswerClaim():
                self._room(value, at_s, inside=inside)
            case ch.WorkLost():
                self.lost_core_s += value.core_s * inside
            case SetNode():
                before, self.phases[value.node.name] = self.phases.get(value.node.name), value.node.phase
                evicts = value.node.phase is Phase.EVICTING and before is not Phase.EVICTING
                self.evictions += evicts and inside
            case _:
                pass

    def _room(self, value: ch.Claimed | AnswerClaim, at_s: float, *, inside: bool) -> None:
        """How long a hook waited until its room was proven free."""
        if isinstance(value, ch.Claimed):
            if value.waiting:
                self.claimed[value.job_id] = at_s
            return
        since_s = self.claimed.pop(value.job_id, None)
        if inside and since_s is not None and value.ok:
            self.rooms.append(at_s - since_s)

    def _job(self, job: Job, at_s: float, *, inside: bool) -> None:
        known = self.jobs.get(job.id)
        if known is not None and known.job.restarts != job.restarts:
            self._stop(job.id, at_s, ended=False)
            known.run_s = known.before_s = 0.0  # it begins anew
        ran = self.jobs.setdefault(job.id, _Ran(job))
        ran.life = len(self.starts)
        if job.state is JobState.RUNNING:
            ran.job = job
            if ran.since_s is None:
                ran.since_s = max(job.start_s, 0.0) or at_s if ran.first_s is None else at_s
                ran.first_s = ran.since_s if ran.first_s is None else ran.first_s
            return
        self._stop(job.id, at_s, ended=job.state in ENDED)
        self._end(job, inside=inside)
        if job.nodes or not ran.job.nodes:
            ran.job = job

    def _end(self, job: Job, *, inside: bool) -> None:
        """Count a run that has completed; how one ends that is COMPLETING still, Slurm does not tell."""
        run = (job.id, job.restarts)
        completed = job.state is JobState.COMPLETED and "COMPLETING" not in job.flags
        if not completed or run in self.completed:
            return
        self.completed.add(run)  # a daemon that starts soon after is shown it once more
        self.completed_in_day += inside and self._is_low(job)

    def _stop(self, job_id: str, at_s: float, *, ended: bool) -> None:
        """Note that it computes no more; return how long it did so in the day."""
        ran = self.jobs.get(job_id)
        if ran is None:
            return
        ran.ended = ran.ended or ended
        if ran.since_s is not None:
            ran.run_s += max(0.0, at_s - ran.since_s)
            ran.before_s += max(0.0, min(at_s, self.start_s) - ran.since_s)
            ran.core_s += self._cpus(ran.job) * self._inside(ran.since_s, at_s)
            ran.last_s, ran.since_s = at_s, None

    def _inside(self, from_s: float, to_s: float) -> float:
        return max(0.0, min(to_s, self.end_s) - max(from_s, self.start_s))

    def _is_low(self, job: Job) -> bool:
        priorities = self.policies.priorities
        return job.partition in priorities.low or job.qos in priorities.low_qos

    def _cpus(self, job: Job) -> float:
        """Return the CPUs that it has on what is ours: a job may be larger than our hosts."""
        ours = self._ours(job)
        return job.cpus * ours / max(1, len(job.nodes)) if job.nodes else 0.0

    def _ours(self, job: Job) -> int:
        metal = {host.node for host in self.hosts.values()}
        names = frozenset(self.policies.instances.names)
        return sum(name in (names if self._is_low(job) else metal) for name in job.nodes)

    def result(self) -> JournalDay:
        for job_id, ran in self.jobs.items():
            if ran.life < len(self.starts):  # the next daemon told of all jobs, and not of this one
                self._stop(job_id, self.starts[ran.life], ended=True)
            elif ran.since_s is not None:
                self._stop(job_id, self.end_s, ended=False)
        cluster, notes = self._cluster()
        low = [ran for ran in self.jobs.values() if self._is_low(ran.job) and self._waited(ran)]
        high = [ran for ran in self.jobs.values() if not self._is_low(ran.job) and ran.core_s > 0.0]
        worked = sum(ran.core_s for ran in self.jobs.values() if self._is_low(ran.job))
        figures = DayFigures(
            metal_core_h=sum(ran.core_s for ran in high) / 3600,
            worked_core_h=worked / 3600,
            lost_core_h=self.lost_core_s / 3600,
            low_completed=self.completed_in_day,
            evictions=self.evictions,
            room_median_s=median(self.rooms) if self.rooms else None,
            room_worst_s=max(self.rooms, default=None),
            steps=counts_of(self.steps),
        )
        return JournalDay(
            self.start_s,
            self.end_s,
            figures,
            cluster,
            frozenset(name for name, host in self.hosts.items() if host.node is not None),
            self._highs(high),
            self._lows(low, notes),
            tuple(notes),
        )

    def _waited(self, ran: _Ran) -> bool:
        """Return True if the day has anything of it: it ran or waited then."""
        over = ran.ended and ran.last_s < self.start_s
        return ran.job.submit_s < self.end_s and not over and (ran.core_s > 0.0 or not ran.ended)

    def _cluster(self) -> tuple[Cluster, list[str]]:
        metal = {name: host for name, host in self.hosts.items() if host.node is not None}
        sizes = Counter(host.capacity.cpus for host in metal.values())
        if not sizes:
            raise EmptyDayError(
                "the journal shows no host that is a node; let the daemon run for a while first"
            )
        cpus = sizes.most_common(1)[0][0]
        notes = []
        if others := sum(sizes.values()) - sizes[cpus]:
            notes.append(f"{others} hosts have not {cpus} CPUs and are taken to have them")
        if burst := len(self.hosts) - len(metal):
            notes.append(f"{burst} hosts that are no nodes of Slurm are left out of the replays")
        return Cluster(len(metal), cpus), notes

    def _highs(self, jobs: Iterable[_Ran]) -> JobTrace:
        builder = TraceBuilder()
        for number, ran in enumerate(jobs, 1):
            begin_s = max(ran.first_s or 0.0, self.start_s) - self.start_s
            run_s = max(1, round(ran.core_s / max(1.0, self._cpus(ran.job))))
            # Whoever still runs at the end goes on: what comes after does not count.
            builder.add(number, round(begin_s), run_s, max(1, round(self._cpus(ran.job))), _limit_s(ran))
        return replace(builder.build(), origin=0)

    def _lows(self, jobs: list[_Ran], notes: list[str]) -> JobTrace:
        known = sorted(ran.run_s for ran in jobs if ran.ended and ran.run_s > 0.0)
        usual_s = median(known) if known else _UNKNOWN_S
        guessed = 0
        builder = TraceBuilder()
        for number, ran in enumerate(jobs, 1):
            run_s = ran.run_s
            if not ran.ended:
                guessed += 1
                run_s = max(run_s, min(usual_s, ran.job.time_limit_s or usual_s))
            job = ran.job
            submit_s = max(0.0, job.submit_s - self.start_s)
            rest_s = max(1, round(run_s - ran.before_s))  # what was done before is no work of the day
            builder.add(number, round(submit_s), rest_s, max(1, job.cpus), _limit_s(ran))
            builder.details.append(JobDetails(job.partition, job.user, job.account, job.qos, job.memory_mb))
        if guessed:
            notes.append(
                f"{guessed} low-priority jobs had not ended: they are taken to compute for {usual_s:.0f} s, "
                "as the others did in the middle, or as long as they already have"
            )
        return replace(builder.build(), origin=0)


def _limit_s(ran: _Ran) -> int:
    return round(ran.job.time_limit_s or 0.0)


def journal_day(records: Iterable[Record], policies: PolicySet, start_s: float, end_s: float) -> JournalDay:
    """Read a day out of records that begin LEAD_S before it, behind the last words of older ones.

    `policies`: those that were in force. EmptyDayError where there is nothing.
    """
    reader = _DayBook(policies, start_s, end_s)
    for record in _before(records, end_s):
        reader.take(record)
    return reader.result()


def _before(records: Iterable[Record], end_s: float) -> Iterator[Record]:
    for record in records:
        if record.at_s >= end_s:
            return
        yield record
