"""Contract with a pool outside the cluster, whose payloads pilots take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PayloadRun:
    """One run of a payload in a pilot of this cluster, after its end.

    `id`: the same for the same run whenever it is told; `pilot`: the number of the pilot's job in
    Slurm, `node`: where it was, as far as the pool knows. `ended_s`: epoch seconds, a day ahead of now
    at most. `done`: the pool has its result.
    """

    id: str
    pilot: str
    node: str
    ended_s: float
    worked_s: float
    done: bool


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """A pool at one moment. `seen_s`: epoch seconds when reading began, by the machine's clock.

    `idle`: payloads that wait for a pilot. `runs`: those that have ended lately, the oldest first.
    `silent`: parts of the pool that did not answer, by name; nothing is known of what is there.
    """

    seen_s: float
    idle: int
    runs: Sequence[PayloadRun] = ()
    silent: Sequence[str] = ()


class PayloadPool(Protocol):
    """A pool. Calls block for a bounded time, are safe from several threads, raise DriverError only."""

    def observe(self) -> PoolObservation:
        """Ask what waits, and what has ended. UnreachableError: no answer, or it does not know us."""

    def close(self) -> None:
        """Give back processes and connections."""
