"""Unsuspendable: what becomes of stopped jobs that Slurm will not suspend."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from backfill.core.model.keys import key
from backfill.core.model.lifecycle import Way

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Unsuspendable:
    """Jobs that Slurm will not suspend, such as all components of heterogeneous jobs. In seconds."""

    way: Way = key(Way.EXTEND, "What is done for such jobs.")
    slice_s: float = key(
        3600.0,
        "A time limit is raised by this much at a time, and corrected to the length of the stop at its end.",
    )
    ahead_s: float = key(
        1800.0,
        "It is raised early enough that at least this much is left: the daemon may be away for as long.",
    )

    @property
    def raises(self) -> bool:
        """Return True if time limits are raised. Of a job that may not be requeued with `requeue`, too."""
        return self.way is not Way.WAIT

    def raised_s(self, stopped_s: float, end_s: float, now_s: float) -> float:
        """By how much a limit that would be over at `end_s` has to be higher now."""
        if now_s < end_s - self.ahead_s:
            return 0.0
        return ceil((now_s - stopped_s + self.ahead_s) / self.slice_s) * self.slice_s

    def changes_s(self, stopped_s: float, end_s: float, now_s: float) -> float:
        """Return when that will be another amount."""
        raised_s = self.raised_s(stopped_s, end_s, now_s)
        if raised_s == 0.0:
            return end_s - self.ahead_s
        # A little later than the multiple, on which floating point might still be below.
        return stopped_s + raised_s - self.ahead_s + 0.001


def whole_minutes_s(stopped_s: float, now_s: float) -> float:
    """Return the length of a stop as it is granted."""
    return ceil(max(0.0, now_s - stopped_s) / _MINUTE_S) * _MINUTE_S


def next_minute_s(stopped_s: float, now_s: float) -> float:
    """Return when that will be a minute more."""
    return stopped_s + whole_minutes_s(stopped_s, now_s) + 0.001
