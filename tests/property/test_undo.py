"""Tables that can be put back: whatever a plan tries on them, they are as before once it is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core import tables
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.tables import FleetIndex
from backfill.core.undo import Bag, Table, Tally, UndoLog

KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.sampled_from(("set", "pop", "put in", "take out", "one more", "one less")), KEYS)
)


class Tables:
    """One of each kind, with one log."""

    def __init__(self) -> None:
        self.log = UndoLog()
        self.table: Table[str, int] = Table(self.log)
        self.bag: Bag[str] = Bag(self.log)
        self.tally: Tally[str] = Tally(self.log)
        self._steps = 0

    def take(self, step: str, key: str) -> None:
        """Change one of them."""
        self._steps += 1
        match step:
            case "set":
                self.table[key] = self._steps
            case "pop":
                self.table.pop(key)
            case "put in":
                self.bag.add(key)
            case "take out":
                self.bag.discard(key)
            case "one more":
                self.tally.add(key)
            case _:
                if key in self.tally:
                    self.tally.discard(key)

    def state(self) -> tuple[dict[str, int], set[str], dict[str, int]]:
        """What stands in them now."""
        return dict(self.table), set(self.bag), dict(self.tally)


@given(STEPS, STEPS)
def test_what_is_tried_is_taken_back(before: list[tuple[str, str]], tried: list[tuple[str, str]]) -> None:
    """In whatever order it was tried; what was done before stays."""
    tables = Tables()
    for step in before:
        tables.take(*step)
    known = tables.state()
    with tables.log.tentatively():
        for step in tried:
            tables.take(*step)
    assert tables.state() == known


@given(STEPS, STEPS)
def test_what_is_kept_is_as_if_it_had_been_done(
    before: list[tuple[str, str]], kept: list[tuple[str, str]]
) -> None:
    """A plan that is begun whatever happens leaves its steps there."""
    tables, others = Tables(), Tables()
    for step in before + kept:
        others.take(*step)
    for step in before:
        tables.take(*step)
    with tables.log.tentatively():
        for step in kept:
            tables.take(*step)
        tables.log.keep()
    assert tables.state() == others.state()


@given(st.lists(KEYS))
def test_a_tally_counts_what_is_alike_and_forgets_what_is_gone(keys: list[str]) -> None:
    """No key stays behind with a count of nothing."""
    tally: Tally[str] = Tally(UndoLog())
    for key in keys:
        tally.add(key)
    assert dict(tally) == {key: keys.count(key) for key in keys}
    for key in keys:
        tally.discard(key)
    assert not tally


@pytest.mark.parametrize("kept", [True, False])
def test_of_very_many_creations_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Also where a plan makes them; and where that is taken back, all are there again."""
    monkeypatch.setattr(tables, "_REMEMBERED", 3)
    log = UndoLog()
    fleet = FleetIndex(log)
    for made_s in (1.0, 2.0, 3.0):
        fleet.manage(_made(made_s))
    with log.tentatively():
        for made_s in (5.0, 4.0, 0.5):
            fleet.manage(_made(made_s))
        if kept:
            log.keep()
    assert fleet._created == ([3.0, 4.0, 5.0] if kept else [1.0, 2.0, 3.0])
    assert fleet._begun == {"host bm1": fleet._created, "image ": fleet._created}


def _made(made_s: float) -> ManagedNode:
    """One that was made then."""
    return ManagedNode(f"vn{made_s}", "10.0.0.1/8", "bm1", 1, Phase.BOOTING, made_s, made_s)
