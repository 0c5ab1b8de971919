"""Slurm's jobs as the world keeps them: by id, by node and by waiting line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backfill.core.cluster import Job, JobState

_TOMBSTONE_S = 120.0


class JobIndex:
    """All known jobs with the two look-ups that planning needs. Only the world changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, set[str]] = {}  # node -> ids
        self._pending: dict[str, set[str]] = {}  # partition -> ids
        self._gone: dict[str, float] = {}  # jobs that Slurm no longer knows, oldest first

    def put(self, job: Job) -> None:
        """Take in a new or changed job."""
        self._forget(job.id)
        self.jobs[job.id] = job
        if job.holds_nodes:
            for node in job.nodes:
                self._on.setdefault(node, set()).add(job.id)
        if job.state is JobState.PENDING:
            self._pending.setdefault(job.partition, set()).add(job.id)

    def drop(self, job_id: str, seen_s: float) -> None:
        """Forget a job that Slurm has forgotten, as was seen at `seen_s`."""
        self._forget(job_id)
        self.jobs.pop(job_id, None)
        self._gone.pop(job_id, None)
        self._gone[job_id] = seen_s

    def bury(self, seen_s: float) -> list[str]:
        """Ids of jobs gone for so long that no reading that was under way then brings them back."""
        buried = []
        for job_id, gone_s in self._gone.items():
            if seen_s - gone_s < _TOMBSTONE_S:
                break  # they are in the order of time
            buried.append(job_id)
        for job_id in buried:
            del self._gone[job_id]
        return [job_id for job_id in buried if job_id not in self.jobs]

    def on(self, node: str) -> list[Job]:
        """Jobs that hold `node`, in order of their ids."""
        return [self.jobs[i] for i in sorted(self._on.get(node, ()))]

    def any_on(self, node: str | None) -> bool:
        """Whether any job holds `node`."""
        return bool(self._on.get(node)) if node is not None else False

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
