"""Nodes of ours that are in no partition of Slurm any more: no job can start there."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backfill.core.model.cluster import NodeBase
from backfill.core.model.lifecycle import ABSENT
from backfill.engine.cycle import Cycle

AGAIN_S = 60.0
_LOG = logging.getLogger("backfill.daemon")


class PartitionWatch:
    """Used by the daemon's own thread. `rebuild` begins to mend it, or returns False when it is busy.

    slurmctld 22.05 loses nodes from their partitions in a reconfigure when a node that was added
    before them has been deleted (measured): they stay IDLE, and their jobs wait on PartitionConfig.
    """

    def __init__(self, cycle: Cycle, rebuild: Callable[[], bool]) -> None:
        self._cycle = cycle
        self._rebuild = rebuild
        self._next_s = 0.0
        self._lost: tuple[str, ...] = ()
        self._tried = False

    def look(self, now_s: float) -> None:
        """Look at what Slurm shows now: at once when another node is lost, once a minute otherwise."""
        world = self._cycle.world
        managed = [m.name for m in world.managed.values() if m.phase not in ABSENT]
        seen = [world.nodes[name] for name in sorted(managed) if name in world.nodes]
        lost = tuple(n.name for n in seen if not n.partitions and n.base is not NodeBase.FUTURE)
        if not set(lost) <= set(self._lost):
            self._next_s, self._tried = now_s, False
        if self._tried and not lost:
            self._say(self._lost, "it is in its partitions again")
        self._lost = lost
        self._tried = self._tried and bool(lost)
        if not lost or now_s < self._next_s:
            return
        self._next_s = now_s + AGAIN_S
        if not self._tried:
            self._say(lost, "Slurm has lost it from all partitions; it is told to work them out anew")
        else:
            self._say(lost, "it is in no partition of Slurm; see Nodes and NodeSet in slurm.conf")
        self._tried = self._rebuild() or self._tried

    def _say(self, names: tuple[str, ...], sentence: str) -> None:
        for name in names:
            _LOG.warning("%s: %s", name, sentence)
            self._cycle.record("partition", name, {"event": "looked at", "why": sentence})
