"""What a driver may be asked to do with checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.fleet import Checkpoint


@dataclass(frozen=True, slots=True)
class KeepCheckpoint:
    """Keep the saved memory and the disk of a suspended instance."""

    name: str
    generation: int
    host: str
    wanted: Checkpoint
    quota_mb: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PutBackCheckpoint:
    """Replace the state of a suspended instance by that of a checkpoint."""

    name: str
    generation: int
    host: str
    id: str
    reason: str
