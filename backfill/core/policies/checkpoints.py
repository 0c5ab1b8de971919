"""How many checkpoints are kept, for how long, and when several instances count as one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backfill.core.model.clock import Move, as_now
from backfill.core.model.fleet import Checkpoint
from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Limits of the checkpoints of jobs."""

    keep_s: float = key(604800.0, "How long a checkpoint is kept at least, seconds.")
    quota_mb: int | None = key(
        None, "Space that all of them together may use, MB; null: as much as the disk has."
    )
    window_s: float = key(
        10.0,
        "For a job on several nodes: all must stand still within this time of the order, "
        "unless its workload says otherwise.",
    )
    go_on: bool = key(
        True,
        "A job on a host that somebody declares off (`backfill evict HOST --off`) continues "
        "elsewhere from its last whole checkpoint, as long as Slurm holds that run of the "
        "job; false: it starts again.",
    )

    def expired(
        self, kept: Iterable[Checkpoint], clock_s: float, moves: Sequence[Move] = ()
    ) -> tuple[str, ...]:
        """Return ids whose time is over when the machine's clock says `clock_s`, in order.

        A part that cannot be read has no time. `moves`: how that clock was set, which makes none of
        them older.
        """
        over = (c.id for c in kept if (c.expires_s or not c.problem) and _expires_s(c, moves) <= clock_s)
        return tuple(dict.fromkeys(over))


def _expires_s(kept: Checkpoint, moves: Sequence[Move]) -> float:
    return kept.expires_s + as_now(moves, kept.created_s) - kept.created_s
