"""What our ready nodes have left for further jobs, and which of those that wait find their share there.

Slurm gives a job its share of a node in one piece: CPUs that are free on several instances, or beside
memory that is given away, are free for nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.policies.demand import JobShare
from backfill.core.tables import Bag, Table, Tally, UndoLog

# Image of an instance and the devices that it offers.
Offer = tuple[str, tuple[str, ...]]


class Use(NamedTuple):
    """How a node that takes jobs is used, as far as very many are alike."""

    image: str
    devices: tuple[str, ...]
    flavour: Flavour | None  # None: that of all
    cpus: int  # given to jobs
    any_memory: bool  # is any given to jobs
    reserved: bool  # does a reservation keep jobs from it


# The same of one that has CPUs left, and how much memory (MB) is given to jobs.
Partly = tuple[Use, int]


# What is reserved is for some jobs only: of an image that some people share, or of an owner whose pin
# has outlived our books.
_RESERVED = "RESERVED"


class ReadyIndex:
    """Sums that a plan needs every time, kept up to date. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self.idle: Bag[str] = Bag(log)  # names of those without a job that no fleet keeps
        self.kept: Bag[str] = Bag(log)  # of these those that Slurm reserves for somebody
        self.down: Bag[str] = Bag(log)  # of the idle ones those to which Slurm gives nothing: they are DOWN
        self.alike: Tally[Use] = Tally(log)  # how many of those that take jobs are alike
        self.partly: Tally[Partly] = Tally(log)  # and of those that have CPUs left, by their memory too
        self._use: Table[str, Partly] = Table(log)  # of each of these

    def look(self, name: str, ours: ManagedNode | None, seen: Node | None) -> None:
        """Note how a node looks now."""
        idle = kept = down = False
        use: Partly | None = None
        if ours is not None and ours.phase is Phase.READY:
            reserved = seen is not None and _RESERVED in seen.flags
            idle = ours.idle_since_s is not None and not ours.fleet
            kept = idle and reserved
            fell = seen is not None and seen.base is NodeBase.DOWN
            down = idle and fell
            if seen is not None and not (ours.job or fell or seen.drained or "MAINTENANCE" in seen.flags):
                cpus, memory_mb = seen.cpus_allocated, seen.memory_allocated_mb
                use = Use(ours.image, ours.devices, ours.flavour, cpus, memory_mb > 0, reserved), memory_mb
        before = self._use.get(name)
        bags = ((self.idle, idle), (self.kept, kept), (self.down, down))
        if use == before and all(there == (name in bag) for bag, there in bags):
            return
        for bag, there in bags:
            (bag.add if there else bag.discard)(name)
        if use != before:
            self._count(name, before, use)

    def _count(self, name: str, before: Partly | None, use: Partly | None) -> None:
        if before is not None:
            del self._use[name]
            self.alike.discard(before[0])
            if _has_cpus(before[0]):
                self.partly.discard(before)
        if use is not None:
            self._use[name] = use
            self.alike.add(use[0])
            if _has_cpus(use[0]):
                self.partly.add(use)

    @property
    def memory_is_given(self) -> bool | None:
        """Return whether Slurm gives memory to jobs, as SelectTypeParameters has it; None: not seen yet.

        Where it does, no job runs without any: one that asks for none has all of its node.
        """
        if any(use.any_memory for use in self.alike):
            return True
        return False if any(use.cpus for use in self.alike) else None


def _has_cpus(use: Use) -> bool:
    return use.flavour is None or use.cpus < use.flavour.cpus


class Remainder(NamedTuple):
    """What an instance has left. `untouched`: none of its memory is given to jobs."""

    untouched: bool
    cpus: int
    memory_mb: int


# Where to look: what is the same of instances that differ in memory alone. They are used up in this order.
_Row = tuple[bool, int, Offer]


class Remainders:
    """What instances have left, by what they offer; jobs take their shares one after the other.

    `memory_is_given`: see ReadyIndex.
    """

    def __init__(self, *, memory_is_given: bool | None) -> None:
        self._given = memory_is_given
        self.cpus: Counter[Offer] = Counter()  # that are left in all
        self._rows: list[_Row] = []  # sorted
        self._sizes: dict[_Row, list[int]] = {}  # MB; sorted
        self._many: Counter[tuple[_Row, int]] = Counter()

    def add(self, offer: Offer, left: Remainder, many: int = 1) -> None:
        """Put in what so many instances have left each."""
        if left.cpus <= 0 or many <= 0:
            return
        row = left.untouched, left.cpus, offer
        if row not in self._sizes:
            insort(self._rows, row)
            self._sizes[row] = []
        if not self._many[row, left.memory_mb]:
            insort(self._sizes[row], left.memory_mb)
        self._many[row, left.memory_mb] += many
        self.cpus[offer] += many * left.cpus

    def clear(self, offers: Collection[Offer]) -> None:
        """Leave nothing of what offers this to others."""
        for row in [row for row in self._rows if row[2] in offers]:
            for memory_mb in tuple(self._sizes[row]):
                self._drop(row, memory_mb, self._many[row, memory_mb])

    def fits(self, share: JobShare, offers: Collection[Offer]) -> bool:
        """Return True if as many instances as a job wants have its share left."""
        wanted = share.nodes
        for one in self._fitting(share, offers):
            wanted -= self._many[one]
            if wanted <= 0:
                return True
        return False

    def place(self, share: JobShare, jobs: int, offers: Collection[Offer]) -> int:
        """Give so many jobs their shares; return how many of these find no place.

        What a job over several nodes has found is kept for it even if it lacks others.
        """
        if share.nodes > 1:
            return sum(self._place_wide(share, offers) for _ in range(jobs))
        while jobs and (found := next(self._fitting(share, offers), None)) is not None:
            (untouched, cpus, offer), memory_mb = found
            left = Remainder(untouched, cpus, memory_mb)
            each = self._most(share, left)
            many, taken = (min(self._many[found], jobs // each), each) if jobs >= each else (1, jobs)
            self._drop(*found, many)
            self.add(offer, self._after(share, left, taken), many)
            jobs -= taken * many
        return jobs

    def open(self, offer: Offer, whole: Remainder, share: JobShare, lacking: int) -> int:
        """Put in as many whole instances as these shares lack, which take them; return how many.

        Of a job over several nodes each takes one share.
        """
        each = 1 if share.nodes > 1 else self._most(share, whole)
        full, rest = divmod(lacking, each)
        self.add(offer, self._after(share, whole, each), full)
        if rest:
            self.add(offer, self._after(share, whole, rest))
        return full + bool(rest)

    def _fitting(self, share: JobShare, offers: Collection[Offer]) -> Iterator[tuple[_Row, int]]:
        """Yield those that have the share left, the smallest first."""
        for row in self._rows:
            untouched, cpus, offer = row
            # Who asks for no memory has all of it, where Slurm gives it.
            if cpus < share.cpus or offer not in offers or not (share.memory_mb or untouched):
                continue
            sizes = self._sizes[row]
            for at in range(bisect_left(sizes, share.memory_mb), len(sizes)):
                yield row, sizes[at]

    def _place_wide(self, share: JobShare, offers: Collection[Offer]) -> int:
        found: list[tuple[_Row, int]] = []
        while len(found) < share.nodes and (one := next(self._fitting(share, offers), None)) is not None:
            self._drop(*one, 1)
            found.append(one)
        for (untouched, cpus, offer), memory_mb in found:
            self.add(offer, self._after(share, Remainder(untouched, cpus, memory_mb), 1))
        return share.nodes - len(found)

    def _drop(self, row: _Row, memory_mb: int, many: int) -> None:
        self._many[row, memory_mb] -= many
        self.cpus[row[2]] -= many * row[1]
        if self._many[row, memory_mb]:
            return
        del self._many[row, memory_mb]
        self._sizes[row].remove(memory_mb)
        if not self._sizes[row]:
            del self._sizes[row]
            self._rows.remove(row)

    def _most(self, share: JobShare, left: Remainder) -> int:
        """Return how many of these shares an instance has left."""
        cpus = left.cpus // share.cpus
        if not share.memory_mb:
            return 1 if self._given else cpus
        return cpus if self._given is False else min(cpus, left.memory_mb // share.memory_mb)

    def _after(self, share: JobShare, left: Remainder, taken: int) -> Remainder:
        """Return what it has left once so many shares are taken."""
        untouched, cpus, memory_mb = left
        if share.memory_mb and self._given is not False:
            untouched, memory_mb = False, memory_mb - taken * share.memory_mb
        elif not share.memory_mb and self._given:
            untouched, memory_mb = False, 0
        return Remainder(untouched, cpus - taken * share.cpus, memory_mb)


def whole(flavour: Flavour) -> Remainder:
    """Return what an instance has left on which there is no job."""
    return Remainder(untouched=True, cpus=flavour.cpus, memory_mb=flavour.node_memory_mb)


def instances_for(
    shares: Iterable[tuple[JobShare, int]], flavour: Flavour, most: int, *, memory_is_given: bool | None
) -> int:
    """Return how many instances so many jobs of each share take that have nothing else; `most` or fewer."""
    opened, offer = 0, ("", ())
    there = Remainders(memory_is_given=memory_is_given)
    for share, jobs in shares:
        for many in repeat(1, jobs) if share.nodes > 1 else (jobs,):
            if opened >= most:
                return most
            lacking = there.place(share, many, (offer,))
            opened += there.open(offer, whole(flavour), share, lacking)
    return min(opened, most)
