"""First come, first served: jobs start strictly in queue order; and what all schedulers have in common."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from backfill.sim.schedulers.requests import Request, WaitingRequests
from backfill.sim.schedulers.rooms import Room

# Starts the job at this place.
Start = Callable[[Request, int], None]


class Fcfs:
    """Nobody overtakes: behind a job that does not fit, all wait.

    A scheduler makes passes: one after all that happens at an instant, or one after each event. A
    job that outlives its estimate is expected to end at any moment.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._waiting = WaitingRequests()
        self._running: list[tuple[float, int, Request]] = []  # by estimated end
        self._count = 0

    @property
    def waits(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting.requests)

    def room_on(self, place: int) -> bool:
        """Return True if any of these nodes has a free CPU."""
        return bool(self._room.free & place)

    def wake_s(self, now_s: float) -> float:
        """Return when a pass is due next though no job comes or ends; infinite: never."""
        return self._room.opens_s(now_s)

    def add(self, request: Request) -> None:
        """Let the job wait from now on."""
        self._waiting.add(request)

    def withdraw(self, name: str) -> None:
        """Let a job wait no longer; one that does not wait: nothing."""
        self._waiting.withdraw(name)

    def ended(self, request: Request) -> None:
        """Take back the place of a running job."""
        at = bisect_left(self._running, (request.end_s,))
        while self._running[at][2] is not request:
            at += 1
        del self._running[at]
        self._room.give(request)

    def schedule(self, now_s: float, start: Start) -> None:
        """Make one pass."""
        self._start_heads(now_s, start)

    def _start_heads(self, now_s: float, start: Start) -> bool:
        """Start jobs in queue order as long as they fit; return True if any did."""
        waiting, begun = self._waiting.requests, False
        while waiting:
            head = waiting[0]
            place = self._room.place(head, now_s)
            if not place:
                break
            self._begin(head, place, now_s, start)
            begun = True
        return begun

    def _begin(self, request: Request, place: int, now_s: float, start: Start) -> None:
        self._waiting.remove(request)
        request.placed, request.end_s = place, now_s + request.estimate_s
        self._room.take(request)
        self._count += 1
        insort(self._running, (request.end_s, self._count, request))
        start(request, place)
