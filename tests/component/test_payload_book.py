"""What pilots have brought: by the pool's account, with our reasons for what was lost, over restarts."""

from __future__ import annotations

from typing import Any

from backfill.core.model.changes import Change, PayloadEnded, WorkLost
from backfill.core.model.records import encode
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.payload_book import PayloadBook
from backfill.ports.pools import PayloadRun
from backfill.ports.storage import Record
from tests.component.test_loss_book import NOON_S

DAY_S = 86400.0


def run(number: int, *, pilot: str = "7", at_s: float = NOON_S, done: bool = True) -> PayloadRun:
    return PayloadRun(f"ap#{number}.0#1", pilot, "vn1", at_s, 60.0, done)


def lost(pilot: str = "7", at_s: float = NOON_S, cause: str = "patience") -> WorkLost:
    return WorkLost(pilot, 0, "vn1", at_s, "pilots", cause, 100.0)


def told(book: PayloadBook) -> tuple[Any, Any]:
    answer: Any = book.told()
    return answer["days"], answer["pilots"]


def test_payloads_that_are_done_are_counted_by_pilot_and_day() -> None:
    """Each once, however often the pool tells of it; those of other pools' machines are left out."""
    book = PayloadBook()
    runs = [run(1), run(2, pilot="8"), run(3, at_s=NOON_S + DAY_S), run(4, pilot="")]
    assert len(list(book.news(runs, NOON_S))) == 3
    assert list(book.news(runs, NOON_S)) == []
    days, pilots = told(book)
    assert [(d["day"], d["done"], d["worked_s"]) for d in days] == [
        ("2026-11-25", 1, 60.0),
        ("2026-11-24", 2, 120.0),
    ]
    assert {p["pilot"]: p["done"] for p in pilots} == {"7": 2, "8": 1}


def test_what_was_lost_has_our_reason_or_was_not_by_us() -> None:
    """Told by the pool before we know of it, or after; and what its owner removed is not ours."""
    book = PayloadBook()
    ended = [run(1, done=False), run(2, pilot="8", done=False), run(3, pilot="9", done=False)]
    list(book.news(ended, NOON_S))
    book.lost(lost(at_s=NOON_S + 30.0))
    book.lost(lost("8", NOON_S - 5.0, "ladder"))
    book.lost(lost("9", NOON_S - DAY_S))
    days, pilots = told(book)
    one = {"runs": 1, "s": 60.0}
    assert days[0]["lost"] == {"ladder": one, "not by us": one, "patience": one}
    assert {p["pilot"]: list(p["lost"]) for p in pilots} == {
        "7": ["patience"],
        "8": ["ladder"],
        "9": ["not by us"],
    }


def test_a_pilot_of_an_array_is_known_to_its_pool_by_its_number() -> None:
    """Slurm shows a task as 100_3, and tells its script 103; the journal keeps both."""
    book, journal = PayloadBook(), MemoryJournal()
    ours = WorkLost("100_3", 0, "vn1", NOON_S, "pilots", "patience", 100.0, 103)
    changes: list[Change] = [*book.news([run(1, pilot="103", done=False)], NOON_S), ours]
    journal.append([Record(NOON_S, "change", "7", encode(change)) for change in changes])
    book.lost(ours)
    again = PayloadBook()
    again.recall(journal)
    for one in (book, again):
        assert list(told(one)[0][0]["lost"]) == ["patience"]


def test_the_book_outlives_the_daemon() -> None:
    """The journal has all of it, and nothing is booked a second time."""
    book, journal = PayloadBook(), MemoryJournal()
    changes: list[Change] = [*book.news([run(1), run(2, done=False)], NOON_S), lost()]
    journal.append([Record(NOON_S, "change", "7", encode(change)) for change in changes])
    again = PayloadBook()
    again.recall(journal)
    book.lost(lost())
    assert again.told() == book.told()
    assert list(again.news([run(1), run(2, done=False)], NOON_S)) == []


def test_counters_wait_until_the_reason_is_known() -> None:
    """What is done counts at once; what was lost a little later, as a counter cannot be put right."""
    book = PayloadBook()
    list(book.news([run(1), run(2, pilot="8", done=False)], NOON_S))
    assert counted(book, NOON_S + 10.0) == {"done": (1.0, 60.0)}
    book.lost(lost("8", NOON_S + 5.0, "warned"))
    expected = {"done": (1.0, 60.0), "warned": (1.0, 60.0)}
    assert counted(book, NOON_S + 301.0) == expected
    assert counted(book, NOON_S + 900.0) == expected


def test_sums_do_not_wait_for_anybody_to_read_the_counters() -> None:
    """A day's runs are summed up as they end; what is not yet decided is told all the same."""
    book = PayloadBook()
    for number in range(100):
        at_s = NOON_S + 60 * number
        list(book.news([run(number, done=number % 2 == 0, at_s=at_s)], at_s))
        book.lost(lost(at_s=at_s))
        book.settle(at_s)
    assert len(book._open) == 15
    days, pilots = told(book)
    assert (days[0]["done"], days[0]["lost"]["patience"]["runs"]) == (50, 50)
    assert pilots == [{"pilot": "7", **{k: v for k, v in days[0].items() if k != "day"}}]
    book.settle(NOON_S + 8000)
    assert book._open == []
    assert told(book) == (days, pilots)
    assert counted(book, NOON_S + 8000) == {"done": (50.0, 3000.0), "patience": (50.0, 3000.0)}


def test_a_run_of_which_we_hear_late_still_gets_our_reason() -> None:
    """The pool may tell of it an hour later, before Slurm is heard again; a counter waits a little for it."""
    for reason_after_s, in_counters in ((2.0, "evicted"), (1000.0, "not by us")):
        book, heard_s = PayloadBook(), NOON_S + 3600.0
        list(book.news([run(1, done=False)], heard_s))
        book.settle(heard_s)
        book.settle(heard_s + reason_after_s)
        book.lost(lost(at_s=NOON_S + 10.0, cause="evicted"))
        assert counted(book, heard_s + 1000.0) == {in_counters: (1.0, 60.0)}
        for later_s in (1000.0, 7000.0):
            book.settle(heard_s + later_s)
            assert told(book)[0][0]["lost"] == {"evicted": {"runs": 1, "s": 60.0}}


def test_a_long_journal_is_summed_up_as_it_is_read() -> None:
    """Only the lost runs of its last half hour are kept, each with its reason."""
    book, journal = PayloadBook(), MemoryJournal()
    for number in range(1000):
        at_s = NOON_S + 6 * number
        pilot = str(number % 20)
        change = PayloadEnded(str(number), pilot, "vn1", at_s, 60.0, number % 2 == 0)
        journal.append([Record(at_s, "change", pilot, encode(change))])
        journal.append([Record(at_s + 5.0, "change", pilot, encode(lost(pilot, at_s=at_s)))])
    book.recall(journal)
    assert len(book._open) < 170
    days, _ = told(book)
    assert (days[0]["done"], days[0]["lost"]["patience"]["runs"]) == (500, 500)
    assert counted(book, NOON_S + 10000.0) == {}


def test_the_pilots_whose_runs_ended_last_are_told() -> None:
    """Five hundred of them, the latest first."""
    book = PayloadBook()
    for number in range(510):
        list(book.news([run(number, pilot=str(number), at_s=NOON_S + number)], NOON_S + number))
    list(book.news([run(510, pilot="20", at_s=NOON_S + 510)], NOON_S + 510))
    book.settle(NOON_S + 510)
    _, pilots = told(book)
    assert [p["pilot"] for p in pilots] == [
        "20",
        *(str(n) for n in range(509, 20, -1)),
        *map(str, range(19, 9, -1)),
    ][:500]


def counted(book: PayloadBook, clock_s: float) -> dict[str, tuple[float, float]]:
    """Runs and seconds by outcome."""
    runs, seconds = ({s[1]["outcome"]: s[2] for s in one["samples"]} for one in answers(book, clock_s))
    return {outcome: (count, seconds[outcome]) for outcome, count in runs.items()}


def answers(book: PayloadBook, clock_s: float) -> Any:
    return book.counters(clock_s)
