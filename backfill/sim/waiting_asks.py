"""Jobs that wait for nodes, in queue order, and those among them that want alike."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
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
    placed: int = 0  # the nodes that it has: a set of bits


@dataclass(slots=True, eq=False)
class Alike:
    """Those that want `cpus` on each of `nodes` nodes, in queue order; `shortest_s` or longer."""

    nodes: int
    cpus: int
    asks: list[Ask] = field(default_factory=list)
    shortest_s: float = float("inf")


class WaitingAsks:
    """A pass over a long queue asks of each kind only those that could start."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self._kinds: dict[tuple[int, int], Alike] = {}

    def __len__(self) -> int:
        return len(self.asks)

    def add(self, ask: Ask) -> bool:
        """It waits from now on; tells whether it is the last of all."""
        last = not self.asks or self.asks[-1].order < ask.order
        shape = (ask.nodes, ask.cpus)
        alike = self._kinds.get(shape)
        if alike is None:
            alike = self._kinds[shape] = Alike(*shape)
        alike.shortest_s = min(alike.shortest_s, ask.estimate_s)
        for asks in (self.asks, alike.asks):
            if last:
                asks.append(ask)
            else:
                insort(asks, ask, key=_order)
        return last

    def remove(self, ask: Ask) -> None:
        """It waits no longer."""
        shape = (ask.nodes, ask.cpus)
        alike = self._kinds[shape]
        for asks in (self.asks, alike.asks):
            del asks[bisect_left(asks, ask.order, key=_order)]
        if not alike.asks:
            del self._kinds[shape]

    def withdraw(self, name: str) -> None:
        """The same by its name; one that does not wait: nothing."""
        for ask in [ask for ask in self.asks if ask.name == name]:
            self.remove(ask)

    def kinds(self, nodes: int) -> Iterator[Alike]:
        """All kinds of those that want no more nodes than so many."""
        return (alike for alike in self._kinds.values() if alike.nodes <= nodes)


def _order(ask: Ask) -> tuple[float, int]:
    return ask.order
