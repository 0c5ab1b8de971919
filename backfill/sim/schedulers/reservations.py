"""Reservations: Slurm keeps nodes for others, or processors of a pool, at certain times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor

from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.trace import JobTrace


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """So many processors, 0: all of them, are kept from so long after the first submission on."""

    at_s: float = field(metadata={"least": 0})
    for_s: float
    processors: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """This place is kept from `start` to `end`, in the replay's own time.

    It is a set of nodes, or a number of processors: see `rooms`.
    """

    start: float
    end: float
    place: int


def kept_processors(entries: Iterable[PoolEntry], trace: JobTrace, cluster: Cluster) -> list[Kept]:
    """Return what is kept when, one span after the other; where entries overlap they add up.

    A tick that is kept in part is kept.
    """
    begin, ticks = trace.begin if len(trace) else 0, trace.ticks_per_s
    whole = [
        Kept(
            begin + floor(entry.at_s * ticks),
            begin + ceil((entry.at_s + entry.for_s) * ticks),
            entry.processors or cluster.processors,
        )
        for entry in entries
    ]
    cuts = sorted({time for span in whole for time in (span.start, span.end)})
    return list(_pieces(whole, cuts, cluster.processors))


def _pieces(whole: Sequence[Kept], cuts: Sequence[float], most: int) -> Iterator[Kept]:
    for start, end in pairwise(cuts):
        kept = sum(s.place for s in whole if s.start <= start and end <= s.end)
        if kept:
            yield Kept(start, end, min(kept, most))


@dataclass(frozen=True, slots=True)
class ReservationEntry:
    """Hosts that Slurm keeps, as an admin reserves them before the scenario begins."""

    nodes: tuple[str, ...]
    # From then on, after the beginning, for so long.
    at_s: float = field(metadata={"least": 0})
    for_s: float
    # For work on the hosts themselves: instances have to leave them as well.
    maintenance: bool = True


def kept_nodes(entries: Iterable[ReservationEntry], names: Sequence[str], start_s: float) -> list[Kept]:
    """Return what is kept of these nodes; the entries' times count from `start_s`."""
    number = {name: i for i, name in enumerate(names)}
    return [
        Kept(
            start_s + entry.at_s,
            start_s + entry.at_s + entry.for_s,
            sum(1 << number[name] for name in set(entry.nodes)),
        )
        for entry in entries
    ]
