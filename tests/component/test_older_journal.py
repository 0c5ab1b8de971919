"""Whoever follows the events goes on when an older copy of the journal was put back: its ids are lower."""

from __future__ import annotations

import asyncio
import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest

from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.stories import Stories, _Budget
from backfill.ports.storage import Journal, Record, RecordWindow
from backfill.ui.cli import main
from backfill.ui.client import AskError
from backfill.ui.commands.events import _asked
from backfill.ui.parser import UNAVAILABLE
from backfill.ui.restored import TOLD, LastRead, place_in_copy
from backfill.ui.web.history import History
from backfill.ui.web.streaming import _events
from tests.component.living_daemon import living, parked

_START = Record(1.0, "daemon", "cluster", {"event": "start", "managed": 0})


class Teller:
    """Asks a journal as the web service asks the daemon; `coming` is written after each question."""

    def __init__(self, records: Sequence[Record], coming: Sequence[Record] = ()) -> None:
        self.journal = MemoryJournal()
        self.journal.append(records)
        self._coming = iter(coming)

    async def ask(self, question: str, **body: object) -> dict[str, Any]:
        """Only events are asked for."""
        told = Stories(self.journal).events(body)
        if (record := next(self._coming, None)) is not None:
            self.journal.append([record])
        return told

    async def shared(self, question: str, **body: object) -> dict[str, Any]:
        """The same for all; of hosts and status hardly anything."""
        return (
            {"hosts": [], "now_s": 5000.0} if question in ("hosts", "status") else await self.ask("", **body)
        )


def _drawn(history: History, teller: Any) -> bytes:
    return asyncio.run(history.told(teller)).body


def test_the_timelines_begin_anew(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They show what the copy tells, and what comes after it, as if there had never been another one."""
    monkeypatch.setattr("backfill.ui.web.history._TOLD_EVERY_S", -1.0)
    with living(tmp_path) as daemon:
        parked(daemon)
        records = [*daemon.journal.read()]
    history = History()
    before = _drawn(history, Teller([*records, *[_START] * 100]))
    copy = Teller(records[: len(records) // 2])
    after = _drawn(history, copy)
    assert after == _drawn(History(), copy) != before
    copy.journal.append(records[len(records) // 2 :])
    assert _drawn(history, copy) == _drawn(History(), copy) != after


def test_the_timelines_begin_anew_however_far_the_copy_has_grown(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody looked it had more records than were read: what is between is missed by no one."""
    monkeypatch.setattr("backfill.ui.web.history._TOLD_EVERY_S", -1.0)
    with living(tmp_path) as daemon:
        parked(daemon)
        records = [*daemon.journal.read()]
    history, read = History(), records[: len(records) // 2]
    before = _drawn(history, Teller(read))
    later = [replace(record, at_s=record.at_s + 100.0) for record in records]
    copy = Teller([*records[: len(records) // 4], *later])
    assert _drawn(history, copy) == _drawn(History(), copy) != before


_STOP = Record(2.0, "daemon", "cluster", {"event": "stop", "why": "SIGTERM"})


def _streamed(teller: Any, last: LastRead, most: int) -> list[tuple[str, Any]]:
    """The first events of a stream: its kind or id, and what it says."""

    async def told() -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        events = _events(teller, last, last.id)
        async for text in events:
            head, _, data = text.strip().partition("\ndata: ")
            if data:
                found.append((head.removeprefix("event: ").removeprefix("id: ").split("\n")[0], data))
            if len(found) == most:
                break
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        return found

    return asyncio.run(asyncio.wait_for(told(), 30.0))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backfill.ui.web.streaming._LOOK_EVERY_S", 0.0)


def _then(at_s: float) -> Record:
    return replace(_STOP, at_s=at_s)


@pytest.mark.usefixtures("quick")
def test_a_stream_begins_again_with_a_sign() -> None:
    """Its client had seen the 500th event of the other journal, nobody knows when; this one has two."""
    (sign, said), *events = _streamed(Teller([_START, _START], [_STOP]), LastRead(500), 4)
    assert (sign, json.loads(said)) == ("restored", {"text": TOLD, "after": 0})
    assert [number for number, _ in events] == ["1-1000", "2-1000", "3-2000"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("grown", [0, 10])
def test_a_stream_goes_on_with_what_came_since_then(grown: int) -> None:
    """However far the copy has grown meanwhile: what was not seen has its ids, and is later."""
    copy = [_then(at_s) for at_s in (1.0, 2.0, 3.0)]  # it had 5 when its client was gone, the last at 5 s
    later = [_then(6.0 + at_s) for at_s in range(1 + grown)]
    (sign, _), *events = _streamed(Teller([*copy, *later]), LastRead.read("5-5000"), 1 + len(later))
    assert sign == "restored"
    assert [number for number, _ in events] == [f"{4 + n}-{6000 + 1000 * n}" for n in range(len(later))]
    assert _streamed(Teller([*copy, *later]), LastRead.read("3-3000"), 1)[0][0] == "4-6000"
    assert _streamed(Teller([*copy, *later]), LastRead.read("3"), 1)[0][0] == "4-6000"


class Shortened(MemoryJournal):
    """Of whose records the first ones are kept no longer."""

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        return super().page(replace(window, after_id=max(window.after_id, 3)), most, most_bytes)


@pytest.mark.usefixtures("quick")
def test_a_stream_goes_on_behind_what_is_kept_no_longer() -> None:
    """What its client read last is gone for its age: no copy was put back."""
    teller = Teller([])
    teller.journal = Shortened()
    teller.journal.append(_then(at_s) for at_s in range(1, 6))
    assert [number for number, _ in _streamed(teller, LastRead.read("2-2000"), 2)] == ["4-4000", "5-5000"]


_MANY = 40_000  # events, one a second


def _place(journal: Journal, last: str) -> tuple[int | None, int]:
    """Where a follower goes on who read that last, and how many questions that took."""
    questions, asked = place_in_copy(LastRead.read(last)), 1
    question = next(questions)
    while True:
        try:
            question = questions.send(Stories(journal).events({**question}))
        except StopIteration as end:
            return end.value, asked
        asked += 1


@pytest.fixture(scope="module")
def long_journal() -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(_then(at_s) for at_s in range(1, _MANY + 1))
    return journal


@pytest.mark.parametrize(
    ("last", "place", "most"),
    [
        ("39000-1", 0, 2),
        ("39000-999", 0, 2),
        ("999999999999999999-7", 0, 2),
        ("39000-999999999999999999", 38_999, 3),
        ("999999999999999999-999999999999999999", _MANY, 3),
        ("39000-777000", 777, 10),
        ("999999999999999999-1000", 1, 10),
        ("999999999999999999-20000500", 20_000, 10),
        ("39000-39000000", None, 1),
        ("39000", None, 1),
        ("999999999999999999", _MANY - 1000, 2),
    ],
)
def test_an_event_that_never_was_costs_few_questions(
    last: str, place: int | None, most: int, long_journal: MemoryJournal
) -> None:
    """Anybody who may read can make up what they read last. An event that exists is recognised by the first
    question."""
    found, asked = _place(long_journal, last)
    assert found == place
    assert asked <= most


@pytest.mark.parametrize("kept", [1, 999, 17_321, 38_999])
@pytest.mark.parametrize("grown", [1, 5000, 20_000])
def test_the_place_in_a_copy_is_found_however_much_it_lacks(kept: int, grown: int) -> None:
    """Of 39000 events that were read, so many were in it, and so many came since."""
    copy = MemoryJournal()
    copy.append(_then(at_s) for at_s in range(1, kept + 1))
    copy.append(_then(50_000.0 + at_s) for at_s in range(grown))
    found, asked = _place(copy, "39000-39000000")
    assert found == kept
    assert asked <= 10


_READ = 3_000_000  # as many events as some years have


class Counted(MemoryJournal):
    """A copy with these ids, of which those up to `kept` were read. What it has is made when it is read."""

    def __init__(self, ids: Sequence[int], kept: int) -> None:
        super().__init__()
        self._ids, self._kept = ids, kept

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        start = bisect_right(self._ids, window.after_id)
        end = bisect_left(self._ids, window.before_id) if window.before_id else len(self._ids)
        ids = self._ids[start:end]
        found = ids[-most:][::-1] if window.newest else ids[:most]
        return [self._made(number) for number in found]

    def _made(self, number: int) -> Record:
        return replace(_then(float(number) + (number > self._kept) * 2 * _READ), id=number)


@pytest.fixture(scope="module")
def gaps() -> Sequence[int]:
    """Twenty thousand ids are missing after each ten thousand."""
    return array("q", chain.from_iterable(range(n, n + 10_000) for n in range(1, _READ, 30_000)))


@pytest.mark.parametrize("kept", [1, 777_777, 1_500_000, _READ - 4123, _READ - 1])
@pytest.mark.parametrize("kind", ["dense", "gaps", "sparse"])
@pytest.mark.parametrize("last", [f"{_READ}-{_READ}000", f"999999999999999999-{_READ}000"])
def test_nothing_is_told_twice_however_long_the_journal_is(
    kept: int, kind: str, last: str, gaps: Sequence[int]
) -> None:
    """What the copy lacks begins anywhere, and an id that never was makes it no longer."""
    ids = {"dense": range(1, _READ + 1), "gaps": gaps, "sparse": range(1, _READ + 1, 3001)}[kind]
    found, asked = _place(Counted(ids, kept), last)
    assert found == ids[bisect_right(ids, kept) - 1]
    assert asked <= 4 + 12  # of which 12 halve what there is


def test_nothing_is_left_out_where_few_records_are_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question may find none in all that it reads. What was read already then comes again."""
    copy, kept = MemoryJournal(), 6000
    silent = Record(1.0, "of a later version", "vn1", {})
    copy.append(_then(at) if at % 2000 == 1 else replace(silent, at_s=float(at)) for at in range(1, kept + 1))
    copy.append([_then(90_000.0), *[replace(silent, at_s=90_001.0)] * 3000])
    monkeypatch.setattr("backfill.engine.stories._Budget", partial(_Budget, 2))
    found, asked = _place(copy, "8000-8000000")
    assert found is not None
    assert 0 < found <= kept
    assert asked <= 10


class Restarted(Teller):
    """Where the daemon is gone once, and another journal is there when it is back."""

    def __init__(self, before: Sequence[Record], after: Sequence[Record]) -> None:
        super().__init__(before)
        self._after = after
        self._looks = 0

    async def ask(self, question: str, **body: object) -> dict[str, Any]:
        """The same, until three questions were asked."""
        self._looks += 1
        if self._looks == 4:
            self.journal = MemoryJournal()
            self.journal.append(self._after)
            raise AskError("no daemon answers", UNAVAILABLE)
        return await super().ask(question, **body)


@pytest.mark.usefixtures("quick")
def test_a_stream_that_goes_on_is_told_too() -> None:
    """Its service has lost the daemon for a moment, and finds as many events as there were, of which the
    last two are others."""
    before = [_then(at_s) for at_s in (1.0, 2.0, 3.0, 4.0)]
    teller = Restarted(before, [*before[:2], _then(9.0), _then(10.0)])
    told = [number for number, _ in _streamed(teller, LastRead(2), 6)]
    assert told == ["3-3000", "4-4000", "trouble", "restored", "3-9000", "4-10000"]


def test_the_command_goes_on_likewise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`events --follow`: a word on stderr, and what came since then."""
    before = [_then(at_s) for at_s in (1.0, 2.0, 3.0, 4.0)]
    teller = Restarted(before, [*before[:2], _then(9.0), _then(10.0)])

    left = iter(range(8))

    def ask(_: object, question: str, **body: object) -> dict[str, Any]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return asyncio.run(teller.ask(question, **body))

    monkeypatch.setattr("backfill.ui.commands.events._LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("backfill.ui.client.Client.ask_exactly", ask)
    assert main(["events", "--follow", "--json", "--after", "2"]) == 130
    shown = capsys.readouterr()
    at = [(event["id"], event["at_s"]) for event in map(json.loads, shown.out.splitlines())]
    assert at == [(3, 3.0), (4, 4.0), (3, 9.0), (4, 10.0)]
    assert shown.err.splitlines()[-1] == f"backfill: {TOLD}"
    left = iter(range(1))
    assert main(["events", "--json", "--after", "500"]) == 0
    assert "the journal ends at 4: an older copy was put back, or" in capsys.readouterr().err


def test_the_command_says_why_it_has_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon that is too busy is not gone: nobody has to look for what ended it."""
    teller, busy = Teller([_START, _then(2.0)]), {"error": "the daemon was too busy", "kind": "busy"}
    coming = iter([None, AskError(busy["error"], UNAVAILABLE, busy), None])

    def ask(_: object, question: str, **body: object) -> dict[str, Any]:
        if isinstance(error := next(coming, KeyboardInterrupt()), BaseException):
            raise error
        return asyncio.run(teller.ask(question, **body))

    monkeypatch.setattr("backfill.ui.commands.events._LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("backfill.ui.client.Client.ask_exactly", ask)
    assert main(["events", "--follow", "--json"]) == 130
    assert "backfill: the daemon was too busy; waiting until it answers" in capsys.readouterr().err


def test_the_command_reads_all_there_is() -> None:
    journal = MemoryJournal()
    journal.append([_START, _START])
    assert _asked(lambda question, **body: Stories(journal).events(body), 500, 50) == ([], 500, 2)
    found, *read = _asked(lambda question, **body: Stories(journal).events(body), 0, 50)
    assert ([event["id"] for event in found], read) == ([1, 2], [2, 2])
