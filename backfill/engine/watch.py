"""How eagerly Slurm is asked about nodes whose next change is awaited."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.world import World

_SLOWEST_S = 0.5
_GROWTH = 1.5
# Asking costs two programs: where that takes long, guests and jobs wait for the same CPUs.
_REST = 2.0  # times as long as the last answer took


class Watch:
    """Asks often at first and ever more seldom, until something stirs. Times in seconds."""

    def __init__(self, fastest_s: float) -> None:
        self._fastest_s = fastest_s
        self._interval_s = fastest_s
        self._names: frozenset[str] = frozenset()
        self._next_s = 0.0
        self._asked_s: float | None = None  # while an answer is on its way
        self._stirred = False  # since then
        self._rested_s = 0.0
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
        self._stirred = self._asked_s is not None
        if not self._stirred:
            self._next_s = min(self._next_s, max(now_s, self._rested_s))

    def asked(self, now_s: float) -> None:
        """A question is on its way; the next one waits for its answer."""
        self._asked_s = now_s
        self._stirred = False

    def answered(self, now_s: float) -> None:
        """The answer came. What stirred meanwhile may not be in it: then it is asked once more."""
        took_s = 0.0 if self._asked_s is None else now_s - self._asked_s
        self._asked_s = None
        self._rested_s = now_s + min(_SLOWEST_S, _REST * took_s)
        self._next_s = max(now_s if self._stirred else now_s + self._interval_s, self._rested_s)
        if not self._stirred:
            self._interval_s = min(_SLOWEST_S, self._interval_s * _GROWTH)

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next question is due."""
        waiting = not self._names or self._asked_s is not None
        return 60.0 if waiting else max(0.001, self._next_s - now_s)

    def due(self, now_s: float) -> tuple[str, ...]:
        """The nodes to ask about now."""
        rests = self._asked_s is not None or now_s < self._next_s
        return () if rests else tuple(sorted(self._names))


def still_taken(world: World, nodes: Iterable[str]) -> frozenset[str]:
    """Of these hosts' nodes, those whose job, known to have ended, still has them in Slurm."""
    return frozenset(
        node for node in nodes if (host := world.host_of_node(node)) and world.taken(host)
    )
