"""Free room over time: what is claimed, what is left, and where the next amount fits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.timeline import Timeline

CAPACITY = 8
HORIZON = 20


def test_room_begins_whole_and_never_ends() -> None:
    """A new timeline has one step: everything, for ever."""
    assert list(Timeline(4, 10).steps()) == [(10, 4)]


def test_a_claim_takes_room_for_its_span_only() -> None:
    """Before and after a claim, and at its very end, all is free."""
    line = Timeline(4, 0)
    line.claim(5, 9, 3)
    assert [line.free_at(time) for time in (0, 4, 5, 8, 9)] == [4, 4, 1, 1, 4]
    assert line.least_free(0, 6) == 1
    assert line.least_free(9, 12) == 4


def test_release_restores_the_picture() -> None:
    """What is released leaves no trace: neighbours of equal height are one step again."""
    line = Timeline(4, 0)
    line.claim(5, 9, 3)
    line.claim(5, 9, 1)
    line.release(5, 9, 1)
    line.release(5, 9, 3)
    assert list(line.steps()) == [(0, 4)]


def test_earliest_finds_a_hole_that_is_long_enough() -> None:
    """A hole that is too short is passed over; an exact fit is taken."""
    line = Timeline(4, 0)
    line.claim(0, 3, 4)
    line.claim(5, 9, 4)
    assert line.earliest(1, 2, 0) == 3
    assert line.earliest(1, 3, 0) == 9
    assert line.earliest(1, 1, 4) == 4


def test_earliest_is_none_when_room_never_comes() -> None:
    """A claim without end can leave too little for ever."""
    line = Timeline(4, 0)
    line.claim(2, None, 3)
    assert line.earliest(2, 2, 0) == 0
    assert line.earliest(2, 3, 0) is None
    assert line.earliest(5, 1, 0) is None


def test_overbooking_is_refused_and_changes_nothing() -> None:
    """A claim beyond the capacity raises, and the picture stays as it was."""
    line = Timeline(4, 0)
    line.claim(5, 9, 3)
    before = list(line.steps())
    with pytest.raises(ValueError, match="leaves the range 0 to 4"):
        line.claim(7, 12, 2)
    with pytest.raises(ValueError, match="leaves the range 0 to 4"):
        line.release(5, 10, 1)
    assert list(line.steps()) == before


def test_the_past_can_be_forgotten() -> None:
    """Forgetting moves the start and keeps the future; the past is then an error."""
    line = Timeline(4, 0)
    line.claim(2, 8, 1)
    line.forget_before(5)
    assert list(line.steps()) == [(5, 3), (8, 4)]
    with pytest.raises(ValueError, match="before the timeline's start 5"):
        line.free_at(4)


@pytest.mark.parametrize("span", [(3, 3), (4, 2)])
def test_empty_spans_are_errors(span: tuple[int, int]) -> None:
    """A span must end after it begins."""
    line = Timeline(4, 0)
    with pytest.raises(ValueError, match="is empty"):
        line.claim(*span, 1)
    with pytest.raises(ValueError, match="is empty"):
        line.least_free(*span)


def test_a_negative_capacity_is_an_error() -> None:
    """There is no room below zero."""
    with pytest.raises(ValueError, match="is negative"):
        Timeline(-1, 0)


spans = st.tuples(st.integers(0, HORIZON - 1), st.integers(1, 10), st.integers(1, CAPACITY))


@given(claims=st.lists(spans, max_size=12), amount=st.integers(1, CAPACITY), wanted=spans)
def test_agrees_with_a_table_of_instants(
    claims: list[tuple[int, int, int]], amount: int, wanted: tuple[int, int, int]
) -> None:
    """Steps, refusals and the earliest fit are those of a plain table with one cell per instant."""
    line = Timeline(CAPACITY, 0)
    table = [CAPACITY] * (4 * HORIZON)
    for start, length, taken in claims:
        if min(table[start : start + length]) >= taken:
            line.claim(start, start + length, taken)
            for time in range(start, start + length):
                table[time] -= taken
        else:
            with pytest.raises(ValueError, match="leaves the range"):
                line.claim(start, start + length, taken)
    assert [line.free_at(time) for time in range(len(table))] == table
    heights = [free for _, free in line.steps()]
    assert all(one != following for one, following in itertools.pairwise(heights))
    after, duration, _ = wanted
    fits = (t for t in range(after, 3 * HORIZON) if min(table[t : t + duration]) >= amount)
    assert line.earliest(amount, duration, after) == next(fits)
