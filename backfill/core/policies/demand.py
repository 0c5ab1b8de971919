"""Demand: how many more instances the waiting low-priority jobs could use now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backfill.core.cluster import Job
from backfill.core.fleet import Flavour

# Reasons with which Slurm says "as soon as there is room" (squeue(1), JOB REASON CODES); a job that
# waits for anything else (a date, another job, a person) would not start on a new node.
_WAITS_FOR_ROOM = frozenset({"", "None", "Resources", "Priority", "NodeDown", "PartitionConfig"})
_WAITS_PREFIX = ("ReqNodeNotAvail", "Nodes required", "Resources")


@dataclass(frozen=True, slots=True)
class Need:
    """What the queue could use: CPUs that fit our flavour, and the jobs that never will."""

    cpus: int
    jobs: int
    misfits: tuple[str, ...]  # ids of jobs that no instance of ours can carry


@dataclass(frozen=True, slots=True)
class Demand:
    """Which waiting jobs count. A job counts when it waits for room and fits one instance."""

    # Jobs wanted at least before the first instance is made for them.
    min_jobs: int = 1

    def need(self, pending: Iterable[Job], flavour: Flavour, now_s: float) -> Need:
        """Add up the jobs that a new instance could start."""
        cpus = jobs = 0
        misfits = []
        for job in pending:
            if not _waits_for_room(job, now_s):
                continue
            if not fits(job, flavour):
                misfits.append(job.id)
                continue
            cpus += job.cpus
            jobs += 1
        if jobs < self.min_jobs:
            cpus = 0
        return Need(cpus, jobs, tuple(sorted(misfits)))


def _waits_for_room(job: Job, now_s: float) -> bool:
    reason = job.reason
    if reason == "BeginTime" and job.eligible_s <= now_s:
        return True
    return reason in _WAITS_FOR_ROOM or reason.startswith(_WAITS_PREFIX)


def fits(job: Job, flavour: Flavour) -> bool:
    """Tell whether one instance can carry the whole job."""
    return (
        job.num_nodes == 1 and job.cpus <= flavour.cpus and job.memory_mb <= flavour.node_memory_mb
    )
