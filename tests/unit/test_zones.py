"""Schedules in places where clocks are changed: one hour is skipped, another repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backfill.config import ConfigError, load
from backfill.config.zones import zone
from backfill.core.model.clock import UTC_ZONE, parse_cron
from backfill.core.policies.budgets import Budget, Budgets, Of
from tests.unit.policy_files import text

BERLIN, NEW_YORK, TOKYO = "Europe/Berlin", "America/New_York", "Asia/Tokyo"


def at(text: str) -> float:
    """Epoch seconds of a moment in ISO form with its offset."""
    return datetime.fromisoformat(text).timestamp()


def begins(schedule: str, place: str, first: str, last: str) -> list[str]:
    """Every moment at which it begins between two, as the clocks there show it."""
    cron, there, now_s = parse_cron(schedule), zone(place), at(first) - 60
    found = []
    while (next_s := cron.after(now_s, there)) is not None and next_s <= at(last):
        assert cron.last(next_s, there) == next_s
        assert cron.last(next_s + 59, there) == next_s
        found.append(datetime.fromtimestamp(next_s, ZoneInfo(place)).isoformat())
        now_s = next_s
    return found


def test_eight_in_the_morning_is_so_in_summer_and_winter() -> None:
    """The defect: budgets knew UTC only, and were off by an hour for half of the year."""
    office = parse_cron("0 8 * * mon-fri")
    for day, utc in (("2026-01-12", "07:00"), ("2026-07-13", "06:00")):
        assert office.last(at(f"{day}T12:00+00:00"), zone(BERLIN)) == at(f"{day}T{utc}+00:00")
    for day, utc in (("2026-01-12", "13:00"), ("2026-07-13", "12:00")):
        assert office.last(at(f"{day}T20:00+00:00"), zone(NEW_YORK)) == at(f"{day}T{utc}+00:00")
    for day in ("2026-01-12", "2026-07-13"):  # it is 11:00 of the day before in UTC
        assert office.last(at(f"{day}T03:00+00:00"), zone(TOKYO)) == (at(f"{day}T08:00+09:00"))


@pytest.mark.parametrize(
    ("place", "day", "before", "after", "offset"),
    [
        (BERLIN, "2026-03-29", "+01:00", "+02:00", "+02:00"),
        (NEW_YORK, "2026-03-08", "-05:00", "-04:00", "-04:00"),
    ],
)
def test_a_time_that_is_skipped_is_that_of_the_change(
    place: str, day: str, before: str, after: str, offset: str
) -> None:
    """At two it is three: what begins at half past two begins then, and each hour has its own."""
    first, last = f"{day}T00:00{before}", f"{day}T23:59{after}"
    assert begins("30 2 * * *", place, first, last) == [f"{day}T03:00:00{offset}"]
    assert begins("30 1 * * *", place, first, last) == [f"{day}T01:30:00{before}"]
    assert begins("0 3 * * *", place, first, last) == [f"{day}T03:00:00{offset}"]
    assert len(begins("0 * * * *", place, first, last)) == 23


@pytest.mark.parametrize(
    ("place", "day", "hour", "before", "after"),
    [(BERLIN, "2026-10-25", "02", "+02:00", "+01:00"), (NEW_YORK, "2026-11-01", "01", "-04:00", "-05:00")],
)
def test_a_time_that_comes_twice_is_meant_once_unless_each_hour_is(
    place: str, day: str, hour: str, before: str, after: str
) -> None:
    """Nobody has two nights in one; what begins each hour does so in the repeated one as well."""
    first, last = f"{day}T00:00{before}", f"{day}T23:59{after}"
    assert begins(f"30 {hour} * * *", place, first, last) == [f"{day}T{hour}:30:00{before}"]
    assert len(begins("0 * * * *", place, first, last)) == 25
    assert len(begins("*/30 * * * *", place, first, last)) == 50


def test_a_place_without_changes() -> None:
    """Midnight there, every day; and a zone that is half an hour off."""
    days = begins("@daily", TOKYO, "2026-03-28T00:00+09:00", "2026-03-30T23:00+09:00")
    assert days == [f"2026-03-{day}T00:00:00+09:00" for day in (28, 29, 30)]
    late = parse_cron("0 8 * * *").last(at("2026-05-05T12:00+05:30"), zone("Asia/Kolkata"))
    assert late == at("2026-05-05T02:30+00:00")


@pytest.mark.parametrize(
    "place",
    [BERLIN, NEW_YORK, TOKYO, "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe", "Africa/Casablanca"],
)
def test_the_table_says_what_the_system_says(place: str) -> None:
    """Each half hour of the days round a change, in eight years, and four times a day; Apia skipped a day."""
    there, table = ZoneInfo(place), zone(place)
    quarters = [datetime(2010, 1, 1, tzinfo=UTC) + timedelta(hours=6 * n) for n in range(8 * 366 * 4)]
    moments = set(quarters)
    for before, after in pairwise(quarters):
        if before.astimezone(there).utcoffset() != after.astimezone(there).utcoffset():
            moments |= {before + timedelta(minutes=30 * n) for n in range(-48, 61)}
    for moment in moments:
        now_s = moment.timestamp()
        ahead = moment.astimezone(there).utcoffset()
        assert ahead is not None
        assert table.shown(now_s) == now_s + ahead.total_seconds()
        assert now_s in table.moments(table.shown(now_s))


def test_a_window_holds_for_its_length_whatever_clocks_show() -> None:
    """From ten at night for nine hours, over the night in which an hour is repeated."""
    night = Budget("0", schedule="0 22 * * *", duration_s=9 * 3600.0, time_zone=BERLIN, zone=zone(BERLIN))
    budgets = Budgets((night,))
    begun_s = at("2026-10-24T22:00+02:00")
    assert budgets.ceiling(Of.INSTANCES, 5, begun_s - 1) is None
    assert budgets.changes_s(begun_s - 1) == begun_s
    assert budgets.ceiling(Of.INSTANCES, 5, begun_s + 9 * 3600 - 1) == 0
    assert budgets.changes_s(begun_s + 5) == begun_s + 9 * 3600
    assert budgets.ceiling(Of.INSTANCES, 5, begun_s + 9 * 3600) is None


def test_the_policy_file_names_the_zone(tmp_path: Path) -> None:
    """And its table comes with it; without one it is UTC."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        text()
        + """
budgets:
  - {nodes: 2, schedule: "0 8 * * *", time_zone: Europe/Berlin}
  - {nodes: 3, schedule: "0 8 * * *"}
"""
    )
    first, second = load(path).policies.budgets.windows
    assert first.zone == zone(BERLIN)
    assert first.zone.name == BERLIN
    assert second.zone == UTC_ZONE


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Europe/Berlyn", "which is no time zone"),
        ("europe/berlin", "is no time zone; did you mean Europe/Berlin?"),
        ("../../etc/passwd", "is no time zone"),
        ("/etc/localtime", "is no time zone"),
    ],
)
def test_a_zone_that_does_not_exist_is_refused_with_its_line(tmp_path: Path, name: str, why: str) -> None:
    """One sentence with the place and the remedy."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        text()
        + f"""
budgets:
  - nodes: 2
    schedule: "0 8 * * *"
    time_zone: {name}
"""
    )
    line = path.read_text().splitlines().index(f"    time_zone: {name}") + 1
    with pytest.raises(ConfigError) as refused:
        load(path)
    told = str(refused.value)
    assert why in told
    assert f"{path}:{line}:" in told
    assert "such as Europe/Berlin" in told
