"""Whatever plain data is appended comes back, from memory and from a file alike."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.drivers.store.memory import MemoryJournal
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Journal, Record

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)
_RECORDS = st.builds(
    Record,
    at_s=st.floats(allow_nan=False, allow_infinity=False),
    kind=_TEXT,
    subject=st.sampled_from(["vn1", "vn2"]) | _TEXT,
    body=st.dictionaries(_TEXT, _JSON, max_size=5),
)
_BATCHES = st.lists(st.lists(_RECORDS, max_size=5), max_size=5)


def check(journal: Journal, batches: list[list[Record]]) -> None:
    for batch in batches:
        journal.append(batch)
    wanted = [
        Record(r.at_s, r.kind, r.subject, r.body, i + 1)
        for i, r in enumerate(r for batch in batches for r in batch)
    ]
    assert list(journal.read()) == wanted
    for subject in {r.subject for r in wanted}:
        assert list(journal.read(subject=subject)) == [r for r in wanted if r.subject == subject]
    for after_id in range(len(wanted) + 1):
        assert list(journal.read(after_id)) == wanted[after_id:]


@given(_BATCHES)
@settings(max_examples=60, deadline=None)
def test_memory_gives_back_what_it_got(batches: list[list[Record]]) -> None:
    """Every batch, in order, by subject and after any id."""
    check(MemoryJournal(), batches)


@given(_BATCHES)
@settings(max_examples=30, deadline=None)
def test_a_file_gives_back_what_it_got(batches: list[list[Record]]) -> None:
    """The same, through SQLite, and once more after the file was closed and opened."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        journal = SqliteJournal(path)
        check(journal, batches)
        before = list(journal.read())
        journal.close()
        again = SqliteJournal(path)
        assert list(again.read()) == before
        again.close()
