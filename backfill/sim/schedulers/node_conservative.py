"""Conservative backfill on nodes: whoever waits has a promise, which is kept as estimates are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf, nextafter

from backfill.core.timeline import Timeline
from backfill.sim.schedulers.node_easy import NodeEasy, Start, first_of, give, having, take
from backfill.sim.schedulers.reservations import Kept
from backfill.sim.schedulers.waiting_asks import Ask


class NodeConservative(NodeEasy):
    """With nodes of one CPU it decides as conservative backfill on a pool of processors does.

    A promise may only gain, while jobs end by their estimates. One that is held up, as by an
    eviction, outlasts what was promised behind it: it is expected to end at any moment, and as soon
    as a promise cannot be kept all of them are made anew from the queue in order, as Slurm does.
    """

    def __init__(self, cpus: Sequence[int], kept: Sequence[Kept]) -> None:
        super().__init__(cpus)
        self._kept = tuple(kept)
        self._empty = tuple(self._room)
        # Of nodes of one CPU any will do: which ones is decided at the start.
        self._pooled = self._single and not kept
        self._promises: dict[str, tuple[float, int]] = {}  # name -> start, and nodes if not pooled
        self._ended_s = -inf  # latest estimate of those that have ended since the latest pass

    def withdraw(self, name: str) -> None:
        """A waiting job is no longer wanted; one that does not wait: nothing."""
        super().withdraw(name)
        if self._promises.pop(name, None) is not None:
            self._ended_s = inf

    def ended(self, ask: Ask) -> None:
        """A running job has given its nodes back."""
        super().ended(ask)
        self._ended_s = max(self._ended_s, ask.end_s)

    def wake_s(self, now_s: float) -> float:
        """When the next promise comes true; of what waits for one that is late nothing is known."""
        soon_s = nextafter(now_s, inf)
        return min((at_s for at_s, _ in self._promises.values() if at_s > soon_s), default=inf)

    def schedule(self, now_s: float, start: Start) -> None:
        """One pass: promises gain where somebody ended early, the new get theirs, the due start."""
        ahead = self._look(now_s)
        if not self._hold(ahead, now_s):
            self._promises.clear()
            ahead = self._look(now_s)
        if self._ended_s > now_s:
            self._gain(ahead, now_s)
        self._ended_s = -inf
        promises = self._promises
        for ask in self._waiting.asks:
            if ask.name not in promises:
                promises[ask.name] = ahead.earliest(ask, now_s)
                ahead.claim(ask, *promises[ask.name])
        for ask in [ask for ask in self._waiting.asks if promises[ask.name][0] <= now_s]:
            nodes = self._nodes_for(ask)
            if nodes:
                del promises[ask.name]
                self._waiting.remove(ask)
                self._start(ask, nodes, now_s, start)

    def _nodes_for(self, ask: Ask) -> int:
        """Where the job that is due starts; 0: somebody who should have ended is still there."""
        fit, nodes = having(self._room, ask.cpus), self._promises[ask.name][1]
        if self._pooled:
            return first_of(fit, ask.nodes) if fit.bit_count() >= ask.nodes else 0
        return nodes if nodes & fit == nodes else 0

    def _look(self, now_s: float) -> _Pool | _Nodes:
        """What the running jobs leave over by their estimates, without any promise."""
        late_s = nextafter(now_s, inf)
        ahead = _Pool(self._all.bit_count(), now_s) if self._pooled else _Nodes(self._empty, now_s)
        for end_s, _, ask in self._running:
            if end_s != now_s:
                ahead.claim(ask, now_s, ask.placed, max(end_s, late_s))
        for kept in self._kept:
            ahead.close(kept, now_s)
        return ahead

    def _hold(self, ahead: _Pool | _Nodes, now_s: float) -> bool:
        """Whether every promise still stands."""
        for ask in self._waiting.asks:
            if ask.name in self._promises:
                at_s, nodes = self._promises[ask.name]
                at_s = max(at_s, now_s)
                if not ahead.fits(ask, at_s, nodes):
                    return False
                ahead.claim(ask, at_s, nodes)
        return True

    def _gain(self, ahead: _Pool | _Nodes, now_s: float) -> None:
        """Each in queue order gives up its place and takes the earliest; that is never later."""
        for ask in self._waiting.asks:
            at_s, nodes = self._promises.get(ask.name, (-inf, 0))
            if at_s > now_s:
                ahead.release(ask, at_s, nodes)
                self._promises[ask.name] = ahead.earliest(ask, now_s)
                ahead.claim(ask, *self._promises[ask.name])


class _Pool:
    """Room over time on nodes of one CPU, any of which will do."""

    def __init__(self, nodes: int, now_s: float) -> None:
        self._free: Timeline[float] = Timeline(nodes, now_s)

    def earliest(self, ask: Ask, after_s: float) -> tuple[float, int]:
        """When the job fits until its end."""
        found = self._free.earliest(ask.nodes, ask.estimate_s, after_s)
        assert found is not None, "a job larger than the cluster is left out before the replay"
        return found, 0

    def fits(self, ask: Ask, start_s: float, nodes: int) -> bool:
        """Whether the job fits then."""
        return self._free.least_free(start_s, start_s + ask.estimate_s) >= ask.nodes

    def claim(self, ask: Ask, start_s: float, nodes: int, end_s: float | None = None) -> None:
        """The job has its room then, until its estimated end unless another is named."""
        self._free.claim(start_s, start_s + ask.estimate_s if end_s is None else end_s, ask.nodes)

    def release(self, ask: Ask, start_s: float, nodes: int) -> None:
        """It gives up what it has then."""
        self._free.release(start_s, start_s + ask.estimate_s, ask.nodes)

    def close(self, kept: Kept, now_s: float) -> None:
        """Nothing is kept of a pool."""
        raise AssertionError("where nodes are kept they are told apart")


class _Nodes:
    """Room over time on each node: a job has the same nodes from its start to its end."""

    def __init__(self, room: Iterable[int], now_s: float) -> None:
        self._times_s = [now_s]
        self._rooms = [list(room)]

    def earliest(self, ask: Ask, after_s: float) -> tuple[float, int]:
        """When the job fits until its end, and on which nodes: the first of those that do."""
        for at_s in [at_s for at_s in self._times_s if at_s >= after_s]:
            fit = self._open(ask, at_s)
            if fit.bit_count() >= ask.nodes:
                return at_s, first_of(fit, ask.nodes)
        raise AssertionError("a job that fits the cluster fits when all others have ended")

    def fits(self, ask: Ask, start_s: float, nodes: int) -> bool:
        """Whether the job fits then on these nodes."""
        return nodes & self._open(ask, start_s) == nodes

    def claim(self, ask: Ask, start_s: float, nodes: int, end_s: float | None = None) -> None:
        """The job has these nodes then, until its estimated end unless another is named."""
        for room in self._span(start_s, start_s + ask.estimate_s if end_s is None else end_s):
            take(room, nodes, ask.cpus)

    def release(self, ask: Ask, start_s: float, nodes: int) -> None:
        """It gives up what it has then."""
        for room in self._span(start_s, start_s + ask.estimate_s):
            give(room, nodes, ask.cpus)

    def close(self, kept: Kept, now_s: float) -> None:
        """Nobody may come to these nodes then."""
        if kept.end_s > now_s:
            for room in self._span(max(kept.start_s, now_s), kept.end_s):
                room[1:] = [nodes & ~kept.nodes for nodes in room[1:]]

    def _open(self, ask: Ask, start_s: float) -> int:
        """Nodes with room for the job from then to its end."""
        first = bisect_right(self._times_s, start_s) - 1
        last = bisect_left(self._times_s, start_s + ask.estimate_s, first + 1)
        fit = self._rooms[first][0]
        for room in self._rooms[first:last]:
            fit &= having(room, ask.cpus)
        return fit

    def _span(self, start_s: float, end_s: float) -> Iterator[list[int]]:
        """The rooms between these times."""
        return iter(self._rooms[self._cut(start_s) : self._cut(end_s)])

    def _cut(self, at_s: float) -> int:
        """The number of the step that begins then."""
        step = bisect_right(self._times_s, at_s) - 1
        if self._times_s[step] != at_s:
            step += 1
            self._times_s.insert(step, at_s)
            self._rooms.insert(step, list(self._rooms[step - 1]))
        return step
