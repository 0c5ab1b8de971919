"""The ladder: by which rungs an instance gives its host back, and how long it stays on each."""

from __future__ import annotations

from dataclasses import dataclass, field

from backfill.core.model.fleet import Rung
from backfill.core.model.keys import about, key

_KEPT_PERCENT = 2


@dataclass(frozen=True, slots=True)
class RungRule:
    """One rung: it must have worked within `within_s`, and is left after `for_s` (seconds)."""

    rung: Rung = field(metadata=about("What is done.", but=(Rung.CANCEL,)))
    within_s: float = key(30.0, "If it has not worked after this time, the next rung is taken.")
    for_s: float | None = key(None, "null: stay until the host is free again")
    cpu_percent: int | None = key(
        None,
        "null: 2, the share of its CPU time that a throttled instance keeps. 100 or more slows nothing down, "
        "and the next rung is taken.",
    )

    @property
    def kept_percent(self) -> int:
        """Return the share of its CPU time that a throttled instance keeps."""
        return _KEPT_PERCENT if self.cpu_percent is None else self.cpu_percent


DEFAULT_RUNGS = (
    RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0),
    RungRule(Rung.SUSPEND, within_s=60.0, for_s=14400.0),
    RungRule(Rung.REQUEUE, within_s=60.0),
)

_LAST = RungRule(Rung.PAUSE)
_ENDS = (Rung.REQUEUE, Rung.CANCEL)


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rungs in the order in which they are tried."""

    rungs: tuple[RungRule, ...] = DEFAULT_RUNGS

    def rule(self, index: int) -> RungRule:
        """Return the rule at `index`; past the last one the instance stands still, which loses nothing."""
        return self.rungs[index] if index < len(self.rungs) else _LAST

    def present(self, index: int, kind: Rung | None) -> RungRule:
        """Return the rule by which a node stands where `place` finds it."""
        return self.rule(self.place(index, kind))

    def over(self, index: int) -> bool:
        """Return True if the list is over at `index`."""
        return index >= len(self.rungs)

    def place(self, index: int, kind: Rung | None) -> int:
        """Return where a node stands that was on this kind of rung, the `index`-th of its ladder then.

        The policy file may have changed since: a shorter ladder must not throw its work away.
        """
        if kind is None or self.rule(index).rung is kind:
            return index
        # Work is never lost by a rung that the list does not name (any more).
        missing = len(self.rungs) if kind is Rung.REQUEUE else 0
        return next((i for i, rule in enumerate(self.rungs) if rule.rung is kind), missing)

    @property
    def still(self) -> int | None:
        """Return the first rung on which an instance stands still; None: there is none."""
        kinds = (Rung.PAUSE, Rung.SUSPEND)
        return next((i for i, rule in enumerate(self.rungs) if rule.rung in kinds), None)

    @property
    def migrates(self) -> bool:
        """Return True if stopped work may go on at another host."""
        return any(r.rung is Rung.MIGRATE for r in self.rungs)

    @property
    def ends(self) -> bool:
        """Return True if it ends by giving work back to the queue, rather than by standing still."""
        return any(rule.rung in _ENDS for rule in self.rungs)

    @property
    def planned_stop_s(self) -> float | None:
        """How long it lets an instance stand still, seconds; None: without limit.

        The time of a rung counts from when it is asked for, so what that takes is part of it.
        """
        stops = self._stops
        return None if stops is None else sum(max(for_s, within_s) for for_s, within_s in stops)

    @property
    def longest_stop_s(self) -> float | None:
        """As long as that, and what its rungs may take to work besides: Slurm must wait for more."""
        stops = self._stops
        return None if stops is None else sum(for_s + within_s for for_s, within_s in stops)

    @property
    def _stops(self) -> list[tuple[float, float]] | None:
        """The times of the rungs on which it stands still; None: it does so without limit."""
        stops = [rule for rule in self.rungs if rule.rung in (Rung.PAUSE, Rung.SUSPEND)]
        limited = [(rule.for_s, rule.within_s) for rule in stops if rule.for_s is not None]
        return limited if self.ends and len(limited) == len(stops) else None
