"""Spread: which of the hosts with room gets the next instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

from backfill.core.keys import Option, key
from backfill.core.quantities import Resources

NO_FIGURES: Mapping[str, float] = MappingProxyType({})


class Order(Option):
    """Ways to choose among hosts that all have room."""

    FIRST_FIT = "first-fit", "in the order of the policy file"
    SPREAD = "spread", "the host with most free CPUs"
    RANDOM = "random", "any, by `seed` alone: the same world gives the same host"
    BEST_FIT = "best-fit", "the host with fewest free CPUs that is still enough"
    IDLE = "idle", "the host that is least busy, as its hypervisor measures; then as spread"


@dataclass(frozen=True, slots=True)
class Spread:
    """Choice of a host."""

    order: Order = key(Order.SPREAD, "How a host is chosen among those with room.")
    seed: int = key(0, "Another seed gives another order of random choices.")
    cpu_overcommit: float = key(
        1.0, "So many CPUs of instances for each CPU of a host; memory is never promised twice."
    )

    def cpus(self, real: int) -> int:
        """CPUs that a host with `real` ones has to give."""
        return int(real * self.cpu_overcommit)

    def choose(self, rooms: Sequence[tuple[str, Resources]], busy: Mapping[str, float] = NO_FIGURES) -> str:
        """Pick one of `rooms` (host, free resources), which is not empty, in the file's order.

        `busy`: the share of each host's CPU time that was used lately, where it is known.
        """
        if self.order is Order.FIRST_FIT:
            return rooms[0][0]
        if self.order is Order.RANDOM:
            drawn = crc32(f"{self.seed} {rooms}".encode())
            return rooms[drawn % len(rooms)][0]
        if self.order is Order.IDLE:
            # In tenths: a difference that is smaller says nothing about the next hour. A host of
            # which nothing is known counts as half busy.
            return min(rooms, key=lambda r: (round(busy.get(r[0], 0.5), 1), -r[1].cpus))[0]
        sign = -1 if self.order is Order.SPREAD else 1
        best = min(range(len(rooms)), key=lambda i: (sign * rooms[i][1].cpus, i))
        return rooms[best][0]
