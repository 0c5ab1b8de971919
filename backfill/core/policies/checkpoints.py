"""How many checkpoints are kept, for how long, and when several instances count as one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backfill.core.fleet import Checkpoint


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Limits of the checkpoints of jobs."""

    # How long one is kept, seconds.
    keep_s: float = 604800.0
    # Room that all of them together may take, MB; null: as much as the disk has.
    quota_mb: int | None = None
    # A job on several nodes: they must all stand still within so many seconds of the order.
    window_s: float = 10.0

    def expired(self, kept: Iterable[Checkpoint], now_s: float) -> tuple[str, ...]:
        """Ids whose time is over at `now_s`, in order; a part that cannot be read has no time."""
        over = (c.id for c in kept if not c.problem and c.expires_s <= now_s)
        return tuple(dict.fromkeys(over))
