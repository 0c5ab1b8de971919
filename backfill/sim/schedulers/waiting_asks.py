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
    """Those that want `cpus` on each of `nodes` nodes, in queue order, and their estimates."""

    nodes: int
    cpus: int
    asks: list[Ask] = field(default_factory=list)
    estimates_s: list[float] = field(default_factory=list)  # sorted


class WaitingAsks:
    """A pass over a long queue asks of each kind only those that could start.

    On a cluster with room most jobs leave before anybody asks for kinds: they are sorted then.
    """

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self._kinds: dict[tuple[int, int], Alike] = {}
        self._fresh: dict[str, Ask] = {}  # by name, not yet among the kinds

    def add(self, ask: Ask) -> bool:
        """It waits from now on; tells whether it is the last of all."""
        last = not self.asks or self.asks[-1].order < ask.order
        if last:
            self.asks.append(ask)
        else:
            insort(self.asks, ask, key=_order)
        self._fresh[ask.name] = ask
        return last

    def remove(self, ask: Ask) -> None:
        """It waits no longer."""
        _take_out(self.asks, ask)
        if self._fresh.pop(ask.name, None) is None:
            shape = (ask.nodes, ask.cpus)
            alike = self._kinds[shape]
            _take_out(alike.asks, ask)
            del alike.estimates_s[bisect_left(alike.estimates_s, ask.estimate_s)]
            if not alike.asks:
                del self._kinds[shape]

    def withdraw(self, name: str) -> None:
        """The same by its name; one that does not wait: nothing."""
        for ask in [ask for ask in self.asks if ask.name == name]:
            self.remove(ask)

    def kinds(self, nodes: int) -> Iterator[Alike]:
        """All kinds of those that want no more nodes than so many."""
        for ask in self._fresh.values():
            self._sort_in(ask)
        self._fresh.clear()
        return (alike for alike in self._kinds.values() if alike.nodes <= nodes)

    def _sort_in(self, ask: Ask) -> None:
        shape = (ask.nodes, ask.cpus)
        alike = self._kinds.get(shape)
        if alike is None:
            alike = self._kinds[shape] = Alike(*shape)
        if alike.asks and alike.asks[-1].order > ask.order:
            insort(alike.asks, ask, key=_order)
        else:
            alike.asks.append(ask)
        insort(alike.estimates_s, ask.estimate_s)


def _take_out(asks: list[Ask], ask: Ask) -> None:
    at = 0 if asks[0] is ask else bisect_left(asks, ask.order, key=_order)
    del asks[at]


def _order(ask: Ask) -> tuple[float, int]:
    return ask.order
