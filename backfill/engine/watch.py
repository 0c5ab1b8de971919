"""Decides how often Slurm is asked about nodes whose next change is awaited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from backfill.core.model import actions as act
from backfill.core.model.lifecycle import Phase
from backfill.core.world import World

_SLOWEST_S = 0.5
# For each of them, where nothing but slurmds that start are awaited: that takes seconds, and those who
# start need the CPUs. Evictions and returns are a matter of milliseconds.
_BOOTS_S = 0.1
# What these led to is in their results; what comes of it takes as long as a boot.
_MAKING = (act.CreateNode, act.CreateInstance, act.MakeParent)
_GROWTH = 1.5
# Asking costs two programs: where that takes long, guests and jobs wait for the same CPUs.
_REST = 2.0  # times as long as the last answer took


class Watch:
    """Asks often at first and ever more seldom, until something stirs. Times in seconds."""

    def __init__(self, fastest_s: float) -> None:
        self._fastest_s = fastest_s
        self._interval_s = fastest_s
        self._crowd = 0
        self._names: frozenset[str] = frozenset()
        self._next_s = 0.0
        self._asked_s: float | None = None  # while an answer is on its way
        self._stirred = False  # since then
        self._rested_s = 0.0
        self._leaving: set[tuple[str, str]] = set()  # jobs known to have ended, and hosts' nodes

    def want(self, names: frozenset[str], now_s: float, *, crowd: int = 0) -> None:
        """Watch these nodes from now on; a new one among them is asked about at once.

        `crowd`: all of them are only starting, so many beside each other: they are asked about in an even
        pace. 0: something else is awaited.
        """
        self._crowd = crowd
        if crowd:
            self._next_s = min(self._next_s, max(now_s + self._pace_s(), self._rested_s))
        elif names - self._names:
            self.stir(now_s)
        self._names = names
        self._leaving = {(job_id, node) for job_id, node in self._leaving if node in names}

    def leaves(self, job_id: str, nodes: Iterable[str], now_s: float) -> None:
        """Note that the job, by its raw number, has ended; Slurm does not show that yet."""
        self._leaving.update((job_id, node) for node in nodes)
        self.stir(now_s)

    def comes(self, nodes: Iterable[str]) -> None:
        """Note that these nodes were just given to a job: it is what their hosts wait for now."""
        taken = set(nodes)
        self._leaving = {(job_id, node) for job_id, node in self._leaving if node not in taken}

    def leaving(self, world: World) -> frozenset[str]:
        """Hosts' nodes which Slurm still shows with a job that is known to have ended."""
        return frozenset(node for job_id, node in self._leaving if _has(world, node, job_id))

    def stir(self, now_s: float) -> None:
        """Something happened: be eager again."""
        self._interval_s = self._fastest_s
        self._stirred = self._asked_s is not None
        if not self._stirred:
            self._next_s = min(self._next_s, max(now_s, self._rested_s))

    def asked(self, now_s: float) -> None:
        """Note that a question is on its way; the next one waits for its answer."""
        self._asked_s = now_s
        self._stirred = False

    def answered(self, now_s: float) -> None:
        """Note that the answer came. What stirred meanwhile may not be in it: then it is asked once more."""
        took_s = 0.0 if self._asked_s is None else now_s - self._asked_s
        self._asked_s = None
        self._rested_s = now_s + min(_SLOWEST_S, _REST * took_s)
        pause_s = self._pace_s() if self._crowd else self._interval_s
        self._next_s = max(now_s if self._stirred else now_s + pause_s, self._rested_s)
        if not self._stirred:
            self._interval_s = min(_SLOWEST_S, self._interval_s * _GROWTH)

    def _pace_s(self) -> float:
        """Return how long to wait where all only start: in a crowd, each waits for the others anyway."""
        return max(self._fastest_s, min(_SLOWEST_S, _BOOTS_S * self._crowd))

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next question is due; inf: none is."""
        waiting = not self._names or self._asked_s is not None
        return inf if waiting else max(0.001, self._next_s - now_s)

    def due(self, now_s: float) -> tuple[str, ...]:
        """Return the nodes to ask about now."""
        rests = self._asked_s is not None or now_s < self._next_s
        return () if rests else tuple(sorted(self._names))


def crowd_of(world: World, nodes: Iterable[str]) -> int:
    """Return how many slurmds at most start beside each other on a host; 0: something else is awaited.

    One for which a job waits is as if it were alone.
    """
    found = [world.managed.get(node) for node in nodes]
    starting = [node for node in found if node is not None and node.phase is Phase.BOOTING]
    if len(starting) < len(found):
        return 0
    if any(node.job for node in starting):
        return 1
    return max(Counter(node.host for node in starting).values(), default=1)


def stirs(action: act.DriverAction) -> bool:
    """Return True if Slurm may show something else at once when this is done."""
    return not isinstance(action, _MAKING)


def _has(world: World, node: str, job_id: str) -> bool:
    """Return True if the job, by its raw number, has the host's node, or was just given it."""
    host = world.host_of_node(node)
    if host is None:
        return False
    shown = any(job_id == str(job.raw_id) for job in world.jobs_on(node) if job.holds_nodes)
    return shown or any(claim.job_id == job_id for claim in world.claims_on(host))
