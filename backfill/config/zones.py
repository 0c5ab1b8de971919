"""Time zones by their IANA names: the system's tables, read once, as values for the core."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf
from zoneinfo import ZoneInfo, available_timezones

from backfill.core.model.clock import UTC_ZONE, Zone

# Beyond these years no budget is asked for.
_FIRST = datetime(1999, 12, 31, tzinfo=UTC)
_DAYS = 101 * 366
_DAY_S = 86400


@lru_cache(maxsize=32)
def zone(name: str) -> Zone:
    """Return the zone of this name. ValueError says what is wrong with it."""
    if name == UTC_ZONE.name:
        return UTC_ZONE
    try:
        there = ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # no such zone is a KeyError
        raise ValueError(_unknown(name)) from error
    begin_s = int(_FIRST.timestamp())
    changes: list[tuple[float, float]] = [(-inf, _ahead_s(there, begin_s))]
    changes += _changes(there, begin_s)
    return Zone(name, tuple(changes))


def _unknown(name: str) -> str:
    known = available_timezones()
    if not known:
        return "is not known: this machine has no table of time zones (package tzdata)"
    same = sorted(one for one in known if one.casefold() == name.casefold())
    return f"is no time zone; did you mean {same[0]}?" if same else "is no time zone"


def _changes(there: ZoneInfo, begin_s: int) -> Iterator[tuple[float, float]]:
    was_s = _ahead_s(there, begin_s)
    for day in range(_DAYS):
        early_s = begin_s + day * _DAY_S
        late_s = early_s + _DAY_S
        is_s = _ahead_s(there, late_s)
        if is_s == was_s:
            continue
        while late_s - early_s > 1:
            middle_s = (early_s + late_s) // 2
            if _ahead_s(there, middle_s) == was_s:
                early_s = middle_s
            else:
                late_s = middle_s
        yield float(late_s), is_s
        was_s = is_s


def _ahead_s(there: ZoneInfo, at_s: int) -> float:
    ahead = datetime.fromtimestamp(at_s, there).utcoffset()
    return (ahead or timedelta()).total_seconds()
