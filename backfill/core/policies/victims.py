"""Victims: which instances leave when not all of them have to, and whose work is protected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backfill.core.model.keys import Option, key
from backfill.core.model.quantities import NOTHING, Resources


class Extent(Option):
    """How far a host is cleared for a job that got it."""

    HOST = "host", "every instance leaves"
    NEEDED = (
        "needed",
        "only as many as the job's CPUs and memory need, and whoever has room beside it returns; "
        "costs one query to Slurm",
    )


class Prefer(Option):
    """What makes a better victim; a later one decides where the earlier ones are equal."""

    PRIORITY = "priority", "the lowest priority in Slurm"
    COST = "cost", "the least work at stake, with memory_weight for what has to be kept"
    YOUNGEST = "youngest", "what started last"
    PROGRESS = "progress", "what is farthest from its end by its time limit"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that could leave, with its jobs. Times in epoch seconds; `end_s` by the limit."""

    name: str
    resources: Resources
    idle: bool = False
    priority: int = 0
    started_s: float = 0.0
    end_s: float | None = None
    stake_core_s: float = 0.0  # computed since the start, or since what was saved
    memory_mb: int = 0  # in use now
    repeats: int = 0  # how often it, or a job of it, was pushed aside before


@dataclass(frozen=True, slots=True)
class Victims:
    """Choice of victims, and protection of earlier victims. Times in seconds."""

    extent: Extent = key(Extent.HOST, "How far a host is cleared.")
    order: tuple[Prefer, ...] = key(
        (Prefer.PRIORITY, Prefer.COST, Prefer.YOUNGEST),
        "What makes a better victim, the most important first.",
    )
    memory_weight: float = key(0.0, "Core seconds that count as much as keeping one MB.")
    min_run_s: float = key(0.0, "A job that has run for less than this is spared as long as others suffice.")
    nearly_done_s: float = key(
        0.0, "A job that would end within this time is spared as long as others suffice."
    )
    protect_after: int = key(
        3,
        "A job pushed aside this often is spared as long as others suffice. A job requeued "
        "this often is never requeued again, but waits as long as it takes. 0: never.",
        least=0,
    )

    def choose(self, candidates: Iterable[Candidate], need: Resources, now_s: float) -> tuple[str, ...]:
        """Choose a smallest sufficient set, best victims first; all where even that is too little.

        Take them in order until they free `need`, then give back in reverse order whoever is not
        needed after all.
        """
        ordered = sorted(candidates, key=lambda c: self._reluctance(c, now_s))
        taken: list[Candidate] = []
        freed = NOTHING
        for candidate in ordered:
            if need.fits(freed):
                break
            taken.append(candidate)
            freed = freed + candidate.resources
        for candidate in list(reversed(taken)):
            if need.fits(freed - candidate.resources):
                freed = freed - candidate.resources
                taken.remove(candidate)
        return tuple(candidate.name for candidate in taken)

    def keeps(self, restarts: Sequence[int]) -> bool:
        """Return True if jobs that were started anew so often must not be requeued once more."""
        return self.protect_after > 0 and max(restarts, default=0) >= self.protect_after

    def _reluctance(self, one: Candidate, now_s: float) -> tuple[float, ...]:
        """Sorts the best victim first: idle ones, then by `order`, the protected last."""
        if one.idle:
            return (0.0,)
        grade = 2.0 if self._spared(one, now_s) else 1.0
        # The least often pushed aside goes first among the protected: nobody is it for ever.
        repeats = float(one.repeats) if grade > 1.0 else 0.0
        return (grade, repeats, *(self._rank(prefer, one, now_s) for prefer in self.order))

    def _spared(self, one: Candidate, now_s: float) -> bool:
        young = now_s - one.started_s < self.min_run_s
        ending = one.end_s is not None and one.end_s - now_s < self.nearly_done_s
        return young or ending or (self.protect_after > 0 and one.repeats >= self.protect_after)

    def _rank(self, prefer: Prefer, one: Candidate, now_s: float) -> float:
        match prefer:
            case Prefer.PRIORITY:
                return float(one.priority)
            case Prefer.COST:
                return one.stake_core_s + self.memory_weight * one.memory_mb
            case Prefer.YOUNGEST:
                return -one.started_s
            case Prefer.PROGRESS:
                return -(one.end_s - now_s) if one.end_s is not None else -float("inf")
