"""Hostlists are sets of node names, whichever way they are written."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model.quantities import NOTHING, Resources, fold_hostlist, parse_hostlist

_PREFIXES = st.sampled_from(["n", "bm", "vn-", "rack1-n", "a.b", "x0y", "login"])
_NUMBERS = st.one_of(
    st.just(""),
    st.integers(0, 3000).map(str),
    st.integers(0, 120).map(lambda n: f"{n:03d}"),
    st.integers(0, 12).map(lambda n: f"{n:02d}"),
)
_NAMES = st.builds(lambda prefix, number: prefix + number, _PREFIXES, _NUMBERS)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[1,3-5],login", ("n1", "n3", "n4", "n5", "login")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[1-2]-ib,n[1-2]", ("n1-ib", "n2-ib", "n1", "n2")),
        ("n2,n1,n2", ("n2", "n1")),
        (" n[1, 3] ", ("n1", "n3")),
        ("r[1-2]n[08-09]", ("r1n08", "r1n09", "r2n08", "r2n09")),
        ("r[1,3]n[1]-ib,x", ("r1n1-ib", "r3n1-ib", "x")),
    ],
)
def test_a_hostlist_names_its_nodes_in_order_and_once(text: str, names: tuple[str, ...]) -> None:
    """Ranges keep their leading zeros; repeats disappear."""
    assert parse_hostlist(text) == names


@pytest.mark.parametrize("text", ["", "  ", "(null)", "None assigned", "None", "N/A"])
def test_slurms_words_for_no_node(text: str) -> None:
    """What Slurm prints instead of a list is the empty list."""
    assert parse_hostlist(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[[1]]",
        "n[3-1]",
        "n[a-b]",
        "n[]",
        "n[1,,2]",
        "n1,,n2",
        "n 1",
        "n[0-99999999]",
        "n[1-2000]r[1-2000]",
        "n;rm",
        "é1",
    ],
)
def test_what_is_no_hostlist_is_an_error_that_shows_it(text: str) -> None:
    """The message contains a piece of the faulty text."""
    with pytest.raises(ValueError, match="hostlist"):
        parse_hostlist(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-900000]",
        ",".join(f"n[{i}]" for i in range(2000)),
        "n[1-999],n[1-2]",
        "[1-9]" * 1000,
        "[1-9]" * 200,
        "x" * 100_000,
        f"{'x' * 250}[1-9][1-9][1-9][1-9][1-9][1-9]",
        f"n[{'9' * 5000}]",
        f"n[1-{'9' * 17}]",
        "n[" + "1-1000," * 1000 + "1]",
    ],
)
def test_too_many_names_are_counted_and_not_made(text: str) -> None:
    """The refusal costs no more than the text itself."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="hostlist") as refused:
            parse_hostlist(text, 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000 + 200 * len(text)
    assert len(str(refused.value)) < 300
    assert len(parse_hostlist("n[1-1000]", 1000)) == 1000


@given(st.lists(_NAMES))
def test_folding_and_parsing_are_inverse_as_sets(names: list[str]) -> None:
    """No name is lost, invented or changed, however the names are mixed."""
    folded = fold_hostlist(names)
    again = parse_hostlist(folded)
    assert set(again) == set(names)
    assert len(again) == len(set(names))


@given(st.lists(_NAMES))
def test_folding_does_not_depend_on_order_or_repeats(names: list[str]) -> None:
    """The same set is always written the same way."""
    assert fold_hostlist([*reversed(names), *names]) == fold_hostlist(names)


def test_neighbours_become_ranges() -> None:
    """A thousand nodes are a short text."""
    assert fold_hostlist(f"n{i}" for i in range(1, 1001)) == "n[1-1000]"
    assert fold_hostlist(["n1", "n2", "n5", "n07"]) == "n07,n[1-2,5]"


@given(st.integers(0, 64), st.integers(0, 10**6), st.integers(0, 64), st.integers(0, 10**6))
def test_resources_fit_in_every_dimension_or_not_at_all(a: int, b: int, c: int, d: int) -> None:
    """What was added fits, and taking it away again leaves what was there."""
    one, other = Resources(a, b), Resources(c, d)
    assert one.fits(one + other)
    assert (one + other) - other == one
    assert one.fits(other) == (a <= c and b <= d)
    assert NOTHING.fits(one)
