"""How eagerly Slurm is asked about nodes whose next change is awaited."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.world import World

_SLOWEST_S = 0.5
_GROWTH = 1.5


class Watch:
    """Asks often at first and ever more seldom, until something stirs. Times in seconds."""

    def __init__(self, fastest_s: float) -> None:
        self._fastest_s = fastest_s
        self._interval_s = fastest_s
        self._names: frozenset[str] = frozenset()
        self._next_s = 0.0
        self.leaving: set[str] = set()  # hosts' nodes whose job is known to have ended

    def want(self, names: frozenset[str], now_s: float) -> None:
        """Watch these nodes from now on; a new one among them is asked about at once."""
        if names - self._names:
            self.stir(now_s)
        self._names = names
        self.leaving &= names

    def stir(self, now_s: float) -> None:
        """Something happened: be eager again."""
        self._interval_s = self._fastest_s
        self._next_s = min(self._next_s, now_s)

    def asked(self, now_s: float) -> None:
        """A question is on its way; the next one waits for its answer."""
        self._next_s = now_s + 60.0

    def answered(self, now_s: float) -> None:
        """The answer came."""
        self._next_s = now_s + self._interval_s
        self._interval_s = min(_SLOWEST_S, self._interval_s * _GROWTH)

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next question is due."""
        return max(0.001, self._next_s - now_s) if self._names else 60.0

    def due(self, now_s: float) -> tuple[str, ...]:
        """The nodes to ask about now."""
        return tuple(sorted(self._names)) if self._names and now_s >= self._next_s else ()


def still_taken(world: World, nodes: Iterable[str]) -> frozenset[str]:
    """Of these hosts' nodes, those whose job, known to have ended, still has them in Slurm."""
    return frozenset(
        node for node in nodes if (host := world.host_of_node(node)) and world.taken(host)
    )
