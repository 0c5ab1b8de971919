"""Budgets: how many instances there may be, or may be taken away, in certain hours."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import floor

from backfill.core.model.clock import UTC_ZONE, Zone, parse_cron
from backfill.core.model.keys import FILLED_IN, Option, about, key


class Of(Option):
    """What a budget bounds."""

    INSTANCES = "instances", "at work at the same time; those above the ceiling leave by the ladder"
    DISRUPTIONS = "disruptions", "being removed at the same time by our own decision"


@dataclass(frozen=True, slots=True)
class Budget:
    """A ceiling that applies for `duration_s` from each moment of `schedule`; without a schedule,
    always.
    """

    nodes: str = field(
        metadata=about("How many, as a number or as a share such as 20%, rounded down.", form="share")
    )
    of: Of = key(Of.INSTANCES, "What it limits.")
    schedule: str = key(
        "",
        'When it begins to apply, in cron\'s form: "0 8 * * mon-fri". Empty: it always applies.',
        form="schedule",
    )
    duration_s: float = key(3600.0, "How long it applies each time.")
    time_zone: str = key(
        "UTC", "The time zone of the schedule: UTC, or an IANA name such as Europe/Berlin.", form="zone"
    )
    # Read from the system's table.
    zone: Zone = field(default=UTC_ZONE, metadata=FILLED_IN)

    def until_s(self, now_s: float) -> float | None:
        """Return when it ceases to hold; None if it does not hold now, infinity if it always does."""
        if not self.schedule:
            return float("inf")
        begun_s = _last_s(self.schedule, now_s // 60 * 60, self.zone)
        if begun_s is None or now_s >= begun_s + self.duration_s:
            return None
        return begun_s + self.duration_s

    def allows(self, whole: int) -> int:
        """Return the ceiling, where all are `whole`."""
        if self.nodes.endswith("%"):
            return floor(whole * int(self.nodes[:-1]) / 100)
        return int(self.nodes)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Ceilings by time of day; if several apply, the lowest counts."""

    windows: tuple[Budget, ...] = key((), "In any order.")

    def ceiling(self, of: Of, whole: int, now_s: float) -> int | None:
        """Return the lowest ceiling that holds now; None: none does."""
        found = [
            budget.allows(whole)
            for budget in self.windows
            if budget.of is of and budget.until_s(now_s) is not None
        ]
        return min(found, default=None)

    def lifts_s(self, of: Of, whole: int, now_s: float) -> float | None:
        """Return when more than now are allowed again; None: never that is known, or no ceiling holds."""
        most, at_s = self.ceiling(of, whole, now_s), now_s
        if most is None:
            return None
        for _ in range(_CHANGES_AHEAD):
            changes_s = self.changes_s(at_s)
            if changes_s is None or changes_s <= at_s:
                break
            at_s = changes_s
            then = self.ceiling(of, whole, at_s)
            if then is None or then > most:
                return at_s
        return None

    def changes_s(self, now_s: float) -> float | None:
        """Return when the next budget begins or ceases to hold; None: never."""
        moments = []
        for budget in self.windows:
            until_s = budget.until_s(now_s)
            if until_s is None:
                until_s = _next_s(budget.schedule, now_s // 60 * 60, budget.zone)
            if until_s is not None and until_s != float("inf"):
                moments.append(until_s)
        return min(moments, default=None)


# So many begins and ends of budgets are looked at, which is days ahead where they follow one another.
_CHANGES_AHEAD = 16


# A plan asks several times a second, and the answer is the same for a minute.
@lru_cache(maxsize=256)
def _last_s(schedule: str, minute_s: float, zone: Zone) -> float | None:
    return parse_cron(schedule).last(minute_s, zone)


@lru_cache(maxsize=256)
def _next_s(schedule: str, minute_s: float, zone: Zone) -> float | None:
    return parse_cron(schedule).after(minute_s, zone)
