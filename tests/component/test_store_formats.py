"""The journal's version: it moves with what is written, and each program knows its limits."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.records import encode, remembered
from backfill.drivers.store import schema
from backfill.drivers.store.formats import FORMATS, VERSION, fingerprint
from backfill.drivers.store.sqlite import JournalReader, SqliteJournal
from backfill.ports.errors import BadOutputError
from backfill.ports.storage import Record

NODE = ManagedNode("vn1", "10.0.0.1/8", "bm1", 7, Phase.READY, 2.0, 2.0)


def test_the_version_moves_with_the_records() -> None:
    """Whoever changes a type of record, its defaults or its packing gives the format a number."""
    version, known = FORMATS[-1]
    now = fingerprint()
    assert now == known, (
        "what the journal says has changed: an older program would misread it. Add the line "
        f'({version + 1}, "{now}"), to FORMATS in backfill/drivers/store/formats.py'
    )
    assert [number for number, _ in FORMATS] == list(range(1, VERSION + 1))
    assert len({known for _, known in FORMATS}) == len(FORMATS)


def test_a_newer_journal_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """After a downgrade: one sentence, and nothing in the file is changed."""
    path = tmp_path / "j.db"
    SqliteJournal(path).close()
    _set_version(path, VERSION + 1)
    before = path.read_bytes()
    for opened in (SqliteJournal, JournalReader):
        with pytest.raises(BadOutputError) as caught:
            opened(path)
        assert f"newer backfill (journal version {VERSION + 1}, this one reads up" in str(caught.value)
        assert "use that backfill, or move the file away" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "strict"), [((3, 34, 1), 0), ((3, 37, 0), 2)])
def test_a_journal_is_made_by_the_sqlite_of_every_release(
    version: tuple[int, int, int], strict: int, tmp_path: Path
) -> None:
    """Enterprise Linux 9 has 3.34, which takes the word STRICT, of 3.37, for a mistake."""
    program = (
        f"import pathlib, sqlite3; sqlite3.sqlite_version_info = {version}\n"
        "from backfill.drivers.store import schema\n"
        "schema.build(pathlib.Path('j.db'))\n"
        "made = sqlite3.connect('j.db').execute('SELECT sql FROM sqlite_master WHERE sql IS NOT NULL')\n"
        "print(sum(sql.rstrip().endswith('STRICT') for sql, in made))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == strict


def _set_version(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


def _write_version_1(path: Path, records: list[Record]) -> None:
    """A journal as the first version wrote it: plain text, a column of its own for nothing else."""
    db = sqlite3.connect(path)
    db.executescript(schema._TABLES)
    with db:
        for r in records:
            text = json.dumps(r.body)
            db.execute(
                "INSERT INTO record (at_s, kind, subject, body) VALUES (?, ?, ?, ?)",
                (r.at_s, r.kind, r.subject, text),
            )
    db.close()


def test_an_older_journal_is_taken_over(tmp_path: Path) -> None:
    """Its records are read as before, new ones follow, and no older program opens it any more."""
    path = tmp_path / "j.db"
    old = [
        Record(1.0, "change", "vn1", encode(ch.NodeManaged(NODE))),
        Record(2.0, "daemon", "cluster", {"event": "start"}),
        Record(3.0, "change", "bm1", encode(ch.HoldSet("bm1", 3.0, True, "its fan"))),
    ]
    _write_version_1(path, old)
    with pytest.raises(BadOutputError, match=r"older backfill \(journal version 1\); start the"):
        JournalReader(path)
    journal = SqliteJournal(path)
    journal.append([Record(4.0, "change", "vn1", encode(ch.NodeForgotten("vn1", 7)))])
    found = list(journal.read())
    assert [(r.at_s, r.kind, r.subject, r.body) for r in found[:3]] == [
        (r.at_s, r.kind, r.subject, r.body) for r in old
    ]
    lasting = journal.read(types={"NodeManaged", "NodeForgotten", "HoldSet"})
    assert [r.id for r in lasting] == [1, 3, 4]
    journal.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
    db.close()
    again = SqliteJournal(path)
    assert remembered(r.body for r in again.read()) == [
        ch.HoldSet("bm1", 3.0, True, "its fan"),
        ch.NodeForgotten("vn1", 7),
    ]
    again.close()


def test_a_takeover_reads_a_long_journal_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month of a busy site is 1.2 GB, and until the daemon has it nobody gives hosts back."""
    path = tmp_path / "journal.db"
    _write_version_1(path, [Record(1.0, "change", "vn1", {"t": "NodeManaged"})])
    done: list[str] = []
    connect = schema.connect

    def traced(place: Path, mode: str) -> sqlite3.Connection:
        db = connect(place, mode)
        db.set_trace_callback(done.append)
        return db

    monkeypatch.setattr(schema, "connect", traced)
    SqliteJournal(path).close()
    assert len([text for text in done if "UPDATE record SET lasting" in text]) == 1


def test_a_takeover_that_fails_changes_nothing(tmp_path: Path) -> None:
    """All or nothing: a second try, or the older program, finds the journal as it was."""
    path = tmp_path / "j.db"
    _write_version_1(path, [Record(1.0, "change", "vn1", {"t": "NodeManaged"})])
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE record_lasting (there INTEGER)")  # the name of an index to be made
    db.commit()
    db.close()
    before = _told(path)
    with pytest.raises(Exception, match="record_lasting"):
        SqliteJournal(path)
    assert _told(path) == before


def _told(path: Path) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    found = [*db.execute("PRAGMA user_version"), *db.execute("SELECT * FROM record")]
    db.close()
    return found
