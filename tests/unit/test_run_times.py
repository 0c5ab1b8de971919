"""How long jobs on our nodes ran lately, and what follows from that for those that run now."""

from __future__ import annotations

import pytest

from backfill.core.learning import RunTimes
from backfill.core.reconcile.course import may_end


def of(*times: float, user: str = "pilot") -> RunTimes:
    known = RunTimes()
    for ran_s in times:
        known.learn(user, ran_s)
    return known


def test_those_that_ran_longer_count() -> None:
    """Sorted, by how much longer."""
    assert of(600.0, 50.0, 620.0, 610.0).left_s("pilot", 590.0) == [10.0, 20.0, 30.0]
    assert of(600.0, 610.0, 620.0).left_s("pilot", 700.0) == []


def test_of_two_jobs_nothing_can_be_said() -> None:
    assert of(600.0, 610.0).left_s("pilot", 0.0) == []


def test_an_owner_of_whom_little_is_known_is_judged_by_all() -> None:
    known = of(10.0, 20.0, 30.0)
    known.learn("new", 500.0)
    assert known.left_s("new", 25.0) == [5.0, 475.0]
    assert known.left_s("pilot", 25.0) == [5.0]


@pytest.mark.parametrize(
    ("shares", "count", "expected"),
    [((), 1, 0.0), ((1.0,), 1, 1.0), ((1.0,), 2, 0.0), ((0.5, 0.5), 1, 0.75), ((0.5, 0.5, 1.0), 2, 0.75)],
)
def test_how_likely_so_many_end(shares: tuple[float, ...], count: int, expected: float) -> None:
    assert may_end(shares, count) == pytest.approx(expected)
