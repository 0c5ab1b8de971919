"""Where jobs are placed: a pool of processors, or nodes with CPUs, of which some may be kept for others.

One implementation of FCFS, EASY and conservative backfill serves both. A place is a number: of a pool
how many processors it is, of nodes a set of bits (see `nodes_in`). 0 is nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from backfill.sim.schedulers.forecasts import Forecast, NodeForecast, PoolForecast, Running, claim_kept
from backfill.sim.schedulers.node_sets import busiest, first_of, give, having, take
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import Kept
from backfill.sim.schedulers.timeline import Timeline


@dataclass(slots=True)
class Promise:
    """The start of the queue's head by estimates, and what it leaves over on its nodes then.

    `left[0]` are its nodes; the n-th number after it are those of them with n CPUs to spare. Of a
    pool, nothing.
    """

    start_s: float
    head: Request
    left: list[int] = field(default_factory=list)


class Room(Protocol):
    """The place that a scheduler fills.

    `alike`: of two requests of one kind, that is of one size, either both fit or neither does.
    """

    alike: bool
    free: int  # the place that is free: 0 if there is none

    def count(self) -> int:
        """Return how many nodes or processors have something free."""

    def shrinks(self, running: Running, since_s: float, now_s: float) -> bool:
        """Return True if nobody who was passed over then can fit now, as no job has ended since."""

    def opens_s(self, now_s: float) -> float:
        """Return when something that is kept now or later is free again; infinite: never."""

    def place(self, request: Request, now_s: float) -> int:
        """Return where the job may start now beside those who run, 0 if nowhere."""

    def place_promised(self, request: Request, place: int) -> int:
        """Return where the job starts that was promised `place`, 0 if somebody is still there."""

    def take(self, request: Request) -> None:
        """Take the place of a job that starts."""

    def give(self, request: Request) -> None:
        """Give back the place of a job that has ended."""

    def promise(self, head: Request, running: Running, now_s: float) -> Promise:
        """Promise the head of the queue the earliest start that the running jobs' estimates allow."""

    def bounds(self, cpus: int, promise: Promise) -> tuple[int, int]:
        """Return how many nodes have so many free CPUs, and how many of them beyond the head's start."""

    def beside(self, request: Request, promise: Promise, now_s: float, *, ends: bool) -> int:
        """Return where the job may overtake the head, 0 if nowhere; book what it takes of the promise.

        `ends`: it is over when the head starts.
        """

    def forecast(self, running: Running, now_s: float) -> Forecast:
        """Return what the running jobs and what is kept leave over in time to come."""


class Nodes:
    """Nodes of several CPUs; a job has equally many on each of its nodes.

    A job takes the first nodes with room, as Slurm does with nodes of one weight; what must not
    last beyond the head's start is put onto the head's nodes first.

    Nodes are kept in sets of bits, one for each number of free CPUs: a job of a thousand nodes
    costs little more than one of a single node.
    """

    def __init__(self, cpus: Sequence[int], kept: Sequence[Kept] = ()) -> None:
        self._all = (1 << len(cpus)) - 1
        most = max(cpus, default=0)
        # The nodes with so many free CPUs or more.
        self._free = [self._all] + [
            sum(1 << node for node, free in enumerate(cpus) if free >= count) for count in range(1, most + 1)
        ]
        self._empty = tuple(self._free)
        self._kept = tuple(kept)
        self.alike = not kept
        self._plain = most == 1 and not kept
        self.free = self._all

    def count(self) -> int:
        """Return how many nodes have a free CPU."""
        return self.free.bit_count()

    def shrinks(self, running: Running, since_s: float, now_s: float) -> bool:
        """Return True where no two jobs share a node and nothing is kept."""
        return self._plain

    def opens_s(self, now_s: float) -> float:
        """Return when nodes that are kept are free again."""
        if not self._kept:
            return inf
        return min((kept.end for kept in self._kept if kept.end > now_s), default=inf)

    def place(self, request: Request, now_s: float) -> int:
        """Return the first nodes with room; none that would be kept before the job's end."""
        free, cpus = self._free, request.cpus
        fit = free[cpus] if cpus < len(free) else 0
        if self._kept:
            fit &= ~self._closed(request, now_s)
        return first_of(fit, request.nodes) if fit.bit_count() >= request.nodes else 0

    def place_promised(self, request: Request, place: int) -> int:
        """Return the promised nodes if they have room. Where any will do none is promised."""
        fit = having(self._free, request.cpus)
        if place:
            return place if place & fit == place else 0
        return first_of(fit, request.nodes) if fit.bit_count() >= request.nodes else 0

    def take(self, request: Request) -> None:
        """Take the CPUs of a job that starts."""
        free = self._free
        if len(free) == 2:
            free[1] &= ~request.placed
        else:
            take(free, request.placed, request.cpus)
        self.free = free[1]

    def give(self, request: Request) -> None:
        """Give back the CPUs of a job that has ended."""
        free = self._free
        if len(free) == 2:
            free[1] |= request.placed
        else:
            give(free, request.placed, request.cpus)
        self.free = free[1]

    def promise(self, head: Request, running: Running, now_s: float) -> Promise:
        """Promise the head its start; all jobs that end by estimate at that very instant count."""
        if self._plain:
            return self._promise_single(head, running)
        then, need, cpus = list(self._free), head.nodes, head.cpus
        start_s, fit = inf, 0
        for end_s, _, request in self._ends(running, now_s):
            if end_s > start_s:
                break
            if request is not None:
                give(then, request.placed, request.cpus)
            fit = then[cpus]
            if self._kept:
                fit &= ~self._closed(head, end_s)
            if fit.bit_count() >= need:
                start_s = end_s
        nodes = busiest(self._free, fit, need)
        return Promise(start_s, head, [nodes, *(room & nodes for room in then[cpus + 1 :])])

    def _ends(self, running: Running, now_s: float) -> Sequence[tuple[float, int, Request | None]]:
        """Return when room comes: at ends of jobs, and where nodes were kept."""
        if not self._kept:
            return running
        opened = ((kept.end, 0, None) for kept in self._kept if kept.end > now_s)
        return sorted([*running, *opened], key=lambda end: end[0])

    def _promise_single(self, head: Request, running: Running) -> Promise:
        """Promise the same where no two jobs share a node."""
        fit, need = self._free[1], head.nodes
        count, start_s = fit.bit_count(), inf
        for end_s, _, request in running:
            if end_s > start_s:
                break
            fit |= request.placed
            count += request.nodes
            if count >= need:
                start_s = end_s
        return Promise(start_s, head, [busiest(self._free, fit, need)])

    def bounds(self, cpus: int, promise: Promise) -> tuple[int, int]:
        """Return how many nodes have so many free CPUs, and how many of them beyond the head's start."""
        fit, left = having(self._free, cpus), promise.left
        lasts = fit & (~left[0] | having(left, cpus))
        return fit.bit_count(), lasts.bit_count()

    def beside(self, request: Request, promise: Promise, now_s: float, *, ends: bool) -> int:
        """Return nodes on which the job may overtake the head, 0 if there are too few."""
        left, wanted, free, cpus = promise.left, request.nodes, self._free, request.cpus
        fit, head = free[cpus] if cpus < len(free) else 0, left[0]
        if self._kept:
            fit &= ~self._closed(request, now_s)
        if ends:
            if fit.bit_count() < wanted:
                return 0
            found = first_of(fit & head, wanted)
            return found | first_of(fit & ~head, wanted - found.bit_count())
        fit &= ~head | having(left, cpus)
        if fit.bit_count() < wanted:
            return 0
        nodes = first_of(fit, wanted)
        take(left, nodes & head, cpus)
        return nodes

    def forecast(self, running: Running, now_s: float) -> Forecast:
        """Return the forecast; of nodes of one CPU any will do: which ones is decided at the start."""
        if self._plain:
            return PoolForecast(self._all.bit_count(), (), running, now_s)
        return NodeForecast(self._empty, self._kept, running, now_s)

    def _closed(self, request: Request, at_s: float) -> int:
        """Return the nodes that are kept at some time while the job would run if it began then."""
        until_s, found = at_s + request.estimate_s, 0
        for kept in self._kept:
            if kept.start < until_s and kept.end > at_s:
                found |= kept.place
        return found


class RoomPool:
    """Processors, any of which will do, of which some are kept: one timeline has what is free when."""

    alike = False

    def __init__(self, processors: int, kept: Sequence[Kept] = ()) -> None:
        self.free = processors
        self._processors = processors
        self._kept = tuple(kept)
        self._timeline: Timeline[float] | None = None
        self._now_s = 0.0  # of the latest question
        self._ended: list[Request] = []  # since then

    def count(self) -> int:
        """Return how many processors are free."""
        return self.free

    def shrinks(self, running: Running, since_s: float, now_s: float) -> bool:
        """Return True if no estimate has run out since then, and nothing that was kept is free again."""
        late = bool(running) and running[0][0] <= now_s
        return not late and self.opens_s(since_s) > now_s

    def opens_s(self, now_s: float) -> float:
        """Return when processors that are kept are free again."""
        if not self._kept:
            return inf
        return min((kept.end for kept in self._kept if kept.end > now_s), default=inf)

    def place(self, request: Request, now_s: float) -> int:
        """Return the processors if they are free, by estimates, until the job's end."""
        if request.nodes > self.free:
            return 0
        least = self._ahead(now_s).least_free(now_s, now_s + request.estimate_s)
        return request.nodes if least >= request.nodes else 0

    def place_promised(self, request: Request, place: int) -> int:
        """Return the processors if they are free."""
        return request.nodes if request.nodes <= self.free else 0

    def take(self, request: Request) -> None:
        """Take the processors of a job that starts."""
        self.free -= request.nodes
        if self._timeline is not None:
            self._timeline.claim(self._now_s, request.end_s, request.nodes)

    def give(self, request: Request) -> None:
        """Give back the processors of a job that has ended."""
        self.free += request.nodes
        if self._timeline is not None:
            self._ended.append(request)

    def promise(self, head: Request, running: Running, now_s: float) -> Promise:
        """Promise the head the first processors that stay free for as long as it may run."""
        start_s = self._ahead(now_s).earliest(head.nodes, head.estimate_s, now_s)
        assert start_s is not None, "a job larger than the machine is left out before the replay"
        return Promise(start_s, head)

    def bounds(self, cpus: int, promise: Promise) -> tuple[int, int]:
        """Return how many processors are free: estimates are looked at one by one."""
        return self.free, self.free

    def beside(self, request: Request, promise: Promise, now_s: float, *, ends: bool) -> int:
        """Return the processors if the job fits to its end beside all that is known, the head included."""
        wanted, head, end_s = request.nodes, promise.head, now_s + request.estimate_s
        ahead = self._ahead(now_s)
        if wanted > self.free or ahead.least_free(now_s, end_s) < wanted:
            return 0
        from_s, until_s = max(now_s, promise.start_s), min(end_s, promise.start_s + head.estimate_s)
        if from_s < until_s and ahead.least_free(from_s, until_s) < wanted + head.nodes:
            return 0
        return wanted

    def forecast(self, running: Running, now_s: float) -> Forecast:
        """Return the forecast of the pool."""
        return PoolForecast(self._processors, self._kept, running, now_s)

    def _ahead(self, now_s: float) -> Timeline[float]:
        """Return what is free from now on by estimates; it is kept up from the first question on."""
        if self._timeline is None:
            self._timeline = Timeline(self._processors, now_s)
            claim_kept(self._timeline, self._kept, now_s)
        elif now_s > self._now_s:
            self._timeline.forget_before(now_s)
        for request in self._ended:
            if request.end_s > now_s:
                self._timeline.release(now_s, request.end_s, request.nodes)
        self._ended.clear()
        self._now_s = now_s
        return self._timeline
