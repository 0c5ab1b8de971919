"""The journal's file: what survives, who may write, and what is refused untouched."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backfill.core import changes as ch
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.records import encode, remembered
from backfill.drivers.store.sqlite import JournalReader, SqliteJournal
from backfill.ports import BadOutputError, BusyError, NotFoundError, Record, RefusedError

_WRITE_FOR_EVER = """
import sys
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.core import changes as ch
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.records import encode, remembered
from backfill.ports import Record
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
    db.execute("PRAGMA user_version = 2")
    db.close()
    refused(path, r"newer backfill \(journal version 2, this one reads up to 1\)")


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


def test_awkward_paths_are_paths(tmp_path: Path) -> None:
    """Characters that mean something in a URI do not."""
    path = tmp_path / "a journal?mode=memory#100%.db"
    journal = SqliteJournal(path)
    journal.append([entry()])
    journal.close()
    assert [r.id for r in JournalReader(path).read()] == [1]
    assert path.stat().st_size > 0


# --- pruning -----------------------------------------------------------------------------------


def test_pruning_takes_old_records_of_ended_subjects_only(tmp_path: Path) -> None:
    """A living node keeps its whole story; of an ended one the old part goes."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append(
        [
            entry("vn1", 10.0, t="NodeManaged"),  # 1: lives on
            entry("vn2", 10.0, t="NodeManaged"),  # 2: ended below
            entry("vn2", 20.0, t="NodeForgotten"),  # 3
            entry("vn2", 30.0, t="NodeManaged"),  # 4: its next life
            entry("17", 40.0, t="JobSeen"),  # 5: ended too lately
            entry("17", 95.0, t="JobGone"),  # 6
            entry("18", 40.0, t="JobSeen"),  # 7
            entry("18", 41.0, t="JobGone"),  # 8
            entry("17", 96.0, t="JobSeen"),  # 9
        ]
    )
    assert journal.prune(50.0, 100.0) == 3
    assert [r.id for r in journal.read()] == [1, 3, 4, 5, 6, 9]
    assert journal.prune(50.0, 100.0) == 0
    journal.close()


def test_pruning_keeps_what_a_restarted_daemon_needs(tmp_path: Path) -> None:
    """The last generation of a name, so that it is never used twice, and what a person closed."""
    journal = SqliteJournal(tmp_path / "j.db")
    told = [
        ch.HoldSet("vn1", 1.0, True, "its disk is slow"),
        ch.NodeManaged(ManagedNode("vn1", "10.0.0.1/8", "bm1", 7, Phase.REMOVING, 2.0, 2.0)),
        ch.NodeForgotten("vn1", 7),
    ]
    journal.append(Record(2.0, "change", "vn1", encode(change)) for change in told)
    assert journal.prune(50.0, 100.0) == 1
    assert remembered(r.body for r in journal.read()) == [told[0], told[2]]
    journal.close()


def test_pruning_much_takes_one_look_at_it(tmp_path: Path) -> None:
    """Thousands of old records of a subject that lives, and others that go in several turns."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append(entry("slurm", 1.0 + i / 1e6, t="SourceFailed") for i in range(5000))
    journal.append(entry("7", 2.0, t="JobSeen") for _ in range(1300))
    journal.append([entry("7", 3.0, t="JobGone"), entry("8", 99.0, t="JobSeen")])
    assert journal.prune(50.0, 100.0) == 1301
    assert sum(1 for _ in journal.read()) == 5001
    journal.close()


def test_pruning_takes_what_only_a_replay_needs(tmp_path: Path) -> None:
    """Clocks, freshness and marks of plans have no end of their own: they go by age."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append([entry("cluster", 10.0, t="Tick"), entry("slurm", 10.0, t="SourceSeen")])
    journal.append([Record(10.0, "plan", "cluster", {"steps": 0}), entry("vn1", 10.0, t="Woken")])
    journal.append(
        [entry("cluster", 90.0, t="Tick"), Record(90.0, "plan", "cluster", {"steps": 1})]
    )
    assert journal.prune(50.0, 100.0) == 3
    assert [r.id for r in journal.read()] == [4, 5, 6]
    journal.close()


def test_ids_are_not_used_again_after_pruning(tmp_path: Path) -> None:
    """A reader that remembers the last id never misses a record."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    journal.append([entry("17", 1.0, t="JobSeen"), entry("17", 2.0, t="JobGone")])
    assert journal.prune(1.0, 100.0) == 2
    journal.close()
    journal = SqliteJournal(path)
    journal.append([entry()])
    assert [r.id for r in journal.read()] == [3]
    journal.close()


def test_pruning_shrinks_the_file(tmp_path: Path) -> None:
    """The point of pruning is room on the disk."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    journal.append(entry("17", 1.0, t="JobSeen", text="x" * 200) for _ in range(5000))
    journal.append([entry("17", 2.0, t="JobGone")])
    journal.prune(10.0, 100.0)
    assert path.stat().st_size < 100_000
    journal.close()
