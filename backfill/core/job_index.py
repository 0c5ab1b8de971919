"""Slurm's jobs as the world keeps them: by id, by node and by waiting line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backfill.core.cluster import Job, JobState


class JobIndex:
    """All known jobs with the two look-ups that planning needs. Only the world changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, set[str]] = {}  # node -> ids
        self._pending: dict[str, set[str]] = {}  # partition -> ids

    def put(self, job: Job) -> None:
        """Take in a new or changed job."""
        self._forget(job.id)
        self.jobs[job.id] = job
        if job.holds_nodes:
            for node in job.nodes:
                self._on.setdefault(node, set()).add(job.id)
        if job.state is JobState.PENDING:
            self._pending.setdefault(job.partition, set()).add(job.id)

    def drop(self, job_id: str) -> None:
        """Forget a job that Slurm has forgotten."""
        self._forget(job_id)
        self.jobs.pop(job_id, None)

    def on(self, node: str) -> list[Job]:
        """Jobs that hold `node`, in order of their ids."""
        return [self.jobs[i] for i in sorted(self._on.get(node, ()))]

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        for partition in partitions:
            for job_id in self._pending.get(partition, ()):
                yield self.jobs[job_id]

    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return {partition for partition, ids in self._pending.items() if ids}

    def _forget(self, job_id: str) -> None:
        old = self.jobs.get(job_id)
        if old is None:
            return
        for node in old.nodes:
            self._on.get(node, set()).discard(job_id)
        self._pending.get(old.partition, set()).discard(job_id)
