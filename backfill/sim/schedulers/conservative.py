"""Conservative backfill: whoever waits has a promise, which is kept as estimates are.

Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf, nextafter

from backfill.sim.schedulers.fcfs import Fcfs, Start
from backfill.sim.schedulers.forecasts import Forecast
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.rooms import Room


class Conservative(Fcfs):
    """A promise may only gain, while jobs end by their estimates.

    One that is held up, as by an eviction, outlasts what was promised behind it: it is expected to
    end at any moment, and as soon as a promise cannot be kept all of them are made anew from the
    queue in order, as Slurm does.
    """

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self._promises: dict[str, tuple[float, int]] = {}  # by name: start and place
        self._starts: list[tuple[float, str]] = []  # a heap; an entry may be outdated
        self._new: list[Request] = []  # without a promise
        self._gone: list[Request] = []  # since the latest pass
        self._gains = False  # whether somebody may get an earlier start
        self._forecast: Forecast | None = None  # as the latest pass left it, with all promises

    def add(self, request: Request) -> None:
        """Let the job wait from now on."""
        self._waiting.add(request)
        self._new.append(request)

    def withdraw(self, name: str) -> None:
        """Let a job wait no longer; one that does not wait: nothing."""
        super().withdraw(name)
        self._new = [request for request in self._new if request.name != name]
        if self._promises.pop(name, None) is not None:
            self._gains, self._forecast = True, None

    def ended(self, request: Request) -> None:
        """Take back the place of a running job."""
        super().ended(request)
        self._gone.append(request)

    def wake_s(self, now_s: float) -> float:
        """Return when the next promise comes true; of what waits for one that is late nothing is known."""
        soon_s, next_s = nextafter(now_s, inf), self._next_start_s()
        if next_s > soon_s:
            return next_s
        return min((at_s for at_s, _ in self._promises.values() if at_s > soon_s), default=inf)

    def schedule(self, now_s: float, start: Start) -> None:
        """Make one pass: promises gain where somebody ended early, the new get theirs, the due start."""
        if not self._gains:
            self._gains = any(request.end_s > now_s for request in self._gone)
        ahead = self._look(now_s)
        if self._gains:
            self._gain(ahead, now_s)
        self._gains = False
        for request in sorted(self._new, key=lambda request: request.order):
            found = ahead.earliest(request, now_s)
            ahead.claim(request, *found)
            self._note(request, found)
        self._new.clear()
        self._start_due(now_s, start)

    def _start_due(self, now_s: float, start: Start) -> None:
        if self._next_start_s() > now_s:
            return
        promises = self._promises
        for request in [r for r in self._waiting.requests if promises[r.name][0] <= now_s]:
            place = self._room.place_promised(request, promises[request.name][1])
            if place:
                del promises[request.name]
                self._begin(request, place, now_s, start)

    def _look(self, now_s: float) -> Forecast:
        """Return what the running jobs leave over by their estimates, with all promises that stand."""
        ahead = self._forecast
        late = bool(self._running) and self._running[0][0] < now_s
        if ahead is not None and not late and self._next_start_s() >= now_s:
            ahead.forget_before(now_s)
            for request in self._gone:
                if request.end_s > now_s:
                    ahead.release(request, now_s, request.end_s)
        else:
            ahead = self._room.forecast(self._running, now_s)
            if not self._stand(ahead, now_s):
                self._promises.clear()
                self._new = list(self._waiting.requests)
                ahead = self._room.forecast(self._running, now_s)
        self._forecast = ahead if ahead.lasting and not late else None
        self._gone.clear()
        return ahead

    def _stand(self, ahead: Forecast, now_s: float) -> bool:
        """Return True if every promise still stands."""
        for request in self._waiting.requests:
            if request.name in self._promises:
                at_s, place = self._promises[request.name]
                at_s = max(at_s, now_s)
                if not ahead.fits(request, at_s, place):
                    return False
                ahead.claim(request, at_s, place)
        return True

    def _gain(self, ahead: Forecast, now_s: float) -> None:
        """Let each in queue order give up its place and take the earliest; that is never later."""
        promises = self._promises
        for request in self._waiting.requests:
            promised = promises.get(request.name)
            if promised is not None and promised[0] > now_s:
                found = ahead.improve(request, *promised, now_s)
                if found != promised:
                    self._note(request, found)

    def _note(self, request: Request, promise: tuple[float, int]) -> None:
        self._promises[request.name] = promise
        heappush(self._starts, (promise[0], request.name))

    def _next_start_s(self) -> float:
        starts, promises = self._starts, self._promises
        while starts and promises.get(starts[0][1], (inf, 0))[0] != starts[0][0]:
            heappop(starts)
        return starts[0][0] if starts else inf
