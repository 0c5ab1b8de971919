"""Whoever follows the events goes on when an older copy of the journal was put back: its ids are lower."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.stories import Stories
from backfill.ports.storage import Record
from backfill.ui.commands.events import _asked
from backfill.ui.web.history import History
from backfill.ui.web.streaming import _events
from tests.unit.living_daemon import living, parked

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


def test_a_stream_goes_on_with_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client had seen the 500th event of the other journal; this one has two."""
    monkeypatch.setattr("backfill.ui.web.streaming._LOOK_EVERY_S", 0.0)
    closed = Record(2.0, "daemon", "cluster", {"event": "stop", "why": "SIGTERM"})
    teller: Any = Teller([_START, _START], [closed])

    async def first() -> str:
        events = _events(teller, 500)
        async for text in events:
            if text.startswith("id: "):
                await events.aclose()  # type: ignore[attr-defined]  # it is a generator
                return text
        raise AssertionError

    assert asyncio.run(asyncio.wait_for(first(), 30.0)).startswith("id: 3\n")


def test_the_command_goes_on_likewise() -> None:
    journal = MemoryJournal()
    journal.append([_START, _START])
    assert _asked(lambda question, **body: Stories(journal).events(body), 500, 50) == ([], 2)
    found, last_id = _asked(lambda question, **body: Stories(journal).events(body), 0, 50)
    assert ([event["id"] for event in found], last_id) == ([1, 2], 2)
