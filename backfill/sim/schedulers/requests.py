"""Requests for room, and the queue of those that wait, in order and by kind."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One job's wish: `cpus` on each of `nodes` nodes, or so many processors of a pool, one `cpu` each.

    Times are in seconds, or in ticks where the replay counts them.
    """

    name: str
    order: tuple[float, int]  # queue order: submit time, then number
    nodes: int
    cpus: int
    estimate_s: float
    end_s: float = 0.0  # by estimate, once it runs
    placed: int = 0  # the place that it has: see `rooms`


@dataclass(slots=True, eq=False)
class RequestKind:
    """Requests for `cpus` on each of `nodes` nodes, in queue order, and their estimates."""

    nodes: int
    cpus: int
    requests: list[Request] = field(default_factory=list)
    estimates_s: list[float] = field(default_factory=list)  # sorted


class WaitingRequests:
    """A pass over a long queue asks of each kind only those that could start.

    On a cluster with room most jobs leave before anybody asks for kinds: they are sorted then.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._kinds: dict[tuple[int, int], RequestKind] = {}
        self._fresh: dict[str, Request] = {}  # by name, not yet among the kinds

    def add(self, request: Request) -> bool:
        """Let it wait from now on; return True if it is the last of all."""
        last = not self.requests or self.requests[-1].order < request.order
        if last:
            self.requests.append(request)
        else:
            insort(self.requests, request, key=_order)
        self._fresh[request.name] = request
        return last

    def remove(self, request: Request) -> None:
        """Let it wait no longer."""
        _take_out(self.requests, request)
        if self._fresh.pop(request.name, None) is None:
            shape = (request.nodes, request.cpus)
            kind = self._kinds[shape]
            _take_out(kind.requests, request)
            del kind.estimates_s[bisect_left(kind.estimates_s, request.estimate_s)]
            if not kind.requests:
                del self._kinds[shape]

    def withdraw(self, name: str) -> None:
        """Do the same by its name; one that does not wait: nothing."""
        for request in [request for request in self.requests if request.name == name]:
            self.remove(request)

    def kinds(self, nodes: int) -> list[RequestKind]:
        """Return all kinds of those that want no more nodes than so many."""
        for request in self._fresh.values():
            self._sort_in(request)
        self._fresh.clear()
        return [kind for kind in self._kinds.values() if kind.nodes <= nodes]

    def _sort_in(self, request: Request) -> None:
        shape = (request.nodes, request.cpus)
        kind = self._kinds.get(shape)
        if kind is None:
            kind = self._kinds[shape] = RequestKind(*shape)
        if kind.requests and kind.requests[-1].order > request.order:
            insort(kind.requests, request, key=_order)
        else:
            kind.requests.append(request)
        insort(kind.estimates_s, request.estimate_s)


def _take_out(requests: list[Request], request: Request) -> None:
    at = 0 if requests[0] is request else bisect_left(requests, request.order, key=_order)
    del requests[at]


def _order(request: Request) -> tuple[float, int]:
    return request.order
