"""What the simulated slurmctld has written down: nodes, jobs, partitions, and where room is."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from backfill.drivers.simulated.model import Partition, SimJob, SimNode


@dataclass(slots=True)
class Manners:
    """How the simulated slurmctld behaves; defaults as measured with Slurm 22.05 and 24.11."""

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
        node.recount()
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
