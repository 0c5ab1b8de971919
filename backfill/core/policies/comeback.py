"""Comeback: when work that was pushed aside goes on, at its own host or at another."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Comeback:
    """Return of parked instances. Times in seconds."""

    settle_s: float = key(0.0, "How long the host must have been free first; 0: work returns at once.")
    within_s: float = key(
        120.0, "A return that has not succeeded after this time is put off: the instance stands still again."
    )
    retry_s: float = key(
        15.0,
        "Pause after a failed return before the next try; doubled after each further "
        "failure, up to `retry_at_most_s`.",
    )
    retry_at_most_s: float = key(600.0, "The longest such pause.")
    move_after_s: float = key(
        2.0, "How long a stopped instance waits for its own host before it moves to another.", least=0
    )

    def retry_after_s(self, returns: int) -> float:
        """Return how long to wait after so many returns in a row that came to nothing (1 or more)."""
        return float(min(self.retry_at_most_s, self.retry_s * 2.0 ** min(returns - 1, 30)))
