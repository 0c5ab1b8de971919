"""Spread: which of the hosts with room gets the next instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

from backfill.core.quantities import Resources


class Order(StrEnum):
    """Ways to choose among hosts that all have room."""

    FIRST_FIT = "first-fit"  # in the order of the policy file
    SPREAD = "spread"  # the host with most free CPUs
    RANDOM = "random"  # any, by `seed` alone: the same world gives the same host
    BEST_FIT = "best-fit"  # the host with fewest free CPUs that is still enough


@dataclass(frozen=True, slots=True)
class Spread:
    """Choice of a host."""

    order: Order = Order.SPREAD
    # Another seed gives another order of random choices.
    seed: int = 0
    # So many CPUs of instances for each CPU of a host; memory is never promised twice.
    cpu_overcommit: float = 1.0

    def cpus(self, real: int) -> int:
        """CPUs that a host with `real` ones has to give."""
        return int(real * self.cpu_overcommit)

    def choose(self, rooms: Sequence[tuple[str, Resources]]) -> str:
        """Pick one of `rooms` (host, free resources), which is not empty, in the file's order."""
        if self.order is Order.FIRST_FIT:
            return rooms[0][0]
        if self.order is Order.RANDOM:
            drawn = crc32(f"{self.seed} {rooms}".encode())
            return rooms[drawn % len(rooms)][0]
        sign = -1 if self.order is Order.SPREAD else 1
        best = min(range(len(rooms)), key=lambda i: (sign * rooms[i][1].cpus, i))
        return rooms[best][0]
