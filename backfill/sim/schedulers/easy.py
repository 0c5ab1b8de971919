"""EASY backfill: only the first job that does not fit is promised a start, and nobody delays it.

Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from backfill.sim.schedulers.fcfs import Fcfs, Start
from backfill.sim.schedulers.requests import Request, RequestKind
from backfill.sim.schedulers.rooms import Promise, Room

# Those of one kind who may start, and whether they may outlast the head's waiting.
Asked = tuple[list[Request], bool]


class Easy(Fcfs):
    """The head waits for its promised start; others overtake it where they do not delay that."""

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        # Where room only shrinks until a job ends, one that was passed over stays so till then: only
        # those are asked that have come since. None: all of them.
        self._new: list[Request] | None = None
        self._passed_s = -inf  # when the latest pass was

    def add(self, request: Request) -> None:
        """Let the job wait from now on."""
        if not self._waiting.add(request):
            self._new = None
        elif self._new is not None:
            self._new.append(request)

    def withdraw(self, name: str) -> None:
        """Let a job wait no longer; one that does not wait: nothing."""
        super().withdraw(name)
        self._new = None

    def ended(self, request: Request) -> None:
        """Take back the place of a running job."""
        super().ended(request)
        self._new = None

    def schedule(self, now_s: float, start: Start) -> None:
        """Make one pass: heads while they fit, then whoever does not delay the head."""
        new, since_s, self._passed_s = self._new, self._passed_s, now_s
        if self._start_heads(now_s, start) or (
            new is not None and not self._room.shrinks(self._running, since_s, now_s)
        ):
            self._new = None
        if len(self._waiting.requests) > 1 and self._room.free:
            if self._new is None or self._new:
                self._overtake(now_s, start)
            self._new = []

    def _overtake(self, now_s: float, start: Start) -> None:
        """Start who does not delay the head. Most often nobody fits: then no promise is looked for."""
        room, new = self._room, self._new
        if new is None:
            kinds = self._waiting.kinds(room.count())
            if kinds:
                promise = room.promise(self._waiting.requests[0], self._running, now_s)
                self._merge(self._asked(kinds, promise, now_s), promise, now_s, start)
            return
        fitting = [request for request in new if room.place(request, now_s)]
        if fitting:
            promise = room.promise(self._waiting.requests[0], self._running, now_s)
            self._merge((([request], True) for request in fitting), promise, now_s, start)

    def _merge(self, asked: Iterable[Asked], promise: Promise, now_s: float, start: Start) -> None:
        """Ask in queue order by merging the kinds' own queues: of a kind that fits only beside the
        head's promise none is asked that would last longer."""
        room, until_s = self._room, promise.start_s
        found = []
        for requests, lasting in asked:
            at = _next(requests, 0, now_s, None if lasting else until_s)
            if at >= 0:
                found.append((requests[at].order, at, requests, lasting))
        heapify(found)
        while found and room.free:
            _, at, requests, lasting = heappop(found)
            request = requests[at]
            ends = now_s + request.estimate_s <= until_s
            place = room.beside(request, promise, now_s, ends=ends)
            if place:
                self._begin(request, place, now_s, start)
            elif room.alike:
                if ends:
                    continue  # room only shrinks during a pass: none of this kind can follow
                lasting = False
            at = _next(requests, at + 1, now_s, None if lasting else until_s)
            if at >= 0:
                heappush(found, (requests[at].order, at, requests, lasting))

    def _asked(self, kinds: list[RequestKind], promise: Promise, now_s: float) -> Iterator[Asked]:
        """Yield those of each kind that may start, and whether they may outlast the head's waiting."""
        bounds: dict[int, tuple[int, int]] = {}
        for kind in kinds:
            cpus, nodes = kind.cpus, kind.nodes
            if cpus not in bounds:
                bounds[cpus] = self._room.bounds(cpus, promise)
            fitting, lasting = bounds[cpus]
            if nodes <= fitting and (nodes <= lasting or now_s + kind.estimates_s[0] <= promise.start_s):
                requests = kind.requests
                head = requests[0] is promise.head
                yield requests[1:] if head else list(requests), nodes <= lasting


def _next(requests: list[Request], at: int, now_s: float, by_s: float | None) -> int:
    """Return from `at` on the first that by its estimate ends by then (None: any), or -1."""
    if by_s is None:
        return at if at < len(requests) else -1
    ends = (i for i in range(at, len(requests)) if now_s + requests[i].estimate_s <= by_s)
    return next(ends, -1)
