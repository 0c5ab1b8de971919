"""The books of the simulated slurmctld: nodes, jobs, partitions, room, and the queue."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.slurm.model import Partition, SimJob, SimNode

# Jobs with the same wishes fail or fit together: one look per shape and pass is enough.
Shape = tuple[str, int, int, int, str, tuple[str, ...], bool, tuple[str, ...], tuple[str, ...]]
Rank = tuple[int, int, float, int]


@dataclass(slots=True)
class Manners:
    """Settings of the simulated slurmctld; defaults as measured with Slurm 22.05 and 24.11."""

    slurmd_timeout_s: int = 0
    ping_s: float = 30.0  # until NOT_RESPONDING is noticed, and until it is taken back
    tick_s: float = 1.0  # pending jobs are looked at once in so long; 0: at once
    tick_at_s: float = 0.0  # the epoch second of one such look
    first_s: float = 0.0  # and not before then
    hook_timeout_s: float = 3.0
    requeue_delay_s: float = 120.0  # BeginTime after a requeue by slurmctld itself
    launch_timeout_s: float = 10.0  # a launch on a node that does not answer
    return_to_service: int = 2
    stale_s: float = 13.0  # a stale copy lives this long after its node answers again
    job_age_s: float = 300.0  # MinJobAge: how long an ended job is remembered
    private: str = "none"  # PrivateData
    counts_memory: bool = True  # SelectTypeParameters; a job that asks for none takes none all the same


class Books:
    """State without behaviour, apart from the index of nodes with room."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.up = True
        self.up_since_s = 0.0
        self.nodes: dict[str, SimNode] = {}
        self.jobs: dict[str, SimJob] = {}  # all there ever were
        self.known: dict[str, SimJob] = {}  # those that squeue and scontrol still show
        self.partitions: dict[str, Partition] = {}
        self.on_room: Callable[[], None] = lambda: None
        self._free: list[tuple[int, str]] = []
        self._order = 0

    def add_node(self, node: SimNode) -> None:
        self._order += 1
        node.order = self._order
        node.partitions = tuple(p.name for p in self.partitions.values() if p.has(node.features))
        self.nodes[node.name] = node

    def remove_node(self, node: SimNode) -> None:
        for event in node.watch:
            event.cancel()
        del self.nodes[node.name]
        self.refresh(node)

    def refresh(self, node: SimNode) -> None:
        """Bring everything that is derived from the node's state up to date."""
        node.recount(counts_memory=self.manners.counts_memory)
        key = (node.order, node.name)
        at = bisect.bisect_left(self._free, key)
        listed = at < len(self._free) and self._free[at] == key
        there = self.nodes.get(node.name) is node
        has_room = there and node.schedulable and node.cpus_used < node.cpus
        if has_room and not listed:
            self._free.insert(at, key)
        elif listed and not has_room:
            del self._free[at]
        if has_room:
            self.on_room()

    def room(self) -> Iterator[SimNode]:
        """Nodes that take jobs and have a free CPU, oldest first."""
        return (self.nodes[name] for _, name in self._free)


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
        """Return True if anybody may be waiting."""
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
        job.pins,
        (job.within, job.user) if job.within else (),
    )
