"""Slurm's jobs as the world keeps them: by id, by node and by waiting line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from backfill.core.cluster import Job, JobState

_TOMBSTONE_S = 120.0

# What demand asks of a waiting job: jobs of which all of this is equal count alike.
Wish = tuple[str, float, str, int, int, int, float | None]


class JobIndex:
    """All known jobs with the two look-ups that planning needs. Only the world changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, set[str]] = {}  # node -> ids
        self._pending: dict[str, dict[Wish, set[str]]] = {}  # partition -> wish -> ids
        self._gone: dict[str, float] = {}  # jobs that Slurm no longer knows, oldest first

    def put(self, job: Job) -> None:
        """Take in a new or changed job."""
        self._forget(job.id)
        self.jobs[job.id] = job
        if job.holds_nodes:
            for node in job.nodes:
                self._on.setdefault(node, set()).add(job.id)
        if job.state is JobState.PENDING:
            alike = self._pending.setdefault(job.partition, {})
            alike.setdefault(_wish(job), set()).add(job.id)

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
        ids = self._on.get(node)
        return [self.jobs[i] for i in sorted(ids)] if ids else []

    def any_on(self, node: str | None) -> bool:
        """Whether any job holds `node`."""
        return bool(self._on.get(node)) if node is not None else False

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                for job_id in ids:
                    yield self.jobs[job_id]

    def kinds_pending(self, partitions: Iterable[str]) -> Iterator[tuple[Job, Collection[str]]]:
        """One of each kind of pending jobs that count alike, and the ids of all of that kind."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                yield self.jobs[next(iter(ids))], ids

    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return {partition for partition, alike in self._pending.items() if alike}

    def _forget(self, job_id: str) -> None:
        old = self.jobs.get(job_id)
        if old is None:
            return
        for node in old.nodes:
            self._on.get(node, set()).discard(job_id)
        if old.state is JobState.PENDING:
            alike, wish = self._pending[old.partition], _wish(old)
            alike[wish].discard(job_id)
            if not alike[wish]:
                del alike[wish]


def _wish(job: Job) -> Wish:
    begins_s = job.eligible_s if job.reason == "BeginTime" else 0.0
    size = (job.cpus, job.num_nodes, job.memory_mb)
    return (job.reason, begins_s, job.qos, *size, job.time_limit_s)
