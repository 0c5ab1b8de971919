"""What clocks show in a place: when they are changed there, as a plain table."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Zone:
    """Local time. `changes`: from when on (epoch seconds) it is how far ahead of UTC, in order.

    Local moments are seconds since 1970-01-01 as the clocks there show them.
    """

    name: str = "UTC"
    changes: tuple[tuple[float, float], ...] = ((-inf, 0.0),)

    def shown(self, at_s: float) -> float:
        """What the clocks there show at this moment."""
        return at_s + self.changes[self._era(at_s)][1]

    def moments(self, shown_s: float) -> tuple[float, ...]:
        """When they show this: once as a rule, twice where an hour is repeated.

        Where they skip it, it is the moment at which they do.
        """
        near = range(max(0, self._era(shown_s - _FAR_S)), self._era(shown_s + _FAR_S) + 1)
        found = []
        for era in near:
            since_s, ahead_s = self.changes[era]
            if since_s <= shown_s - ahead_s < self._until_s(era):
                found.append(shown_s - ahead_s)
        if found:
            return tuple(found)
        return tuple(self.changes[era][0] for era in near if self._skips(era, shown_s))

    def steady_s(self, first_s: float, last_s: float) -> float | None:
        """How far it is ahead of UTC all the time between two moments; None: it is changed."""
        era = self._era(first_s)
        return self.changes[era][1] if era == self._era(last_s) else None

    def _era(self, at_s: float) -> int:
        return max(0, bisect_right(self.changes, (at_s, inf)) - 1)

    def _until_s(self, era: int) -> float:
        return self.changes[era + 1][0] if era + 1 < len(self.changes) else inf

    def _skips(self, era: int, shown_s: float) -> bool:
        if era == 0:
            return False
        at_s, ahead_s = self.changes[era]
        return at_s + self.changes[era - 1][1] <= shown_s < at_s + ahead_s


# No clock is further from UTC than this, and a change of the date line is a day.
_FAR_S = 36 * 3600.0

UTC_ZONE = Zone()
