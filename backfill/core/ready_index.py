"""Ready nodes as the world keeps them: which of them idle, and what the jobs on the others use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backfill.core.cluster import Node
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.undo import Bag, Table, UndoLog

# Image, devices that it offers, and CPUs given to jobs.
Use = tuple[str, tuple[str, ...], int]


class ReadyIndex:
    """Sums that a plan needs every time, kept up to date. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self._idle: Bag[str] = Bag(log)
        # Of each that takes jobs, and how many are alike.
        self._allocated: Table[str, Use] = Table(log)
        self._counts: Table[Use, int] = Table(log)

    @property
    def idle(self) -> Iterable[str]:
        """Names of those without a job that no fleet keeps, in no order."""
        return self._idle

    @property
    def idle_count(self) -> int:
        """How many these are."""
        return len(self._idle)

    @property
    def allocated(self) -> Mapping[Use, int]:
        """How many of those to which Slurm gives jobs are alike."""
        return self._counts

    def look(self, name: str, ours: ManagedNode | None, seen: Node | None) -> bool:
        """A node looks like this now; tells whether that makes a difference here."""
        ready = ours is not None and ours.phase is Phase.READY
        idle = ready and ours is not None and ours.idle_since_s is not None and not ours.fleet
        takes = ready and seen is not None and not seen.drained
        allocated = None
        if takes and seen is not None and ours is not None:
            allocated = (ours.image, ours.devices, seen.cpus_allocated)
        before = self._allocated.get(name)
        if idle == (name in self._idle) and allocated == before:
            return False
        (self._idle.add if idle else self._idle.discard)(name)
        if before is not None:
            del self._allocated[name]
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if allocated is not None:
            self._allocated[name] = allocated
            self._counts[allocated] = self._counts.get(allocated, 0) + 1
        return True
