"""EASY backfill on nodes: the head that does not fit has a reservation on nodes of its own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from backfill.sim.schedulers.waiting_asks import Ask, WaitingAsks

# Starts the job on these nodes, a set of bits: see `nodes_in`.
Start = Callable[[Ask, int], None]


def nodes_in(bits: int) -> list[int]:
    """The numbers of the nodes in a set of bits, in order."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def first_of(bits: int, count: int) -> int:
    """The first `count` nodes of a set of bits, which has no fewer."""
    if count == 1:
        return bits & -bits
    surplus = bits.bit_count() - count
    if surplus <= 0:
        return bits
    low, high = 0, bits.bit_length()
    while True:
        middle = (low + high) // 2
        found = bits & ((1 << middle) - 1)
        have = found.bit_count()
        if have == count:
            return found
        if have < count:
            low = middle
        else:
            high = middle


class NodeEasy:
    """Who starts where. With nodes of one CPU it decides as EASY on a pool of processors does.

    A job takes the first nodes with room, as Slurm does with nodes of one weight; what must not
    last beyond the head's reservation is put onto the head's nodes first. A job that outlives its
    estimate is expected to end at any moment.

    Nodes are kept in sets of bits, one for each number of free CPUs: a job of a thousand nodes
    costs little more than one of a single node.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._all = (1 << len(cpus)) - 1
        most = max(cpus, default=0)
        # The nodes with so many free CPUs or more.
        self._room = [self._all] + [
            sum(1 << node for node, free in enumerate(cpus) if free >= count) for count in range(1, most + 1)
        ]
        self._single = most == 1
        self._waiting = WaitingAsks()
        # With nodes of one CPU a job that was passed over stays so until a job ends: till then
        # room only shrinks. So only those are asked that have come since; None: all of them.
        self._new: list[Ask] | None = None
        self._running: list[tuple[float, int, Ask]] = []  # by estimated end
        self._count = 0

    @property
    def waits(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting.asks)

    def room_on(self, nodes: int) -> bool:
        """Whether any of these nodes has a free CPU."""
        return bool(having(self._room, 1) & nodes)

    def wake_s(self, now_s: float) -> float:
        """When a pass is due next though no job comes or ends; infinite: never."""
        return inf

    def add(self, ask: Ask) -> None:
        """The job waits from now on."""
        if not self._waiting.add(ask):
            self._new = None
        elif self._new is not None:
            self._new.append(ask)

    def withdraw(self, name: str) -> None:
        """A waiting job is no longer wanted; one that does not wait: nothing."""
        self._waiting.withdraw(name)
        self._new = None

    def ended(self, ask: Ask) -> None:
        """A running job has given its nodes back."""
        at = bisect_left(self._running, (ask.end_s,))
        while self._running[at][2] is not ask:
            at += 1
        del self._running[at]
        give(self._room, ask.placed, ask.cpus)
        self._new = None

    def schedule(self, now_s: float, start: Start) -> None:
        """One pass: heads while they fit, then whoever does not delay the head."""
        waiting, asks = self._waiting, self._waiting.asks
        while asks:
            ask = asks[0]
            fit = having(self._room, ask.cpus)
            if fit.bit_count() < ask.nodes:
                break
            waiting.remove(ask)
            self._start(ask, first_of(fit, ask.nodes), now_s, start)
            self._new = None
        if len(asks) > 1 and having(self._room, 1):
            if self._new is None or self._new:
                self._backfill(now_s, start)
            self._new = [] if self._single else None

    # --- inside --------------------------------------------------------------------------------

    def _start(self, ask: Ask, nodes: int, now_s: float, start: Start) -> None:
        take(self._room, nodes, ask.cpus)
        ask.placed, ask.end_s = nodes, now_s + ask.estimate_s
        self._count += 1
        insort(self._running, (ask.end_s, self._count, ask))
        start(ask, nodes)

    def _backfill(self, now_s: float, start: Start) -> None:
        """Ask in queue order by merging the kinds' own queues: of a kind that fits only beside the
        head's reservation none is asked that would last longer."""
        shadow_s, left = self._reserve(self._waiting.asks[0])
        found = []
        for asks, lasting in self._asked(now_s, shadow_s, left):
            at = _next(asks, 0, now_s, None if lasting else shadow_s)
            if at >= 0:
                found.append((asks[at].order, at, asks, lasting))
        heapify(found)
        while found and self._room[1]:
            _, at, asks, lasting = heappop(found)
            ask = asks[at]
            ends = now_s + ask.estimate_s <= shadow_s
            nodes = self._beside(ask, left, ends=ends)
            if nodes:
                if not ends:
                    take(left, nodes & left[0], ask.cpus)
                self._waiting.remove(ask)
                self._start(ask, nodes, now_s, start)
            elif ends:
                continue  # room only shrinks during a pass: none of this kind can follow
            else:
                lasting = False
            at = _next(asks, at + 1, now_s, None if lasting else shadow_s)
            if at >= 0:
                heappush(found, (asks[at].order, at, asks, lasting))

    def _asked(self, now_s: float, shadow_s: float, left: list[int]) -> Iterator[tuple[list[Ask], bool]]:
        """Those of each kind that may start, and whether they may outlast the head's waiting."""
        if self._new is not None:
            yield from (([ask], True) for ask in self._new)
            return
        head = self._waiting.asks[0]
        counts: dict[int, tuple[int, int]] = {}
        for alike in self._waiting.kinds(self._room[1].bit_count()):
            cpus, nodes = alike.cpus, alike.nodes
            if cpus not in counts:
                fit = having(self._room, cpus)
                lasts = fit & (~left[0] | having(left, cpus))
                counts[cpus] = (fit.bit_count(), lasts.bit_count())
            fitting, outlasting = counts[cpus]
            if nodes <= fitting and (nodes <= outlasting or now_s + alike.estimates_s[0] <= shadow_s):
                asks = alike.asks
                yield asks[1:] if asks[0] is head else list(asks), nodes <= outlasting

    def _reserve(self, head: Ask) -> tuple[float, list[int]]:
        """When by estimates the head fits, and the room that it then leaves over on its nodes.

        All jobs that end by estimate at that very instant count.
        """
        need, cpus = head.nodes, head.cpus
        if self._single:
            return self._reserve_single(need)
        then = list(self._room)
        shadow_s = inf
        for end_s, _, ask in self._running:
            if end_s > shadow_s:
                break
            give(then, ask.placed, ask.cpus)
            if having(then, cpus).bit_count() >= need:
                shadow_s = end_s
        nodes = self._busiest(having(then, cpus), need)
        return shadow_s, [nodes, *(room & nodes for room in then[cpus + 1 :])]

    def _reserve_single(self, need: int) -> tuple[float, list[int]]:
        """The same where no two jobs share a node."""
        fit = self._room[1]
        count, shadow_s = fit.bit_count(), inf
        for end_s, _, ask in self._running:
            if end_s > shadow_s:
                break
            fit |= ask.placed
            count += ask.nodes
            if count >= need:
                shadow_s = end_s
        return shadow_s, [self._busiest(fit, need)]

    def _busiest(self, fit: int, need: int) -> int:
        """So many of these, the busiest first: idle ones can do something else."""
        found, room = 0, self._room
        for count in range(1, len(room) + 1):
            more = fit & ~having(room, count) & ~found
            if found.bit_count() + more.bit_count() >= need:
                return found | first_of(more, need - found.bit_count())
            found |= more
        return found

    def _beside(self, ask: Ask, left: list[int], *, ends: bool) -> int:
        """Nodes on which the job may overtake the head; 0: there are too few."""
        return self._among(having(self._room, ask.cpus), ask, left, ends=ends)

    def _among(self, fit: int, ask: Ask, left: list[int], *, ends: bool) -> int:
        head = left[0]
        if not ends:
            fit &= ~head | having(left, ask.cpus)
        if fit.bit_count() < ask.nodes:
            return 0
        if not ends:
            return first_of(fit, ask.nodes)
        found = first_of(fit & head, ask.nodes)
        return found | first_of(fit & ~head, ask.nodes - found.bit_count())


# --- room: for each number of CPUs the nodes with so many free, beginning with 0 ------------------


def having(room: list[int], cpus: int) -> int:
    """The nodes with so many free CPUs."""
    return room[cpus] if cpus < len(room) else 0


def take(room: list[int], nodes: int, cpus: int) -> None:
    """These nodes have so many free CPUs fewer; they had as many."""
    if len(room) == 2:  # nodes of one CPU
        room[1] &= ~nodes
        return
    for count in range(1, len(room)):
        stays = having(room, count + cpus)
        room[count] &= ~nodes | stays


def give(room: list[int], nodes: int, cpus: int) -> None:
    """These nodes have so many free CPUs more."""
    if len(room) == 2:
        room[1] |= nodes
        return
    for count in range(len(room) - 1, 0, -1):
        room[count] |= nodes & room[max(0, count - cpus)]


def _next(asks: list[Ask], at: int, now_s: float, by_s: float | None) -> int:
    """From `at` on the first that by its estimate ends by then (None: any), or -1."""
    if by_s is None:
        return at if at < len(asks) else -1
    ends = (i for i in range(at, len(asks)) if now_s + asks[i].estimate_s <= by_s)
    return next(ends, -1)
