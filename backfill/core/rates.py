"""How fast memory reaches the disk, learned per host from what was written, to predict an end."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest measurement: disks change slowly, neighbours come and go.
_NEWEST = 0.3


@dataclass(frozen=True, slots=True)
class WriteRate:
    """One host's rate, fixed costs included. `samples`: how many suspends it was learned from."""

    mb_s: float = 0.0
    samples: int = 0

    def learn(self, written_mb: float, took_s: float) -> WriteRate:
        """The rate after one more suspend; one that wrote next to nothing tells nothing."""
        if written_mb < 1.0 or took_s <= 0.0:
            return self
        seen_mb_s = written_mb / took_s
        if not self.samples:
            return WriteRate(seen_mb_s, 1)
        return WriteRate(self.mb_s + _NEWEST * (seen_mb_s - self.mb_s), self.samples + 1)

    def predict_s(self, memory_mb: float) -> float | None:
        """Seconds that a suspend of so much memory should take; None before the first one."""
        return memory_mb / self.mb_s if self.samples else None
