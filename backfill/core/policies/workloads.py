"""Workloads: which jobs answer to somebody outside Slurm, and for how long that one waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache

from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Rung
from backfill.core.model.keys import Option, about, key
from backfill.core.policies.ladder import Ladder, RungRule


class ReadyMade(Option):
    """Workloads that are known: what a policy file's entry takes over unless it says otherwise."""

    DEFAULT = "default", "answers to nothing outside Slurm, and stands still for as long as its ladder says"
    CONDOR = "condor", "a pilot of the site's own pool, set up as docs/workloads.md says: 300 s"
    OSPOOL = "ospool", "a pilot of the OSPool, or of any pool with unknown settings: 60 s"
    GLIDEIN = "glidein", "a pilot of glideinWMS: 60 s"
    MPI = "mpi", "a job whose processes on several nodes talk to each other over TCP: 600 s"


class WarnBy(Option):
    """How a job is told that its room goes for longer than it can wait."""

    NOTHING = "nothing", "it is not told"
    SIGNAL = "signal", "Slurm sends `signal` to its processes"
    FEATURES = "features", "its Machine/Job Features give the time of the shutdown"
    COMMAND = "command", "`command` is run in the guest, as the job's user"


class JobSignal(Option):
    """Signals that a job can be warned by, as `scancel --signal` names them."""

    TERM = "TERM"
    INT = "INT"
    QUIT = "QUIT"
    HUP = "HUP"
    USR1 = "USR1"
    USR2 = "USR2"


class AtEnd(Option):
    """What becomes of a job in Slurm whose patience is over."""

    REQUEUE = "requeue", "it starts again; a --no-requeue job ends"
    CANCEL = "cancel", "it ends, and its sender sends another"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for the jobs of a workload: of a ready-made one, or of an entry with its own.

    `stand_still_s` is counted in all; None: without end. `rungs`: empty for those of the file. `to_disk`:
    instead of these where the host's memory is wanted too (`proof: memory`). `skew_s`: how far apart its
    nodes may stop for a checkpoint; None: `checkpoints.window_s`.
    """

    stand_still_s: float | None = None
    warn: WarnBy = WarnBy.NOTHING
    drain_s: float = 0.0
    at_end: AtEnd = AtEnd.REQUEUE
    rungs: tuple[RungRule, ...] = ()
    to_disk: tuple[RungRule, ...] = ()
    skew_s: float | None = None

    @property
    def warns(self) -> bool:
        """Return True if it is told, and given time."""
        return self.warn is not WarnBy.NOTHING and self.drain_s > 0.0


def _rungs(pause_s: float, *, throttle: bool = True) -> tuple[RungRule, ...]:
    first = (RungRule(Rung.THROTTLE, within_s=1.0),) if throttle else ()
    return (
        *first,
        RungRule(Rung.PAUSE, within_s=1.0, for_s=pause_s),
        RungRule(Rung.MIGRATE, within_s=60.0),
        RungRule(Rung.REQUEUE, within_s=60.0),
    )


def _to_disk(within_s: float, for_s: float) -> tuple[RungRule, ...]:
    return (
        RungRule(Rung.SUSPEND, within_s=within_s, for_s=for_s),
        RungRule(Rung.MIGRATE, within_s=60.0),
        RungRule(Rung.REQUEUE, within_s=60.0),
    )


# Pools: measured with HTCondor 23.9 (docs/workloads.md). MPI: a peer's kernel gives a connection up
# after 924 s at the least (tcp(7), tcp_retries2 = 15); ranks that stopped 60 s apart went on (docs/mpi.md).
READY_MADE: dict[ReadyMade, Terms] = {
    ReadyMade.DEFAULT: Terms(),
    ReadyMade.CONDOR: Terms(300.0, WarnBy.SIGNAL, 10.0, AtEnd.REQUEUE, _rungs(280.0), _to_disk(60.0, 280.0)),
    ReadyMade.OSPOOL: Terms(60.0, WarnBy.SIGNAL, 10.0, AtEnd.REQUEUE, _rungs(50.0), _to_disk(30.0, 50.0)),
    ReadyMade.GLIDEIN: Terms(60.0, WarnBy.SIGNAL, 20.0, AtEnd.REQUEUE, _rungs(50.0), _to_disk(30.0, 50.0)),
    ReadyMade.MPI: Terms(
        600.0, rungs=_rungs(580.0, throttle=False), to_disk=_to_disk(120.0, 580.0), skew_s=60.0
    ),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs that meet all conditions named here; the first matching entry counts. A `null` value or an
    empty ladder comes from the ready-made workload `like`.
    """

    name: str = field(metadata=about("Its name in messages.", form="name"))
    like: ReadyMade = key(ReadyMade.DEFAULT, "The ready-made workload that supplies the defaults.")
    partitions: tuple[str, ...] = key((), "Jobs in one of these partitions; empty: in any.", form="name")
    qos: tuple[str, ...] = key((), "Jobs with one of these QOS; empty: with any.")
    users: tuple[str, ...] = key((), "Jobs of one of these users; empty: of anybody.")
    accounts: tuple[str, ...] = key((), "Jobs of one of these accounts; empty: of any.")
    job_name: str = key("", "Jobs whose name matches this pattern, with * and ?; empty: any name.")
    comment: str = key("", "Jobs whose comment matches this pattern, with * and ?; empty: any or none.")
    min_nodes: int = key(1, "Jobs on at least this many nodes.")
    stand_still_s: float | None = key(
        None, "How long a job may stand still in total; time at work pays it back, second for second."
    )
    warn: WarnBy | None = key(None, "How a job is told that it has to go, if there is time for that.")
    signal: JobSignal = key(JobSignal.TERM, "With `warn: signal`: which one.")
    command: tuple[str, ...] = key((), "With `warn: command`: the program in the guest, word by word.")
    drain_s: float | None = key(None, "How long it has after that until it is ended.", least=0)
    drain_percent: int = key(
        20,
        "Share of its CPU time that it keeps meanwhile, so that the job that has its host can begin.",
        least=1,
        most=100,
    )
    at_end: AtEnd | None = key(None, "What happens to it in Slurm when its patience is over.")
    ladder: tuple[RungRule, ...] = key((), "Its own ladder.")
    skew_s: float | None = key(
        None, "For a checkpoint, all its nodes must stand still within this time of the order."
    )

    def has(self, job: Job) -> bool:
        """Return True if the job is one of these."""
        named = (
            (self.partitions, job.partition),
            (self.qos, job.qos),
            (self.users, job.user),
            (self.accounts, job.account),
        )
        if any(wanted and value not in wanted for wanted, value in named) or job.num_nodes < self.min_nodes:
            return False
        alike = ((self.job_name, job.name), (self.comment, job.comment))
        return all(not pattern or fnmatchcase(value, pattern) for pattern, value in alike)

    @property
    def terms(self) -> Terms:
        """Return what holds for its jobs."""
        return _terms(self)


@dataclass(frozen=True, slots=True)
class JobSet:
    """Which jobs an entry has, to be compared with many others."""

    lists: tuple[frozenset[str], ...]
    patterns: tuple[str, ...]
    min_nodes: int

    @classmethod
    def of(cls, one: Workload) -> JobSet:
        lists = (one.partitions, one.qos, one.users, one.accounts)
        return cls(tuple(map(frozenset, lists)), (one.job_name, one.comment), one.min_nodes)

    def has_all_of(self, other: JobSet) -> bool:
        """Return True if each job that the other one has is one of these as well."""
        alike = zip(self.patterns, other.patterns, strict=True)
        if self.min_nodes > other.min_nodes or any(mine and mine != theirs for mine, theirs in alike):
            return False
        lists = zip(self.lists, other.lists, strict=True)
        return all(not mine or (theirs and theirs <= mine) for mine, theirs in lists)


@cache
def _terms(one: Workload) -> Terms:
    ready = READY_MADE[one.like]
    return Terms(
        ready.stand_still_s if one.stand_still_s is None else one.stand_still_s,
        one.warn or ready.warn,
        ready.drain_s if one.drain_s is None else one.drain_s,
        one.at_end or ready.at_end,
        one.ladder or ready.rungs,
        one.ladder or ready.to_disk,
        ready.skew_s if one.skew_s is None else one.skew_s,
    )


@dataclass(frozen=True, slots=True)
class Workloads:
    """Jobs that may not wait for a host for ever. Any other job stands still for as long as the ladder
    says.
    """

    entries: tuple[Workload, ...] = key((), "One entry for each workload; the first that has a job counts.")

    def of(self, job: Job) -> Workload | None:
        """Return the job's workload, if any entry has it."""
        return next((one for one in self.entries if one.has(job)), None)

    def patience_s(self, job: Job) -> float | None:
        """Return for how long the job may stand still, in all; None: without end."""
        found = self.of(job)
        return None if found is None else found.terms.stand_still_s

    def waits(self, job: Job, workload: str) -> bool:
        """Return True if the job can stand still without end, and is none of this workload's."""
        found = self.of(job)
        return found is None or (found.name != workload and found.terms.stand_still_s is None)

    def at_end(self, job: Job) -> AtEnd:
        """Return what becomes of the job when its patience is over."""
        found = self.of(job)
        return AtEnd.REQUEUE if found is None else found.terms.at_end

    def shortest(self, jobs: Iterable[Job]) -> Workload | None:
        """Return the workload of the job with the least patience: it decides for an instance."""
        if not self.entries:
            return None
        found = [one for one in map(self.of, jobs) if one is not None]
        finite = [one for one in found if one.terms.stand_still_s is not None]
        return min(finite or found, key=lambda one: one.terms.stand_still_s or 0.0, default=None)

    def named(self, name: str) -> Workload | None:
        """Return the entry of this name."""
        return next((one for one in self.entries if one.name == name), None)

    def ladder(self, name: str, usual: Ladder, *, to_disk: bool) -> Ladder:
        """Return the ladder of the workload of this name, where it has one of its own.

        `to_disk`: where a host's memory is wanted too.
        """
        found = self.named(name)
        if found is None:
            return usual
        rungs = found.terms.to_disk if to_disk else found.terms.rungs
        return _ladder(rungs) if rungs else usual


@cache
def _ladder(rungs: tuple[RungRule, ...]) -> Ladder:
    return Ladder(rungs)
