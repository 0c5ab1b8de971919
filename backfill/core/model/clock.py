"""Times of day: how a clock was set, time zones, and cron's five fields in one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf


@dataclass(frozen=True, slots=True)
class Move:
    """A clock was set by so much (back: negative), and showed `at_s` right after, epoch seconds."""

    at_s: float
    by_s: float


def as_now(moves: Sequence[Move], at_s: float) -> float:
    """Return a moment that was written down as `at_s`, as the clock would show it now.

    Where the clock went back, the hours that it showed twice are taken for the second time.
    """
    for move in moves:
        if at_s < move.at_s and at_s <= move.at_s - move.by_s:
            at_s += move.by_s
    return at_s


def as_then(moves: Sequence[Move], at_s: float) -> float:
    """Return as it was written down at its time a moment that is `at_s` by the clock of now."""
    for move in reversed(moves):
        if at_s < move.at_s:
            at_s -= move.by_s
    return at_s


def moved_s(known: tuple[float, str, float] | None, found: tuple[float, str, float]) -> float:
    """Return what has to be added to times that were written before, to have them in the time of now.

    Both are a time, the boot of the machine, and its uptime then. Across a boot nobody can know how
    long it took if its clock may be wrong: no time has passed.
    """
    if known is None:
        return 0.0
    (then_s, booted, was_up_s), (now_s, boot, uptime_s) = known, found
    same = boot == booted and uptime_s >= was_up_s
    by_s = now_s - then_s - (uptime_s - was_up_s if same else 0.0)
    return by_s if abs(by_s) >= NOTABLE_S else 0.0


# A clock that was set by less was not set as far as anybody is told.
NOTABLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Zone:
    """Local time. `changes`: from when on (epoch seconds) it is how far ahead of UTC, in order.

    Local moments are seconds since 1970-01-01 as the clocks there show them.
    """

    name: str = "UTC"
    changes: tuple[tuple[float, float], ...] = ((-inf, 0.0),)

    def shown(self, at_s: float) -> float:
        """Return what the clocks there show at this moment."""
        return at_s + self.changes[self._era(at_s)][1]

    def moments(self, shown_s: float) -> tuple[float, ...]:
        """Return when they show this: once as a rule, twice where an hour is repeated.

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
        """Return how far it is ahead of UTC all the time between two moments; None: it is changed."""
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


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _DAYS),
)


_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}


# 29 February comes back after eight years at the latest (1896, 1904).
_FARTHEST_DAYS = 8 * 366 + 3


_DAY_S = 86400.0


_HOURS = 24


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed schedule. `either`: day and weekday are both given, and one of them suffices."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either: bool

    def last(self, now_s: float, zone: Zone = UTC_ZONE) -> float | None:
        """Return the latest moment of the schedule up to `now_s`, epoch seconds."""
        return self._seek(now_s, -1, zone)

    def after(self, now_s: float, zone: Zone = UTC_ZONE) -> float | None:
        """Return the first moment of the schedule after `now_s`, epoch seconds."""
        return self._seek(now_s, 1, zone)

    def _seek(self, now_s: float, way: int, zone: Zone) -> float | None:
        minute_s = now_s // 60 * 60
        # From the day before or after, as seen on the way: clocks may be changed at midnight.
        day = datetime.fromtimestamp(zone.shown(minute_s) // 86400 * 86400, UTC)
        day -= timedelta(days=way)
        for _ in range(_FARTHEST_DAYS):
            if self._on(day):
                for at_s in self._moments(day.timestamp(), way, zone):
                    if (at_s <= minute_s) if way < 0 else (at_s > minute_s):
                        return at_s
            day += timedelta(days=way)
        return None

    def _moments(self, day_s: float, way: int, zone: Zone) -> Iterable[float]:
        """All of a day, in their order or against it.

        A time of day that is skipped there is the moment of the change. Of one that is repeated the
        first is meant, unless the schedule has every hour: then both are.
        """
        shown = (
            day_s + hour * 3600.0 + minute * 60.0
            for hour in self.hours[::way]
            for minute in self.minutes[::way]
        )
        ahead_s = zone.steady_s(day_s - _DAY_S, day_s + 2 * _DAY_S)
        if ahead_s is not None:
            return (at_s - ahead_s for at_s in shown)
        both = len(self.hours) == _HOURS
        found = {m for at_s in shown for m in zone.moments(at_s)[: None if both else 1]}
        return sorted(found, reverse=way < 0)

    def _on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_name = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_date or by_name) if self.either else (by_date and by_name)


@lru_cache(maxsize=256)
def parse_cron(text: str) -> Cron:
    """Read `0 8 * * mon-fri` or `@daily`. ValueError says which field is wrong."""
    words = _SHORT.get(text, text).lower().split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"has {len(words)} fields instead of 5 (minute hour day month weekday)")
    minutes, hours, days, months, weekdays = (
        _field(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        "*" not in (words[2][0], words[4][0]),
    )
    if cron.after(0.0) is None:
        raise ValueError("never comes")
    return cron


def _field(word: str, name: str, least: int, most: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in word.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = least, most
        else:
            begin = _number(first, name, least, most, names)
            end = _number(last, name, least, most, names) if dash else begin
            end = most if step and not dash else end
        by = _number(step, name, 1, most, ()) if step else 1
        if begin > end:
            raise ValueError(f"has {part} as {name}, which ends before it begins")
        found.update(range(begin, end + 1, by))
    return frozenset(found)


def _number(text: str, name: str, least: int, most: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + least
    if text.isascii() and text.isdigit() and len(text) < 3 and least <= int(text) <= most:
        return int(text)
    raise ValueError(f"has '{text}' as {name}; it goes from {least} to {most}")
