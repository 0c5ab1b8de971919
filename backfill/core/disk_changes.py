"""Changes that tell of memory and states on disk; `changes` has them all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryWritten:
    """A suspend wrote `written_mb` in `took_s`; `expected_s` was predicted, 0: nothing was."""

    host: str
    name: str
    at_s: float
    written_mb: float
    took_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """The ordered checkpoint of a node is on disk."""

    name: str
    generation: int
    at_s: float
    id: str
    size_mb: float


@dataclass(frozen=True, slots=True)
class CheckpointPutBack:
    """A node's instance has the state of the ordered checkpoint."""

    name: str
    generation: int
    at_s: float
    id: str
