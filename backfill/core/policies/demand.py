"""Demand: how many more instances the waiting low-priority jobs could use now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Flavour
from backfill.core.model.keys import key
from backfill.core.model.refusals import Refusal

# Reasons with which Slurm says "as soon as there is room" (squeue(1), JOB REASON CODES); a job that
# waits for anything else (a date, another job, a person) would not start on a new node.
_WAITS_FOR_ROOM = frozenset({"", "None", "Resources", "Priority", "NodeDown", "PartitionConfig"})
_WAITS_PREFIX = ("ReqNodeNotAvail", "Nodes required", "Resources")


def for_room(reason: str) -> bool:
    """Return True if a job that waits for this reason starts as soon as there is room."""
    return reason in _WAITS_FOR_ROOM or reason.startswith(_WAITS_PREFIX)


class JobShare(NamedTuple):
    """What a job needs in one piece, on each of so many instances at the same time.

    `memory_mb` 0: it asks for none, and has all of its node's where Slurm counts memory. `exclusive`: no
    other job may be on these.
    """

    cpus: int
    memory_mb: int
    nodes: int
    exclusive: bool = False


def share_of(job: Job) -> JobShare:
    """Return a job's equal share on each of its nodes."""
    nodes = max(1, job.num_nodes)
    return JobShare(max(1, -(-job.cpus // nodes)), job.memory_mb, nodes, job.exclusive)


@dataclass(frozen=True, slots=True)
class Need:
    """What the queue could use: CPUs that fit our flavour, and the jobs that never will.

    `nodes`: so many instances are wanted at the same time, by the widest job. `shares`: the jobs by
    what they need in one piece, what is hardest to place first, and how many need the same; `alike`:
    their ids, which hold as long as the same jobs wait.
    """

    cpus: int
    jobs: int
    misfits: tuple[str, ...]  # ids of jobs that no instances of ours can carry
    nodes: int = 0
    shortest_s: float = inf  # the least time limit among them
    shares: tuple[tuple[JobShare, int], ...] = ()
    alike: Mapping[JobShare, list[Collection[str]]] = field(default_factory=dict, compare=False)


# Master image and, of what is scarce, the device that a job asks for; empty where any will do.
Asked = tuple[str, str]


@dataclass(frozen=True, slots=True)
class QueueNeeds:
    """What the queue could use, by what its jobs ask for, and why no instance is made for the others.

    It is counted once for as long as the same jobs wait: the queue may be very long.
    """

    version: tuple[int, tuple[Job, ...]]  # of which queue, and beside which jobs at work
    until_s: float  # before then no job begins to count because of its time
    kinds: Mapping[Asked, tuple[Need, str]]  # and the user of all jobs that want a device, if it is one
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """Which waiting jobs count: those that wait for room and fit. Each array task counts as a job.

    An instance is made for those that do not find their CPUs and their memory on one that is there.
    """

    min_jobs: int = key(1, "How many jobs must wait before the first instance is made for them.")
    max_nodes: int = key(1, "How many instances a job may want at the same time; wider jobs never count.")
    ahead_s: float = key(
        0.0, "A job that may begin within this time already counts, so that its instance is ready in time."
    )

    def need(self, pending: Iterable[Job], flavour: Flavour, now_s: float) -> Need:
        """Add up the jobs that a new instance could start."""
        return self.need_of(((job, (job.id,)) for job in pending), flavour, now_s)

    def need_of(self, kinds: Iterable[tuple[Job, Collection[str]]], flavour: Flavour, now_s: float) -> Need:
        """Add up kinds of jobs that count alike: one of each, and the ids of all of them."""
        cpus = jobs = nodes = 0
        misfits: list[str] = []
        shortest_s = inf
        alike: dict[JobShare, list[Collection[str]]] = {}
        for job, ids in kinds:
            if not self.waits_for_room(job, now_s):
                continue
            if not self.fits(job, flavour):
                misfits += ids
                continue
            cpus += job.cpus * len(ids)
            jobs += len(ids)
            nodes = max(nodes, job.num_nodes)
            shortest_s = min(shortest_s, inf if job.time_limit_s is None else job.time_limit_s)
            alike.setdefault(share_of(job), []).append(ids)
        if jobs < self.min_jobs:
            cpus = nodes = 0
            alike = {}
        shares = _hardest_first(alike, flavour)
        return Need(cpus, jobs, tuple(sorted(misfits)), nodes, shortest_s, shares, alike)

    def next_begin_s(self, kinds: Iterable[tuple[Job, Collection[str]]], now_s: float) -> float:
        """Return when the next of these counts that waits for its time; infinite if none does."""
        times = (job.eligible_s - self.ahead_s for job, _ in kinds if job.reason == "BeginTime")
        return min((at_s for at_s in times if at_s > now_s), default=inf)

    def waits_for_room(self, job: Job, now_s: float) -> bool:
        """Slurm throttles arrays and users by other reasons: those tasks wait for no room."""
        if job.reason == "BeginTime":
            return job.eligible_s > 0.0 and now_s >= job.eligible_s - self.ahead_s
        return for_room(job.reason)

    def fits(self, job: Job, flavour: Flavour) -> bool:
        """Return True if instances can carry the job, an equal share on each of its nodes."""
        share = share_of(job)
        return (
            share.nodes <= self.max_nodes
            and share.cpus <= flavour.cpus
            and share.memory_mb <= flavour.node_memory_mb
        )


def _hardest_first(
    alike: Mapping[JobShare, list[Collection[str]]], flavour: Flavour
) -> tuple[tuple[JobShare, int], ...]:
    """Return how many jobs need each share, those first that take the most of an instance."""

    def size(share: JobShare) -> tuple[float, JobShare]:
        memory = share.memory_mb / flavour.node_memory_mb if share.memory_mb else 0.0
        return max(share.cpus / flavour.cpus, memory, float(share.exclusive)), share

    order = sorted(alike, key=size, reverse=True)
    return tuple((share, sum(len(ids) for ids in alike[share])) for share in order)
