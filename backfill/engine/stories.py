"""Reads the journal for people: events in order of time, and the story of one subject.

The journal may have millions of records, and anybody on the machine may ask. So each question reads
pages of it until it has what was asked for, or has read enough: then it says so, and from where the
next question can go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from backfill.engine.narrate import story_line
from backfill.ports.storage import Journal, Record, RecordWindow

Body = dict[str, object]

MOST_EVENTS, ANSWER_BYTES = 1000, 1 << 21
# What one question reads at most, whatever it finds there: so many pages of so much. After each the
# reader rests as long as that took: Python has one lock for all, the daemon's own thread included.
PAGES, PAGE, PAGE_BYTES, WITHIN_S = 50, 200, 1 << 17, 5.0
_REST_S = 0.001  # at least
_STORY_LINES = 200


@dataclass(slots=True)
class _Budget:
    """The reading that one query may still do."""

    pages: int = PAGES
    until_s: float = field(default_factory=lambda: time.monotonic() + WITHIN_S)
    more: bool = True  # there may be records that were not read
    last_id: int = 0  # of the record that was read last

    @property
    def over(self) -> bool:
        return self.pages <= 0 or time.monotonic() > self.until_s


class Stories:
    """Reads the journal in the thread of who asks, beside the daemon's own, which never waits."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def events(self, body: Body) -> Body:
        """At most `limit` journal lines, oldest first: those after `after` (an id), or if it is 0 or
        not given the latest, or with `first` the first; before `before` if it is given and not 0.

        `read_from` and `read_to`: the ids between which the journal was read. `more`: it goes on
        there, also when not as many lines as asked for were found. `newest`: the journal's last id; it
        is lower than `after` if an older copy has taken the journal's place.
        """
        after, before = (max(0, int(str(body.get(key) or 0))) for key in ("after", "before"))
        limit = max(1, min(int(str(body.get("limit", MOST_EVENTS))), MOST_EVENTS))
        newest = not (after or body.get("first"))  # older clients send 0 for the latest
        budget = _Budget()
        found: list[Body] = []
        size = first_id = 0
        for record in self._read(RecordWindow(after, before, newest=newest), budget):
            first_id = first_id or record.id
            if text := _line(record):
                found.append(_shown(record, text))
                size += len(str(record.body))
            if len(found) >= limit or size >= ANSWER_BYTES:
                break
        else:
            budget.more = budget.over
        ids = (budget.last_id, first_id) if newest else (first_id, budget.last_id)
        return {
            "events": found[::-1] if newest else found,
            "read_from": ids[0] or after,
            "read_to": ids[1] or after,
            "newest": self._newest(),
            "more": budget.more,
        }

    def _newest(self) -> int:
        page = self._journal.page(RecordWindow(newest=True), 1, PAGE_BYTES)
        return page[0].id if page else 0

    def story(self, subject: str) -> list[Body]:
        """Return the last lines about a subject, oldest first."""
        lines: list[Body] = []
        for record in self._read(RecordWindow(subject=subject, newest=True), _Budget()):
            if text := _line(record):
                lines.append({"id": record.id, "at_s": record.at_s, "text": text})
            if len(lines) >= _STORY_LINES:
                break
        return lines[::-1]

    def _read(self, window: RecordWindow, budget: _Budget) -> Iterator[Record]:
        while not budget.over:
            budget.pages -= 1
            began_s = time.monotonic()
            page = self._journal.page(window, PAGE, PAGE_BYTES)
            if not page:
                return
            for record in page:
                budget.last_id = record.id
                yield record
            end = page[-1].id
            window = replace(window, before_id=end) if window.newest else replace(window, after_id=end)
            if window.newest and end <= 1:
                return
            time.sleep(max(_REST_S, time.monotonic() - began_s))


def _shown(record: Record, text: str) -> Body:
    return {
        "at_s": record.at_s,
        "kind": record.kind,
        "subject": record.subject,
        "body": record.body,  # itself: a copy of it would take longer than to read it
        "id": record.id,
        "text": text,
    }


def _line(record: Record) -> str:
    """Return the sentence; empty where there is none, or where it is not to be read by this version."""
    try:
        return story_line(record)
    except (ValueError, TypeError, KeyError):
        return ""
