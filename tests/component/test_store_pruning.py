"""What pruning takes from a journal, and what it leaves."""

from __future__ import annotations

from pathlib import Path

from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.records import encode, remembered
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Record
from tests.component.test_store_sqlite import entry


def test_pruning_takes_old_records_but_the_last_of_each_node(tmp_path: Path) -> None:
    """Of what lives on, too, only the record that counts is older than what is kept."""
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
    assert journal.prune(50.0, 100.0) == 5
    assert [r.id for r in journal.read()] == [1, 4, 6, 9]
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
    """Thousands of old records go in several turns."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append(entry("slurm", 1.0 + i / 1e6, t="SourceFailed") for i in range(5000))
    journal.append(entry("7", 2.0, t="JobSeen") for _ in range(1300))
    journal.append([entry("7", 3.0, t="JobGone"), entry("8", 99.0, t="JobSeen")])
    assert journal.prune(50.0, 100.0) == 6301
    assert [r.id for r in journal.read()] == [6302]
    journal.close()


def test_pruning_takes_what_only_a_replay_needs(tmp_path: Path) -> None:
    """Clocks, freshness and marks of plans go by age; what was heard from a node it still has."""
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append([entry("cluster", 10.0, t="Tick"), entry("slurm", 10.0, t="SourceSeen")])
    journal.append([Record(10.0, "plan", "cluster", {"steps": 0}), entry("vn1", 10.0, t="Woken")])
    journal.append([entry("cluster", 90.0, t="Tick"), Record(90.0, "plan", "cluster", {"steps": 1})])
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
