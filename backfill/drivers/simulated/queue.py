"""The waiting jobs of the simulated slurmctld, in the order in which it looks at them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from backfill.core.cluster import JobState
from backfill.drivers.simulated.model import SimJob

# Jobs with the same wishes fail or fit together: one look per shape and pass is enough.
Shape = tuple[str, int, int, int, str, tuple[str, ...], bool]
Rank = tuple[int, int, float, int]


class PendingQueue:
    """First in, first out within tier and priority; a job that does not fit lets others pass."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, list[tuple[Rank, int, SimJob]]] = {}

    def push(self, job: SimJob, tier: int) -> None:
        """Let the job wait; an entry of it from before is void."""
        job.queued += 1
        rank = (-tier, -job.priority, job.submit_s, job.order)
        heapq.heappush(self._shapes.setdefault(_shape(job), []), (rank, job.queued, job))

    @property
    def waits(self) -> bool:
        """Whether anybody may be waiting."""
        return bool(self._shapes)

    def schedule(self, start: Callable[[SimJob], bool]) -> None:
        """Offer the jobs to `start` in order; where it answers False the shape waits."""
        heads: list[tuple[Rank, Shape]] = []
        for shape in list(self._shapes):
            self._offer(shape, heads)
        while heads:
            _, shape = heapq.heappop(heads)
            if start(self._shapes[shape][0][2]):
                heapq.heappop(self._shapes[shape])
                self._offer(shape, heads)

    def _offer(self, shape: Shape, heads: list[tuple[Rank, Shape]]) -> None:
        entries = self._shapes[shape]
        while entries and not _valid(entries[0]):
            heapq.heappop(entries)
        if entries:
            heapq.heappush(heads, (entries[0][0], shape))
        else:
            del self._shapes[shape]


def _valid(entry: tuple[Rank, int, SimJob]) -> bool:
    _, number, job = entry
    return job.queued == number and job.state is JobState.PENDING and not job.held


def _shape(job: SimJob) -> Shape:
    return (
        job.partition,
        job.cpus_per_node,
        job.memory_mb,
        job.num_nodes,
        job.features,
        job.required_nodes,
        job.exclusive,
    )
