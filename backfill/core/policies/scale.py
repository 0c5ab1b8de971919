"""Scale: how fast instances are made, how long idle ones stay, and how failures are retried."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key
from backfill.core.model.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class Scale:
    """Growing and shrinking. Times in seconds."""

    idle_s: float = key(
        300.0, "An instance without jobs is removed after this time, unless somebody has drained it.", least=0
    )
    warm: int = key(0, "How many idle instances are kept although nobody needs them now.")
    grow_per_min: int = key(0, "How many instances may begin in a minute; 0: no limit.")
    shrink_per_min: int = key(0, "How many idle instances may be removed in a minute; 0: no limit.")
    reclaim_within_s: float = key(
        600.0, "How long jobs may continue before a requeue when a burst host's owner wants its room back."
    )
    boot_within_s: float = key(
        180.0, "A guest that has not registered with Slurm after this time has failed."
    )
    retry_after_s: float = key(
        30.0, "After a failed boot, wait this long; doubled with every further failure."
    )
    give_up_after: int = key(
        3,
        "After this many failures in a row a node's name is given up until others become ready: nothing is "
        "begun for `readiness.rest_s` or longer, then a single try decides. A name that then fails as often "
        "again while others become ready stays given up until a person frees it.",
    )

    def backoff_s(self, failures: int) -> float:
        """Return how long to wait after the given number of failures, seconds."""
        return float(self.retry_after_s * 2 ** max(0, failures - 1))

    def hopeless(self, blamed: int) -> bool:
        """Return True if a name has failed so often while others worked that a person has to free it."""
        return blamed >= self.give_up_after

    def may_grow(self, last_minute: int) -> Reason | None:
        """Return why no further instance may begin, after so many in the last minute."""
        return _ramp("scale.grow_per_min", self.grow_per_min, last_minute)

    def may_shrink(self, last_minute: int) -> Reason | None:
        """Return why no further instance may go, after so many in the last minute."""
        return _ramp("scale.shrink_per_min", self.shrink_per_min, last_minute)


def _ramp(key: str, per_min: int, last_minute: int) -> Reason | None:
    if per_min == 0 or last_minute < per_min:
        return None
    return because(Code.RAMP, key=key, count=last_minute, most=per_min)
