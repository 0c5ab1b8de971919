"""Forecasts of free room, by the estimates of running jobs and with what is kept."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import Protocol

from backfill.sim.schedulers.node_sets import first_of, give, having, take
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import Kept
from backfill.sim.schedulers.timeline import Timeline

# Running jobs by estimated end; the number keeps those of one end in the order of their starts.
Running = Sequence[tuple[float, int, Request]]


class Forecast(Protocol):
    """Room over time, in which conservative backfill promises places. See `rooms` for places.

    `lasting`: the next pass may go on with it; another one is made anew for each pass.
    """

    lasting: bool

    def forget_before(self, now_s: float) -> None:
        """Drop what lies in the past."""

    def earliest(self, request: Request, after_s: float) -> tuple[float, int]:
        """Return when and where the job fits until its end: the first time, the first place."""

    def fits(self, request: Request, start_s: float, place: int) -> bool:
        """Return True if the job fits then and there until its end."""

    def claim(self, request: Request, start_s: float, place: int, end_s: float | None = None) -> None:
        """Give the job this place then, until its estimated end unless another is named."""

    def release(self, request: Request, start_s: float, end_s: float) -> None:
        """Take back what a job has that ends early."""

    def improve(self, request: Request, start_s: float, place: int, after_s: float) -> tuple[float, int]:
        """Claim the earliest time and place for a job that gives up this one, and return them."""


def claim_running(forecast: Forecast, running: Running, now_s: float) -> None:
    """Claim the places of those who run: a job that outlives its estimate ends at any moment."""
    late_s = nextafter(now_s, inf)
    for end_s, _, request in running:
        if end_s != now_s:
            forecast.claim(request, now_s, request.placed, max(end_s, late_s))


def claim_kept(timeline: Timeline[float], kept: Iterable[Kept], now_s: float) -> None:
    """Claim the processors that are kept from now on."""
    for span in kept:
        if span.end > now_s:
            timeline.claim(max(span.start, now_s), span.end, span.place)


class PoolForecast:
    """Of processors, or of nodes of one CPU: any will do, so that a place is promised to nobody."""

    lasting = True

    def __init__(self, processors: int, kept: Sequence[Kept], running: Running, now_s: float) -> None:
        self._free: Timeline[float] = Timeline(processors, now_s)
        claim_running(self, running, now_s)
        claim_kept(self._free, kept, now_s)

    def forget_before(self, now_s: float) -> None:
        """Drop what lies in the past."""
        self._free.forget_before(now_s)

    def earliest(self, request: Request, after_s: float) -> tuple[float, int]:
        """Return when the job fits until its end."""
        found = self._free.earliest(request.nodes, request.estimate_s, after_s)
        assert found is not None, "a job larger than the cluster is left out before the replay"
        return found, 0

    def fits(self, request: Request, start_s: float, place: int) -> bool:
        """Return True if the job fits then until its end."""
        return self._free.least_free(start_s, start_s + request.estimate_s) >= request.nodes

    def claim(self, request: Request, start_s: float, place: int, end_s: float | None = None) -> None:
        """Give the job its room then, until its estimated end unless another is named."""
        self._free.claim(start_s, start_s + request.estimate_s if end_s is None else end_s, request.nodes)

    def release(self, request: Request, start_s: float, end_s: float) -> None:
        """Take back what a job has that ends early."""
        self._free.release(start_s, end_s, request.nodes)

    def improve(self, request: Request, start_s: float, place: int, after_s: float) -> tuple[float, int]:
        """Claim the earliest time for a job that gives up this one, and return it."""
        free, nodes, length_s = self._free, request.nodes, request.estimate_s
        free.release(start_s, start_s + length_s, nodes)
        found = free.earliest(nodes, length_s, after_s)
        assert found is not None, "what it gave up is there"
        free.claim(found, found + length_s, nodes)
        return found, 0


class NodeForecast:
    """Of nodes that are told apart: a job has the same nodes from its start to its end."""

    lasting = False

    def __init__(self, free: Iterable[int], kept: Sequence[Kept], running: Running, now_s: float) -> None:
        self._times_s = [now_s]
        self._free = [list(free)]
        claim_running(self, running, now_s)
        for span in kept:
            if span.end > now_s:
                for step in self._span(max(span.start, now_s), span.end):
                    step[1:] = [nodes & ~span.place for nodes in step[1:]]

    def forget_before(self, now_s: float) -> None:
        """Drop nothing: it is not used a second time."""

    def earliest(self, request: Request, after_s: float) -> tuple[float, int]:
        """Return when and on which nodes the job fits until its end: the first of those that do."""
        for at_s in [at_s for at_s in self._times_s if at_s >= after_s]:
            fit = self._open(request, at_s)
            if fit.bit_count() >= request.nodes:
                return at_s, first_of(fit, request.nodes)
        raise AssertionError("a job that fits the cluster fits when all others have ended")

    def fits(self, request: Request, start_s: float, place: int) -> bool:
        """Return True if the job fits then on these nodes until its end."""
        return place & self._open(request, start_s) == place

    def claim(self, request: Request, start_s: float, place: int, end_s: float | None = None) -> None:
        """Give the job these nodes then, until its estimated end unless another is named."""
        for step in self._span(start_s, start_s + request.estimate_s if end_s is None else end_s):
            take(step, place, request.cpus)

    def release(self, request: Request, start_s: float, end_s: float) -> None:
        """Take back what a job has that ends early."""
        for step in self._span(start_s, end_s):
            give(step, request.placed, request.cpus)

    def improve(self, request: Request, start_s: float, place: int, after_s: float) -> tuple[float, int]:
        """Claim the earliest time and nodes for a job that gives up these, and return them."""
        for step in self._span(start_s, start_s + request.estimate_s):
            give(step, place, request.cpus)
        found = self.earliest(request, after_s)
        self.claim(request, *found)
        return found

    def _open(self, request: Request, start_s: float) -> int:
        """Return the nodes with room for the job from then to its end."""
        first = bisect_right(self._times_s, start_s) - 1
        last = bisect_left(self._times_s, start_s + request.estimate_s, first + 1)
        fit = self._free[first][0]
        for step in self._free[first:last]:
            fit &= having(step, request.cpus)
        return fit

    def _span(self, start_s: float, end_s: float) -> Iterator[list[int]]:
        """Yield the steps between these times."""
        return iter(self._free[self._cut(start_s) : self._cut(end_s)])

    def _cut(self, at_s: float) -> int:
        """Return the number of the step that begins then."""
        step = bisect_right(self._times_s, at_s) - 1
        if self._times_s[step] != at_s:
            step += 1
            self._times_s.insert(step, at_s)
            self._free.insert(step, list(self._free[step - 1]))
        return step
