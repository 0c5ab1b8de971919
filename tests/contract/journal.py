"""What every Journal must do; a test class inherits this and provides `journal`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from backfill.ports.storage import Journal, Record, RecordWindow


def entry(subject: str = "vn1", at_s: float = 1.0, **body: object) -> Record:
    return Record(at_s, "change", subject, body)


class JournalContract:
    """Shared by the journal in memory and the one in a file."""

    def test_a_new_journal_is_empty(self, journal: Journal) -> None:
        """Nothing was appended, so nothing is read."""
        assert list(journal.read()) == []

    def test_what_was_appended_is_read_in_order(self, journal: Journal) -> None:
        """Records come back as they went in, numbered upwards from 1."""
        journal.append([entry(i=1), entry("n1", 2.5, i=2)])
        journal.append([entry(i=3)])
        found = list(journal.read())
        assert [r.id for r in found] == [1, 2, 3]
        assert [r.body["i"] for r in found] == [1, 2, 3]
        assert found[1] == Record(2.5, "change", "n1", {"i": 2}, 2)

    def test_the_number_of_an_appended_record_is_the_journals_own(self, journal: Journal) -> None:
        """A record read elsewhere and appended again gets a new id."""
        journal.append([Record(1.0, "change", "vn1", {}, id=77)])
        assert [r.id for r in journal.read()] == [1]

    def test_appending_nothing_is_allowed(self, journal: Journal) -> None:
        """A cycle without news appends an empty batch."""
        journal.append([])
        assert list(journal.read()) == []

    def test_it_tells_its_size(self, journal: Journal) -> None:
        """It takes more with what was appended."""
        before = journal.size_bytes()
        journal.append([entry(text=f"{i} {i * 7919}" * 40) for i in range(200)])
        assert journal.size_bytes() > before

    def test_an_iterator_can_be_appended(self, journal: Journal) -> None:
        """Records may come from a generator."""
        journal.append(entry(i=i) for i in range(3))
        assert [r.body["i"] for r in journal.read()] == [0, 1, 2]

    def test_a_bad_record_keeps_its_whole_batch_out(self, journal: Journal) -> None:
        """All of a batch is stored, or none of it."""
        journal.append([entry(i=1)])
        with pytest.raises(TypeError):
            journal.append([entry(i=2), entry(bad=object()), entry(i=3)])
        journal.append([entry(i=4)])
        assert [r.body["i"] for r in journal.read()] == [1, 4]
        assert [r.id for r in journal.read()] == [1, 2]

    def test_pages_are_bounded_and_go_both_ways(self, journal: Journal) -> None:
        """By number and by size, of one subject or of all, between two ids; one always fits."""
        journal.append([entry("vn1" if i % 2 else "vn2", i=i, text="x" * 100) for i in range(1, 8)])

        def page(most: int = 99, most_bytes: int = 1 << 20, **window: Any) -> list[int]:
            return [r.id for r in journal.page(RecordWindow(**window), most, most_bytes)]

        assert page() == [1, 2, 3, 4, 5, 6, 7]
        assert page(2) == [1, 2]
        assert page(2, after_id=2) == [3, 4]
        assert page(2, newest=True) == [7, 6]
        assert page(2, newest=True, before_id=6) == [5, 4]
        assert page(subject="vn1") == [1, 3, 5, 7]
        assert page(1, subject="vn1", newest=True, before_id=7) == [5]
        assert page(after_id=2, before_id=5) == [3, 4]
        assert page(most_bytes=1) == [1]
        assert page(most_bytes=150) == [1, 2]
        assert page(after_id=7) == []
        assert journal.page(RecordWindow(after_id=6), 9, 999) == list(journal.read(after_id=6))

    def test_a_failing_iterator_stores_nothing(self, journal: Journal) -> None:
        """An error while the batch is being made leaves the journal as it was."""

        def broken() -> Iterator[Record]:
            yield entry(i=1)
            raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            journal.append(broken())
        assert list(journal.read()) == []

    def test_reading_goes_on_after_an_id(self, journal: Journal) -> None:
        """A reader that has seen record 2 asks for what came later."""
        journal.append(entry(i=i) for i in range(1, 5))
        assert [r.id for r in journal.read(after_id=2)] == [3, 4]
        assert list(journal.read(after_id=4)) == []
        assert list(journal.read(after_id=400)) == []

    def test_one_subject_can_be_read_alone(self, journal: Journal) -> None:
        """The story of a node is its own records, with their ids in the whole journal."""
        journal.append([entry("vn1"), entry("vn2"), entry("vn1")])
        assert [r.id for r in journal.read(subject="vn1")] == [1, 3]
        assert [r.id for r in journal.read(after_id=1, subject="vn1")] == [3]
        assert list(journal.read(subject="vn")) == []

    def test_types_can_be_read_alone(self, journal: Journal) -> None:
        """What a restarted daemon needs is little of it."""
        journal.append(entry(f"s{i % 2}", t=("Job", "Node", "Job")[i % 3]) for i in range(1203))
        nodes = [r.id for r in journal.read(types={"Node", "Hold"})]
        assert nodes == list(range(2, 1204, 3))
        assert [r.id for r in journal.read(after_id=2, subject="s1", types=["Node"])] == nodes[2::2]
        assert list(journal.read(types=["Nothing"])) == []

    def test_more_records_than_one_page_are_read_completely(self, journal: Journal) -> None:
        """Long journals are read in pieces without a seam."""
        journal.append(entry(f"s{i % 2}", i=i) for i in range(2501))
        assert [r.body["i"] for r in journal.read()] == list(range(2501))
        assert [r.body["i"] for r in journal.read(subject="s1")] == list(range(1, 2501, 2))

    def test_reading_ends_where_the_journal_ended_when_it_began(self, journal: Journal) -> None:
        """A reader does not run after a writer for ever, and does not disturb it."""
        journal.append(entry(i=i) for i in range(1200))
        reading = iter(journal.read())
        first = next(reading)
        journal.append([entry(i=-1)])
        assert [first.id, *(r.id for r in reading)] == list(range(1, 1201))

    def test_threads_append_without_loss(self, journal: Journal) -> None:
        """Four threads append batches; every batch is whole and every id is used once."""

        def work(name: str) -> None:
            for i in range(20):
                journal.append([entry(name, i=i, half=0), entry(name, i=i, half=1)])

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = list(journal.read())
        assert [r.id for r in found] == list(range(1, 161))
        for first, second in zip(found[::2], found[1::2], strict=True):
            assert (first.subject, first.body["i"]) == (second.subject, second.body["i"])
            assert (first.body["half"], second.body["half"]) == (0, 1)

    def test_the_body_is_a_copy(self, journal: Journal) -> None:
        """Changing a body afterwards does not change what was written."""
        body: dict[str, object] = {"i": 1}
        journal.append([Record(1.0, "change", "vn1", body)])
        body["i"] = 2
        assert [r.body for r in journal.read()] == [{"i": 1}]

    def test_a_closed_journal_takes_and_gives_nothing(self, journal: Journal) -> None:
        """Closing twice is allowed; using it afterwards is a programmer's error."""
        journal.close()
        journal.close()
        with pytest.raises(ValueError, match="closed"):
            journal.append([entry()])
        with pytest.raises(ValueError, match="closed"):
            list(journal.read())
