"""What our ready nodes have left for further jobs, and which of those that wait find their share there.

Slurm gives a job its share of a node in one piece: CPUs that are free on several instances, or beside
memory that is given away, are free for nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import NamedTuple

from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.policies.demand import JobShare
from backfill.core.undo import Bag, Table, Tally, UndoLog


class Offering(NamedTuple):
    """What jobs find on an instance besides CPUs and memory. `reserved`: Slurm keeps it for somebody."""

    image: str  # empty: that of the policy file
    devices: tuple[str, ...]
    reserved: bool = False


class Remainder(NamedTuple):
    """What an instance has left. `untouched`: none of its memory is given to jobs; `empty`: nothing is."""

    untouched: bool
    cpus: int
    memory_mb: int
    empty: bool = False


def whole(flavour: Flavour) -> Remainder:
    """Return what an instance has left on which there is no job."""
    return Remainder(untouched=True, cpus=flavour.cpus, memory_mb=flavour.node_memory_mb, empty=True)


# Where to look for a piece: what is the same of those that differ in memory alone. In this order they
# are used up.
_Row = tuple[bool, int, Offering, bool]
_Piece = tuple[_Row, int]  # and its memory, MB


class Pieces:
    """How many instances have the same left, in order of its size."""

    def __init__(self, log: UndoLog | None = None) -> None:
        self._log = log
        self.cpus: Counter[Offering] = Counter()  # in all
        self._many: Counter[_Piece] = Counter()
        self._rows: list[_Row] = []
        self._sizes: dict[_Row, list[int]] = {}  # MB

    def add(self, offering: Offering, left: Remainder, many: int = 1) -> None:
        """Put in what so many instances have left each, if that is any CPU."""
        if left.cpus > 0 and many > 0:
            self._change(_piece(offering, left), many)

    def drop(self, offering: Offering, left: Remainder, many: int = 1) -> None:
        """Take it out again."""
        if left.cpus > 0 and many > 0:
            self._change(_piece(offering, left), -many)

    def fitting(self, share: JobShare, offered: Collection[Offering]) -> Iterator[tuple[Offering, Remainder]]:
        """Yield what is large enough, the smallest first."""
        for row in self._rows:
            untouched, cpus, offering, empty = row
            if cpus < share.cpus or offering not in offered or (share.exclusive and not empty):
                continue
            # Who asks for no memory has all of it, where Slurm gives it.
            if not (share.memory_mb or untouched):
                continue
            sizes = self._sizes[row]
            for at in range(bisect_left(sizes, share.memory_mb), len(sizes)):
                yield offering, Remainder(untouched, cpus, sizes[at], empty)

    def how_many(self, offering: Offering, left: Remainder) -> int:
        """Return how many instances have that left."""
        return self._many[_piece(offering, left)]

    def copy(self) -> Pieces:
        """Return the same, to be changed by itself."""
        other = Pieces()
        other.cpus, other._many, other._rows = self.cpus.copy(), self._many.copy(), self._rows.copy()
        other._sizes = {row: sizes.copy() for row, sizes in self._sizes.items()}
        return other

    def _change(self, piece: _Piece, by: int) -> None:
        if self._log is not None and self._log.on:
            self._log.note(partial(self._change_by, piece, -by))
        self._change_by(piece, by)

    def _change_by(self, piece: _Piece, by: int) -> None:
        row, memory_mb = piece
        before = self._many[piece]
        self._many[piece] = before + by
        self.cpus[row[2]] += by * row[1]
        if not before:
            if row not in self._sizes:
                insort(self._rows, row)
                self._sizes[row] = []
            insort(self._sizes[row], memory_mb)
        elif not before + by:
            del self._many[piece]
            del self._sizes[row][bisect_left(self._sizes[row], memory_mb)]
            if not self._sizes[row]:
                del self._sizes[row]
                del self._rows[bisect_left(self._rows, row)]


def _piece(offering: Offering, left: Remainder) -> _Piece:
    return (left.untouched, left.cpus, offering, left.empty), left.memory_mb


# Slurm keeps a node for some jobs only: of an image that some people share, or of an owner whose pin has
# outlived our books.
_RESERVED = "RESERVED"


class ReadyIndex:
    """What a plan needs of all ready nodes every time, kept up to date. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        # Names of those without a job that no fleet keeps, and no drain of people.
        self.idle: Bag[str] = Bag(log)
        self.kept: Bag[str] = Bag(log)  # of these those that Slurm reserves for somebody
        self.down: Bag[str] = Bag(log)  # of the idle ones those that are DOWN
        # Of the idle ones those to which Slurm gives nothing: they are DOWN, or it has drained them itself.
        self.shut: Bag[str] = Bag(log)
        self.pieces = Pieces(log)  # what those have left that take jobs
        self._left: Table[str, tuple[Offering, Remainder]] = Table(log)  # each of these
        self._at_work: Tally[bool] = Tally(log)  # how many of these have jobs, with memory or without any
        self._uses: Table[str, bool] = Table(log)  # which of the two
        self._learnt: bool | None = None  # whether Slurm gives memory, as seen last; no plan changes it

    def look(self, name: str, ours: ManagedNode | None, seen: Node | None) -> None:
        """Note how a node looks now."""
        idle = kept = down = shut = False
        left: tuple[Offering, Remainder] | None = None
        uses: bool | None = None
        if ours is not None and ours.phase is Phase.READY:
            reserved = seen is not None and _RESERVED in seen.flags
            theirs = seen is not None and seen.drained_by_people
            idle = ours.idle_since_s is not None and not ours.fleet and not theirs
            kept = idle and reserved
            fell = seen is not None and seen.base is NodeBase.DOWN
            down = idle and fell
            shut = down or (idle and seen is not None and seen.drained_by_others)
            if seen is not None and not (ours.job or fell or seen.drained or "MAINTENANCE" in seen.flags):
                left = Offering(ours.image, ours.devices, reserved), _left_on(seen)
                uses = seen.memory_allocated_mb > 0 if seen.cpus_allocated else None
        for bag, there in ((self.idle, idle), (self.kept, kept), (self.down, down), (self.shut, shut)):
            if there != (name in bag):
                (bag.add if there else bag.discard)(name)
        if left != self._left.get(name):
            self._put(name, left)
        if uses != self._uses.get(name):
            self._count(name, uses)

    def learn(self, seen: Node | None, *, ours: bool) -> bool:
        """Note what a node's jobs tell of whether Slurm gives memory; return True if that is news.

        A partition may have a setting of its own: other nodes than ours count only until one of ours tells.
        """
        if seen is None or not seen.cpus_allocated or not (ours or self._learnt is None):
            return False
        before, self._learnt = self._learnt, seen.memory_allocated_mb > 0
        return before is not self._learnt

    def left_on(self, names: Iterable[str]) -> list[tuple[Offering, Remainder]]:
        """Return what these have left, as far as they take jobs."""
        return [self._left[name] for name in names if name in self._left]

    def _put(self, name: str, left: tuple[Offering, Remainder] | None) -> None:
        if (before := self._left.pop(name)) is not None:
            self.pieces.drop(*before)
        if left is not None:
            self._left[name] = left
            self.pieces.add(*left)

    def _count(self, name: str, uses: bool | None) -> None:
        if (before := self._uses.pop(name)) is not None:
            self._at_work.discard(before)
        if uses is not None:
            self._uses[name] = uses
            self._at_work.add(uses)

    @property
    def memory_is_given(self) -> bool | None:
        """Return whether Slurm gives memory to jobs, as SelectTypeParameters has it; None: not seen yet.

        Where it does, no job runs without any: one that asks for none has all of its node. While none of
        ours has a job, what was seen last holds.
        """
        return True if self._at_work.get(True) else False if self._at_work.get(False) else self._learnt


def _left_on(seen: Node) -> Remainder:
    given, given_mb = seen.cpus_allocated, seen.memory_allocated_mb
    return Remainder(not given_mb, seen.cpus - given, seen.memory_mb - given_mb, not given and not given_mb)


_NOTHING = Remainder(untouched=False, cpus=0, memory_mb=0)


class Remainders:
    """What is left while jobs that wait take their shares one after the other.

    `pieces` are not touched by that; `coming`: what instances will have that are being made, and how
    many; `shut`: which pieces nobody gets. `memory_is_given`: see ReadyIndex. CPUs are added up; pieces
    are looked at only if somebody asks.
    """

    def __init__(
        self,
        pieces: Pieces,
        coming: Collection[tuple[Offering, Remainder, int]] = (),
        shut: Collection[tuple[Offering, Remainder]] = (),
        *,
        memory_is_given: bool | None,
    ) -> None:
        self._given, self._there, self._coming, self._shut = memory_is_given, pieces, coming, shut
        self._sums = pieces.cpus.copy()
        for offering, left in shut:
            self._sums[offering] -= left.cpus
        for offering, left, many in coming:
            self._sums[offering] += left.cpus * many
        self._copy: Pieces | None = None
        self._gone: set[Offering] = set()

    @property
    def offered(self) -> list[Offering]:
        """Return what jobs can find here."""
        return [offering for offering in self._cpus if offering not in self._gone]

    @property
    def _cpus(self) -> Counter[Offering]:
        return self._sums if self._copy is None else self._copy.cpus

    @property
    def _pieces(self) -> Pieces:
        if self._copy is None:
            self._copy = self._there.copy()
            for offering, left in self._shut:
                self._copy.drop(offering, left)
            for offering, left, many in self._coming:
                self._copy.add(offering, left, many)
        return self._copy

    def cpus(self, offered: Iterable[Offering]) -> int:
        """Return how many CPUs are left of these in all, in whatever pieces."""
        return sum(self._cpus[offering] for offering in offered)

    def take_all(self, offered: Iterable[Offering]) -> None:
        """Offer nothing of these to others."""
        self._gone.update(offered)

    def fits(self, share: JobShare, offered: Collection[Offering]) -> bool:
        """Return True if as many instances as a job wants have its share left."""
        pieces, wanted = self._pieces, share.nodes
        for piece in pieces.fitting(share, offered):
            wanted -= pieces.how_many(*piece)
            if wanted <= 0:
                return True
        return False

    def place(self, share: JobShare, jobs: int, offered: Collection[Offering]) -> int:
        """Give so many jobs their shares; return how many of these find no place.

        What a job over several nodes has found is kept for it even if it lacks others.
        """
        if share.nodes > 1:
            return sum(self._place_wide(share, offered) for _ in range(jobs))
        pieces = self._pieces
        while jobs and (piece := next(pieces.fitting(share, offered), None)) is not None:
            offering, left = piece
            each = self._most(share, left)
            many, taken = (min(pieces.how_many(*piece), jobs // each), each) if jobs >= each else (1, jobs)
            pieces.drop(offering, left, many)
            pieces.add(offering, self._after(share, left, taken), many)
            jobs -= taken * many
        return jobs

    def open(self, offering: Offering, left: Remainder, share: JobShare, lacking: int) -> int:
        """Put in as many instances with this much as these shares lack, which take it; return how many.

        Of a job over several nodes each takes one share.
        """
        each = 1 if share.nodes > 1 else self._most(share, left)
        full, rest = divmod(lacking, each)
        self._pieces.add(offering, self._after(share, left, each), full)
        if rest:
            self._pieces.add(offering, self._after(share, left, rest))
        return full + bool(rest)

    def _place_wide(self, share: JobShare, offered: Collection[Offering]) -> int:
        pieces, found = self._pieces, list[tuple[Offering, Remainder]]()
        while len(found) < share.nodes:
            if (piece := next(pieces.fitting(share, offered), None)) is None:
                break
            pieces.drop(*piece)
            found.append(piece)
        for offering, left in found:
            pieces.add(offering, self._after(share, left, 1))
        return share.nodes - len(found)

    def _most(self, share: JobShare, left: Remainder) -> int:
        """Return how many of these shares it is enough for."""
        if share.exclusive:
            return 1
        cpus = left.cpus // share.cpus
        if not share.memory_mb:
            return 1 if self._given else cpus
        return cpus if self._given is False else min(cpus, left.memory_mb // share.memory_mb)

    def _after(self, share: JobShare, left: Remainder, taken: int) -> Remainder:
        """Return what is left of it once so many shares are taken."""
        if share.exclusive:
            return _NOTHING
        untouched, cpus, memory_mb, _ = left
        if share.memory_mb and self._given is not False:
            untouched, memory_mb = False, memory_mb - taken * share.memory_mb
        elif not share.memory_mb and self._given:
            untouched, memory_mb = False, 0
        return Remainder(untouched, cpus - taken * share.cpus, memory_mb)


def instances_for(
    shares: Iterable[tuple[JobShare, int]], flavour: Flavour, most: int, *, memory_is_given: bool | None
) -> int:
    """Return how many instances so many jobs of each share take that have nothing else; `most` or fewer."""
    opened, offering = 0, Offering("", ())
    there = Remainders(Pieces(), memory_is_given=memory_is_given)
    for share, jobs in shares:
        for many in repeat(1, jobs) if share.nodes > 1 else (jobs,):
            if opened >= most:
                return most
            lacking = there.place(share, many, (offering,))
            opened += there.open(offering, whole(flavour), share, lacking)
    return min(opened, most)
