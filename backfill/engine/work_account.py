"""Core seconds that jobs work on our instances, by partition, and how much of that was in vain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.core.model.lifecycle import Cause, ManagedNode, given_up_for
from backfill.core.world import World
from backfill.engine.families import Body, Counts, Family, FamilyKind

# A site has a handful of partitions for such jobs; the further ones are told as one.
MOST_PARTITIONS = 16

HARVESTED = Family(
    "backfill_harvested_core_seconds",
    FamilyKind.COUNTER,
    "Core seconds that jobs worked on instances, without stops.",
    ("partition",),
)
LOST = Family(
    "backfill_lost_core_seconds",
    FamilyKind.COUNTER,
    "Of the harvested core seconds, those of runs that Slurm restarted or ended with their node.",
    ("partition",),
)
# Ends of a run that were not the job's own.
_IN_VAIN = frozenset({JobState.PENDING, JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL})


# Of a run that ended, and is not begun anew: for these it did not end of its own accord.
_ENDED_BY_US = frozenset({Cause.LADDER, Cause.UNSTOPPED, Cause.PATIENCE, Cause.RECLAIMED})


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run that came to nothing: the job as it was in it, why, and the core seconds it had worked."""

    job: Job
    cause: str
    core_s: float


@dataclass(slots=True)
class _Work:
    """`rate` cores work since `since_s`, and so much was done before."""

    rate: float = 0.0
    since_s: float = 0.0
    core_s: float = 0.0

    def turn(self, now_s: float, by: float = 0.0) -> float:
        """So many cores more from now on; return what has been done until now."""
        self.core_s += self.rate * max(0.0, now_s - self.since_s)
        self.since_s, self.rate = now_s, self.rate + by
        return self.core_s


@dataclass(slots=True)
class _JobRun:
    """One run of a job, `job` as it was seen in it last."""

    partition: str
    job: Job
    work: _Work


class WorkAccount:
    """Follows the jobs on managed nodes. For the daemon's thread, after the world took a change.

    Only what this daemon has seen counts: of a job that ran before its start, what it does from then.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs: dict[str, _JobRun] = {}
        self._harvested: dict[str, _Work] = {}  # by partition, so that nobody who asks adds up runs
        self._lost = Counts(LOST, MOST_PARTITIONS)
        self.lost: list[LostRun] = []  # that nobody has taken note of yet
        self._lost_core_s = 0.0

    def job(self, job: Job) -> None:
        """Slurm shows a job as it is now."""
        run = self._runs.get(job.id)
        if run is not None and (run.job.restarts != job.restarts or job.state in _IN_VAIN):
            self._end(job.id, run, in_vain=True)
            run = None
        elif run is not None and job.state in ENDED:
            self._end(job.id, run, in_vain=self._ended_by_us(run.job))
            return
        if run is None:
            if not job.active or not any(name in self._world.managed for name in job.nodes):
                return
            run = self._runs[job.id] = _JobRun(self._place(job), job, _Work(since_s=self._world.now_s))
        elif job.active:
            run.job = job
        self._rate(run, job)

    def gone(self, change: ch.JobGone) -> None:
        """Slurm shows a job no more: nobody knows that it was in vain."""
        run = self._runs.get(change.id)
        if run is not None:
            self._end(change.id, run)

    def instances(self, names: Iterable[str]) -> None:
        """Instances of these names run or stand still since now."""
        for name in names:
            for job in self._world.jobs_on(name):
                self.job(job)

    @property
    def totals(self) -> tuple[float, float]:
        """All core seconds that were worked until now, and those of them that were lost."""
        now_s = self._world.now_s
        return sum(work.turn(now_s) for work in self._harvested.values()), self._lost_core_s

    def told(self) -> list[Body]:
        """Return both counters, up to now."""
        now_s = self._world.now_s
        done = {(partition,): work.turn(now_s) for partition, work in self._harvested.items()}
        samples = [HARVESTED.sample("_total", labels, core_s) for labels, core_s in done.items()]
        for labels in done:  # from 0 on, so that the first loss is seen as an increase
            self._lost.add(*labels, by=0.0)
        return [HARVESTED.told(samples), self._lost.told()]

    def _place(self, job: Job) -> str:
        """Return the partition that the job's work is counted for."""
        known = job.partition in self._harvested or len(self._harvested) < MOST_PARTITIONS
        return job.partition if known else "other"

    def _rate(self, run: _JobRun, job: Job) -> None:
        working = sum(map(self._works, job.nodes)) if job.state is JobState.RUNNING else 0
        self._turn(run, job.cpus * working / max(1, len(job.nodes)))

    def _turn(self, run: _JobRun, rate: float) -> None:
        """From now on so many cores work for the run."""
        by = rate - run.work.rate
        if by:
            run.work.turn(self._world.now_s, by)
            self._harvested.setdefault(run.partition, _Work()).turn(self._world.now_s, by)

    def _works(self, name: str) -> bool:
        """Return True if an instance of this name has its CPUs."""
        return any(place.occupies_cpu for place in self._world.places_of(name))

    def _end(self, job_id: str, run: _JobRun, *, in_vain: bool = False) -> None:
        self._turn(run, 0.0)
        del self._runs[job_id]
        if in_vain and run.work.core_s:
            self._lost.add(run.partition, by=run.work.core_s)
            self._lost_core_s += run.work.core_s
            self.lost.append(LostRun(run.job, self._cause(run.job), run.work.core_s))

    def _cause(self, job: Job) -> str:
        """Name why the work on the job's nodes was given up; where we have not done so, it was others."""
        for node in self._nodes(job):
            if node.condemned is not None:
                return given_up_for(node, node.condemned.cause)
            if node.stopping.warned_s is not None:
                return "warned"
        return "others"

    def _ended_by_us(self, job: Job) -> bool:
        """Return True if a job has ended because it was told to, or could not be begun anew."""
        nodes = list(self._nodes(job))
        given_up = any(n.condemned is not None and n.condemned.cause in _ENDED_BY_US for n in nodes)
        return given_up or any(node.stopping.warned_s is not None for node in nodes)

    def _nodes(self, job: Job) -> Iterator[ManagedNode]:
        for name in job.nodes:
            if (node := self._world.managed.get(name)) is not None:
                yield node
