"""The queues for nodes of which some may be kept for others at certain times."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from backfill.sim.schedulers.machine import SchedulerName
from backfill.sim.schedulers.node_conservative import NodeConservative
from backfill.sim.schedulers.node_easy import NodeEasy, Start, first_of, give, having, take
from backfill.sim.schedulers.reservations import Kept
from backfill.sim.schedulers.waiting_asks import Ask


def queue_on(scheduler: SchedulerName, nodes: int, cpus: int, kept: Sequence[Kept] = ()) -> NodeEasy:
    """Return the queue for so many nodes of `cpus` each, of which some are kept at certain times."""
    if not kept and scheduler == "easy":
        return NodeEasy([cpus] * nodes)
    return _QUEUES[scheduler]([cpus] * nodes, kept)


class ReservedEasy(NodeEasy):
    """Nothing starts on a node that by its estimate would not be over when the node is kept.

    The head's own reservation looks ahead over what is kept. A pass asks everybody, as it also
    comes when what was kept is free again: for a few reservations, not for speed.
    """

    def __init__(self, cpus: Sequence[int], kept: Sequence[Kept]) -> None:
        super().__init__(cpus)
        self._kept = tuple(kept)

    def wake_s(self, now_s: float) -> float:
        """When nodes that were kept are free again."""
        return min((kept.end_s for kept in self._kept if kept.end_s > now_s), default=inf)

    def schedule(self, now_s: float, start: Start) -> None:
        """One pass: heads while they fit, then whoever does not delay the head."""
        waiting = self._waiting
        while waiting.asks:
            head = waiting.asks[0]
            fit = having(self._room, head.cpus) & ~self._closed(now_s, head)
            if fit.bit_count() < head.nodes:
                break
            waiting.remove(head)
            self._start(head, first_of(fit, head.nodes), now_s, start)
        if len(waiting.asks) > 1:
            self._overtake(now_s, start)

    def _closed(self, at_s: float, ask: Ask) -> int:
        """The nodes that are kept at some time while the job would run if it began at `at_s`."""
        until_s, found = at_s + ask.estimate_s, 0
        for kept in self._kept:
            if kept.start_s < until_s and kept.end_s > at_s:
                found |= kept.nodes
        return found

    def _overtake(self, now_s: float, start: Start) -> None:
        head = self._waiting.asks[0]
        shadow_s, left = self._promise(head, now_s)
        for ask in self._waiting.asks[1:]:
            ends = now_s + ask.estimate_s <= shadow_s
            fit = having(self._room, ask.cpus) & ~self._closed(now_s, ask)
            nodes = self._among(fit, ask, left, ends=ends)
            if not nodes:
                continue
            if not ends:
                take(left, nodes & left[0], ask.cpus)
            self._waiting.remove(ask)
            self._start(ask, nodes, now_s, start)

    def _promise(self, head: Ask, now_s: float) -> tuple[float, list[int]]:
        """When by estimates the head fits, and the room that it then leaves over on its nodes."""
        then, given = list(self._room), 0
        ends = {end_s for end_s, _, _ in self._running}
        ends |= {kept.end_s for kept in self._kept if kept.end_s > now_s}
        fit, shadow_s = having(then, head.cpus), inf
        for at_s in sorted(ends):
            while given < len(self._running) and self._running[given][0] <= at_s:
                ask = self._running[given][2]
                give(then, ask.placed, ask.cpus)
                given += 1
            fit = having(then, head.cpus) & ~self._closed(at_s, head)
            if fit.bit_count() >= head.nodes:
                shadow_s = at_s
                break
        nodes = self._busiest(fit, head.nodes)
        return shadow_s, [nodes, *(room & nodes for room in then[head.cpus + 1 :])]


class NodeFcfs(ReservedEasy):
    """Nobody overtakes: behind a job that does not fit, all wait."""

    def _overtake(self, now_s: float, start: Start) -> None:
        """Never."""


_QUEUES: dict[SchedulerName, type[ReservedEasy | NodeConservative]] = {
    "easy": ReservedEasy,
    "fcfs": NodeFcfs,
    "conservative": NodeConservative,
}
