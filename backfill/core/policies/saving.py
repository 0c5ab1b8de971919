"""Saving: how often running work is saved, by Young and Daly, with the time to the next eviction.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006, equation 37.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from backfill.core.model.keys import key

_UNASKED = "-auto"  # at the end of the id of a checkpoint that nobody ordered


@dataclass(frozen=True, slots=True)
class Saving:
    """When a checkpoint of running work is due, by Young and Daly. Times in seconds."""

    automatic: bool = key(False, "Save running work without an order, on hosts that keep checkpoints.")
    at_once: int = key(1, "How many jobs are stopped for it at the same time.")
    cost_s: float = key(
        30.0, "Assumed time that a checkpoint stops a job, until its host's own rate is known."
    )
    expected_s: float = key(86400.0, "Assumed time between two evictions before any have been seen.")
    weight: float = key(1.0, "How many evictions that assumption counts for.")
    least_s: float = key(300.0, "Never more often than this.")
    most_s: float = key(86400.0, "Never less often than this.")
    keep_s: float = key(
        172800.0, "How long an automatic checkpoint is kept at least: longer than the time to the next one."
    )

    def mean_to_eviction_s(self, exposed_s: float, evictions: int) -> float:
        """Expect the next eviction in so long, after `evictions` in `exposed_s` of running."""
        return (self.expected_s * self.weight + exposed_s) / (self.weight + evictions)

    def interval_s(self, cost_s: float, mean_s: float) -> float:
        """Return how long to compute between two checkpoints that take `cost_s` each."""
        return min(self.most_s, max(self.least_s, daly_s(cost_s, mean_s)))

    def due_s(self, last_s: float, cost_s: float, exposed_s: float, evictions: int) -> float:
        """Return when the next checkpoint is due after one (or the start) at `last_s`."""
        return last_s + self.interval_s(cost_s, self.mean_to_eviction_s(exposed_s, evictions))

    def identity(self, job_id: str, now_s: float) -> str:
        """Make the id of a checkpoint that nobody ordered."""
        return f"{job_id}-{int(now_s)}{_UNASKED}"

    def kept_s(self, identity: str, otherwise_s: float) -> float:
        """Return how long this checkpoint is kept."""
        return self.keep_s if identity.endswith(_UNASKED) else otherwise_s


def daly_s(cost_s: float, mean_s: float) -> float:
    """Daly's interval: computing time between two checkpoints that loses least on average."""
    if cost_s >= 2.0 * mean_s:
        return mean_s
    ratio = cost_s / (2.0 * mean_s)
    return sqrt(2.0 * cost_s * mean_s) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s
