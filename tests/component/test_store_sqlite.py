"""The journal's file: what survives, who may write, and what is refused untouched."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backfill.drivers.store.formats import VERSION
from backfill.drivers.store.sqlite import JournalReader, SqliteJournal
from backfill.ports.errors import BadOutputError, BusyError, NotFoundError, RefusedError
from backfill.ports.storage import Record

_WRITE_FOR_EVER = """
import sys
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.records import encode, remembered
from backfill.ports.storage import Record
journal, i = SqliteJournal(sys.argv[1]), 0
while True:
    journal.append([Record(float(i), "change", "vn1", {"i": i, "half": h}) for h in (0, 1)])
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
    i += 1
"""

_READ_ALL = """
import sys
from backfill.drivers.store.sqlite import JournalReader
print(sum(1 for _ in JournalReader(sys.argv[1]).read()))
"""


def entry(subject: str = "vn1", at_s: float = 1.0, **body: object) -> Record:
    return Record(at_s, "change", subject, body)


# --- what survives -----------------------------------------------------------------------------


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Opened again, it has its records and numbers the next one after them."""
    first = SqliteJournal(tmp_path / "j.db")
    first.append([entry(i=1), entry(i=2)])
    first.close()
    second = SqliteJournal(tmp_path / "j.db")
    second.append([entry(i=3)])
    assert [(r.id, r.body["i"]) for r in second.read()] == [(1, 1), (2, 2), (3, 3)]
    second.close()


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    """A writer killed in mid-stream leaves every acknowledged batch, and whole batches only."""
    path = tmp_path / "j.db"
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        acknowledged = [int(child.stdout.readline()) for _ in range(300)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in child.stdout if line.endswith("\n")]
    child.wait()
    journal = SqliteJournal(path)
    found = [(r.body["i"], r.body["half"]) for r in journal.read()]
    journal.close()
    assert found == [(i, half) for i in range(len(found) // 2) for half in (0, 1)]
    assert len(found) // 2 >= len(acknowledged)


def test_a_creation_that_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    """An empty file, and a draft that a crash left behind, do not stop the next start."""
    path = tmp_path / "j.db"
    path.touch()
    (tmp_path / "j.db.new").write_bytes(b"half a file")
    journal = SqliteJournal(path)
    journal.append([entry()])
    assert len(list(journal.read())) == 1
    journal.close()
    assert not (tmp_path / "j.db.new").exists()


def test_the_wal_of_a_journal_that_was_moved_away_is_set_aside(tmp_path: Path) -> None:
    """Left behind after a power cut, it is not replayed into the new journal, nor thrown away."""
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    for number in (1, 2):
        old = SqliteJournal(tmp_path / f"old{number}.db")
        old.append(entry(text="x" * 100, i=i) for i in range(2000))
        frames = (tmp_path / f"old{number}.db-wal").read_bytes()
        old.close()
        wal.write_bytes(frames)
        Path(f"{path}-shm").write_bytes(b"an index of it")
        new = SqliteJournal(path)
        assert list(new.read()) == []
        new.append([entry()])
        new.close()
        assert (tmp_path / f"j.db-wal.stray{number}").read_bytes() == frames
        assert (tmp_path / f"j.db-shm.stray{number}").read_bytes() == b"an index of it"
        path.unlink()


# --- readers and writers -----------------------------------------------------------------------


def test_a_reader_sees_what_a_writer_appends(tmp_path: Path) -> None:
    """A reader stays open beside the writer and finds new records, and cannot write."""
    journal = SqliteJournal(tmp_path / "j.db")
    reader = JournalReader(tmp_path / "j.db")
    journal.append([entry(i=1)])
    assert [r.id for r in reader.read()] == [1]
    journal.append([entry(i=2)])
    assert [r.id for r in reader.read(after_id=1)] == [2]
    assert not hasattr(reader, "append")
    reader.close()
    journal.append([entry(i=3)])
    journal.close()


def test_another_process_reads_while_we_write(tmp_path: Path) -> None:
    """`backfill events` works beside the daemon, and after it."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    journal.append([entry(), entry()])

    def count() -> str:
        command = [sys.executable, "-c", _READ_ALL, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert count() == "2"
    journal.append([entry()])
    journal.close()
    assert count() == "3"


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """Two daemons must not share a journal; the holder is named, and its end frees the file."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    with pytest.raises(BusyError, match=f"process {os.getpid()} is writing this journal"):
        SqliteJournal(path)
    journal.append([entry()])
    journal.close()
    SqliteJournal(path).close()


def test_a_reader_needs_a_journal(tmp_path: Path) -> None:
    """Reading what is not there makes nothing."""
    with pytest.raises(NotFoundError, match="there is no journal"):
        JournalReader(tmp_path / "j.db")
    assert list(tmp_path.iterdir()) == []


# --- what is refused, untouched ----------------------------------------------------------------


def refused(path: Path, words: str) -> None:
    """Opening it is refused with these words, its path and a remedy, and changes nothing."""
    before = path.read_bytes()
    for opener in (SqliteJournal, JournalReader):
        with pytest.raises(BadOutputError, match=words) as caught:
            opener(path)
        assert caught.value.subject == str(path)
        assert "nothing in it was changed" in caught.value.remedy
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A text file given by mistake stays as it is."""
    path = tmp_path / "policy.yaml"
    path.write_text("hosts:\n  - n1\n" * 200)
    refused(path, "is not a sound journal")


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    """A SQLite file of another program stays as it is."""
    path = tmp_path / "other.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE record (id INTEGER)")
    db.commit()
    db.close()
    refused(path, "is not a journal of backfill")


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    """A journal of a later version is not read by guesswork."""
    path = tmp_path / "j.db"
    SqliteJournal(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    refused(path, rf"newer backfill \(journal version {VERSION + 1}, this one reads up to {VERSION}\)")


def test_a_truncated_journal_is_refused(tmp_path: Path) -> None:
    """Half a file is damage, not an empty journal."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    journal.append(entry(text="x" * 100, i=i) for i in range(2000))
    journal.close()
    path.write_bytes(path.read_bytes()[:50_000])
    refused(path, "sound journal|damaged")


def test_a_journal_with_a_spoilt_page_is_refused(tmp_path: Path) -> None:
    """Damage in the middle is found at the start, not in the middle of an eviction."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    journal.append(entry(text="x" * 100, i=i) for i in range(2000))
    journal.close()
    data = bytearray(path.read_bytes())
    data[20_480:24_576] = b"\xff" * 4096
    path.write_bytes(data)
    refused(path, "sound journal|damaged")


def test_a_path_without_directory_is_refused(tmp_path: Path) -> None:
    """The operator is told which path cannot be written."""
    with pytest.raises(RefusedError, match="No such file or directory") as caught:
        SqliteJournal(tmp_path / "missing" / "j.db")
    assert "directory that exists" in caught.value.remedy


def test_a_refused_file_can_be_opened_after_the_remedy(tmp_path: Path) -> None:
    """A failed start holds no lock."""
    path = tmp_path / "j.db"
    path.write_text("not a journal" * 100)
    with pytest.raises(BadOutputError):
        SqliteJournal(path)
    path.unlink()
    SqliteJournal(path).close()


def test_a_bad_time_is_refused_as_a_driver_error(tmp_path: Path) -> None:
    """What SQLite itself refuses keeps the whole batch out as well."""
    journal = SqliteJournal(tmp_path / "j.db")
    with pytest.raises(RefusedError, match="NOT NULL"):
        journal.append([entry(), entry(at_s=float("nan"))])
    assert list(journal.read()) == []
    journal.close()


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    """SQLite takes a big batch back by itself then; that is not mistaken for the trouble."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append([entry()])
    assert journal._db is not None
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(RefusedError, match="the disk is full; make room"):
        journal.append(entry(text=os.urandom(500).hex(), i=i) for i in range(400))
    journal._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    journal.append([entry(i=1)])
    assert [r.id for r in journal.read()] == [1, 2]
    journal.close()


def test_awkward_paths_are_paths(tmp_path: Path) -> None:
    """Characters that mean something in a URI do not."""
    path = tmp_path / "a journal?mode=memory#100%.db"
    journal = SqliteJournal(path)
    journal.append([entry()])
    journal.close()
    assert [r.id for r in JournalReader(path).read()] == [1]
    assert path.stat().st_size > 0
