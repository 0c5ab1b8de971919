"""Spread: which of the hosts with room gets the next instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from backfill.core.model.keys import Option, key
from backfill.core.model.quantities import Resources


class Order(Option):
    """Ways to choose among hosts that all have room."""

    FIRST_FIT = "first-fit", "in the order of the policy file"
    SPREAD = "spread", "the host with the most free CPUs"
    RANDOM = "random", "any, by `seed` alone: the same world gives the same host"
    BEST_FIT = "best-fit", "the host with the fewest free CPUs that still suffice"
    IDLE = "idle", "the least busy host, as its hypervisor measures; then as spread"


class Larger(Option):
    """What becomes of an instance that no NUMA node of a host could ever carry."""

    REFUSE = "refuse", "it is not made there"
    SPAN = "span", "it is bound to none and may use the whole host"


@dataclass(frozen=True, slots=True)
class Spread:
    """Choice of a host."""

    order: Order = key(Order.SPREAD, "How a host with room is chosen.")
    seed: int = key(0, "A different seed gives a different order of random choices.")
    cpu_overcommit: float = key(1.0, "CPUs of instances per CPU of a host; memory is never promised twice.")
    larger_than_numa: Larger = key(
        Larger.REFUSE,
        "With libvirt.numa.bind: node, what becomes of an instance that is larger than every NUMA node of a "
        "host.",
    )

    def cpus(self, real: int) -> int:
        """CPUs that a host with `real` ones has to give."""
        return int(real * self.cpu_overcommit)

    def rank(self, left: Resources, busy: float | None) -> tuple[float, int]:
        """Return what the choice of a host goes by, the lowest first; `left`: what is free there.

        `busy`: the share of the host's CPU time that was used lately, where it is known. It counts in
        tenths: a difference that is smaller says nothing about the next hour. A host of which nothing
        is known counts as half busy.
        """
        match self.order:
            case Order.SPREAD:
                return 0.0, -left.cpus
            case Order.BEST_FIT:
                return 0.0, left.cpus
            case Order.IDLE:
                return round(0.5 if busy is None else busy, 1), -left.cpus
            case _:
                return 0.0, 0

    def draw(self, rooms: Sequence[tuple[str, Resources]]) -> str:
        """Return any of `rooms` (host, free resources), which is not empty; for `random`."""
        drawn = crc32(f"{self.seed} {rooms}".encode())
        return rooms[drawn % len(rooms)][0]
