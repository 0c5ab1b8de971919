"""Liveness: after how long a node that does not answer Slurm counts as dead."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Liveness:
    """Which nodes are set DOWN, because Slurm itself (SlurmdTimeout=0) does not do it. Times in
    seconds.
    """

    down_after_s: float = key(
        300.0,
        "A node that has not answered Slurm for this long is set DOWN, as Slurm would do "
        "after its SlurmdTimeout; its jobs are requeued. Never applies to nodes whose "
        "instance stands still. 0: never.",
        least=0,
    )
    at_most_percent: float = key(
        25.0,
        "If more than this share of the cluster's nodes are silent at once, that looks like "
        "a broken network and none is set DOWN. A single node always may be.",
        most=100,
    )

    def most(self, nodes: int) -> int:
        """Return how many of so many nodes may be silent and be believed dead."""
        return max(1, int(nodes * self.at_most_percent / 100.0))
