"""The journal's disk hangs: whoever appends goes on, and each record is stored once in the end."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from backfill.drivers.store.memory import MemoryJournal
from backfill.drivers.store.prompt import PromptJournal
from backfill.ports.errors import DriverError, RefusedError, UnreachableError
from backfill.ports.storage import Record

SOON_S = 0.05  # for what never answers


class Disk(MemoryJournal):
    """A journal whose disk may hang, and fail when it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Event()
        self.turns.set()
        self.fails: DriverError | None = None
        self.asked = 0

    def append(self, records: Iterable[Record]) -> None:
        self.asked += 1
        assert self.turns.wait(60)
        if self.fails is not None:
            raise self.fails
        super().append(records)


def entry(number: int) -> Record:
    return Record(1.0, "change", "vn1", {"i": number})


def numbers(disk: Disk) -> list[object]:
    return [record.body["i"] for record in disk.read()]


def turn(disk: Disk, journal: PromptJournal) -> None:
    """The disk answers again, and what waited for it has ended."""
    disk.turns.set()
    late = journal._late
    assert late is not None
    assert late.ended.wait(60)


def hanging() -> tuple[Disk, PromptJournal, list[Record]]:
    """A journal with one record, of which the second hangs."""
    disk = Disk()
    journal = PromptJournal(disk, "/var/lib/backfill/journal.db", SOON_S)
    PromptJournal(disk, "", within_s=60.0).append([entry(1)])
    disk.turns.clear()
    told = [entry(2)]
    with pytest.raises(UnreachableError, match=r"journal\.db: its disk did not answer within 0\.05 s"):
        journal.append(told)
    return disk, journal, told


def test_nobody_waits_twice_for_a_disk_that_hangs() -> None:
    """The second try fails at once, and asks the disk for nothing more."""
    disk, journal, told = hanging()
    journal._within_s = 600.0
    with pytest.raises(UnreachableError):
        journal.append([*told, entry(3)])
    assert disk.asked == 2
    disk.turns.set()


def test_what_comes_late_is_stored_once_and_in_order() -> None:
    """The cycle tries again with all that it could not write, and what was added since."""
    disk, journal, told = hanging()
    told = [*told, entry(3), entry(4)]
    with pytest.raises(UnreachableError):
        journal.append(told)
    turn(disk, journal)
    journal._within_s = 60.0
    journal.append(told)
    assert numbers(disk) == [1, 2, 3, 4]
    journal.append([entry(5)])
    assert numbers(disk) == [1, 2, 3, 4, 5]


def test_a_disk_that_fails_in_the_end_has_stored_nothing_of_it() -> None:
    """All of it is written when it can be."""
    disk, journal, told = hanging()
    disk.fails = RefusedError("journal", "the disk is full")
    turn(disk, journal)
    journal._within_s = 60.0
    with pytest.raises(RefusedError):
        journal.append([*told, entry(3)])
    disk.fails = None
    journal.append([*told, entry(3)])
    assert numbers(disk) == [1, 2, 3]


def test_records_that_were_thinned_out_meanwhile_are_stored_once() -> None:
    """When too much waits the cycle keeps what matters: the rest of a late batch stays as it is."""
    disk = Disk()
    journal = PromptJournal(disk, "j", SOON_S)
    disk.turns.clear()
    told = [entry(1), entry(2), entry(3)]
    with pytest.raises(UnreachableError):
        journal.append(told)
    turn(disk, journal)
    journal._within_s = 60.0
    journal.append([told[0], told[2], entry(4)])
    assert numbers(disk) == [1, 2, 3, 4]


def test_a_daemon_that_ends_does_not_wait_for_its_disk() -> None:
    """Nor is the file closed under the hand that still writes."""
    disk, journal, _ = hanging()
    journal.close()
    turn(disk, journal)
    assert numbers(disk) == [1, 2]
