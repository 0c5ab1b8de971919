"""EASY backfill on nodes: the head that does not fit has a reservation on nodes of its own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Ask:
    """What one job wants: `cpus` on each of `nodes` nodes. Times in seconds."""

    name: str
    order: tuple[float, int]  # queue order: submit time, then number
    nodes: int
    cpus: int
    estimate_s: float
    end_s: float = 0.0  # by estimate, once it runs
    placed: list[int] = field(default_factory=list)


# Starts the job on these nodes, given by their index.
Start = Callable[[Ask, list[int]], None]


class NodeEasy:
    """Who starts where. With nodes of one CPU it decides as EASY on a pool of processors does.

    A job takes the first nodes with room, as Slurm does with nodes of one weight; what must not
    last beyond the head's reservation is put onto the head's nodes first. A job that outlives its
    estimate is expected to end at any moment.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._free = list(cpus)
        self._open = [node for node, free in enumerate(cpus) if free]  # with a free CPU, sorted
        self._waiting: list[Ask] = []
        self._running: list[tuple[float, int, Ask]] = []  # by estimated end
        self._count = 0

    @property
    def waits(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting)

    def add(self, ask: Ask) -> None:
        """The job waits from now on."""
        insort(self._waiting, ask, key=_order)

    def withdraw(self, name: str) -> None:
        """A waiting job is no longer wanted; one that does not wait: nothing."""
        self._waiting = [ask for ask in self._waiting if ask.name != name]

    def ended(self, ask: Ask) -> None:
        """A running job has given its nodes back."""
        at = bisect_left(self._running, ask.end_s, key=lambda entry: entry[0])
        while self._running[at][2] is not ask:
            at += 1
        del self._running[at]
        free = self._free
        for node in ask.placed:
            if not free[node]:
                insort(self._open, node)
            free[node] += ask.cpus

    def schedule(self, now_s: float, start: Start) -> None:
        """One pass: heads while they fit, then whoever does not delay the head."""
        started = 0
        for ask in self._waiting:
            nodes = self._room(ask)
            if nodes is None:
                break
            self._start(ask, nodes, now_s, start)
            started += 1
        del self._waiting[:started]
        if len(self._waiting) > 1 and self._open:
            self._backfill(now_s, start)

    # --- inside --------------------------------------------------------------------------------

    def _room(self, ask: Ask) -> list[int] | None:
        found = self._open
        if ask.cpus > 1:
            free, cpus = self._free, ask.cpus
            found = [node for node in found if free[node] >= cpus]
        return found[: ask.nodes] if len(found) >= ask.nodes else None

    def _start(self, ask: Ask, nodes: list[int], now_s: float, start: Start) -> None:
        free = self._free
        for node in nodes:
            free[node] -= ask.cpus
        self._open = [node for node in self._open if free[node]]
        ask.placed, ask.end_s = nodes, now_s + ask.estimate_s
        self._count += 1
        insort(self._running, (ask.end_s, self._count, ask))
        start(ask, nodes)

    def _backfill(self, now_s: float, start: Start) -> None:
        head = self._waiting[0]
        shadow_s, left = self._reserve(head)
        kept = [head]
        hopeless: set[tuple[int, int, bool]] = set()
        for ask in self._waiting[1:]:
            ends = now_s + ask.estimate_s <= shadow_s
            shape = (ask.nodes, ask.cpus, ends)
            nodes = None
            if shape not in hopeless and ask.nodes <= len(self._open):
                nodes = self._beside(ask, left, ends=ends)
            if nodes is None:
                hopeless.add(shape)
                kept.append(ask)
                continue
            if not ends:
                for node in nodes:
                    if node in left:
                        left[node] -= ask.cpus
            self._start(ask, nodes, now_s, start)
        self._waiting = kept

    def _reserve(self, head: Ask) -> tuple[float, dict[int, int]]:
        """When by estimates the head fits, and what it then leaves over on the nodes it gets.

        All jobs that end by estimate at that very instant count.
        """
        need, cpus = head.nodes, head.cpus
        then = list(self._free)
        enough = sum(1 for free in then if free >= cpus)
        shadow_s = float("inf")
        for end_s, _, ask in self._running:
            if end_s > shadow_s:
                break
            for node in ask.placed:
                before = then[node]
                then[node] = before + ask.cpus
                enough += before < cpus <= before + ask.cpus
            if enough >= need:
                shadow_s = end_s
        fit = [node for node, free in enumerate(then) if free >= cpus]
        # Nodes that are busy now are kept for the head first: idle ones can do something else.
        fit.sort(key=lambda node: self._free[node])
        return shadow_s, {node: then[node] - cpus for node in fit[:need]}

    def _beside(self, ask: Ask, left: dict[int, int], *, ends: bool) -> list[int] | None:
        """Nodes on which the job may overtake the head."""
        free, cpus = self._free, ask.cpus
        fit = [node for node in self._open if free[node] >= cpus]
        if ends:
            fit.sort(key=lambda node: node not in left)
        else:
            fit = [node for node in fit if left.get(node, cpus) >= cpus]
        return fit[: ask.nodes] if len(fit) >= ask.nodes else None


def _order(ask: Ask) -> tuple[float, int]:
    return ask.order
