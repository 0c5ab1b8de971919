"""Liveness: after how long a node that does not answer Slurm counts as dead."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Liveness:
    """Who is set DOWN, since Slurm itself (SlurmdTimeout=0) does not do it. Times in seconds."""

    down_after_s: float = key(
        300.0,
        "A node that has not answered Slurm for so long is set DOWN, as Slurm would after its "
        "SlurmdTimeout; its jobs are requeued. Nodes whose instance stands still are never meant. 0: "
        "never.",
        least=0,
    )
    at_most_percent: float = key(
        25.0,
        "More nodes than this share of the cluster, silent at once, look like a broken network: then "
        "none is set DOWN. One may always be.",
        most=100,
    )

    def most(self, nodes: int) -> int:
        """Return how many of so many nodes may be silent and be believed dead."""
        return max(1, int(nodes * self.at_most_percent / 100.0))
