"""A journal that lives as long as its process: for the simulator and for tests."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator

from backfill.drivers.store.codec import Row, record, rows
from backfill.ports.errors import RefusedError
from backfill.ports.storage import Record, RecordWindow


class MemoryJournal:
    """Journal in a list; what it gives back went through the same text as in a file."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._lock = threading.Lock()
        self._closed = False
        self.full = False  # what a disk without room does; a test or a scenario orders it

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none."""
        new = rows(records)
        with self._lock:
            self._need_open()
            if self.full:
                raise RefusedError("journal", "database or disk is full")
            self._rows.extend(new)

    def read(
        self, after_id: int = 0, subject: str | None = None, types: Collection[str] = ()
    ) -> Iterator[Record]:
        """Yield records in order of their ids, up to what was there when reading began."""
        self._need_open()
        found = self._read(max(after_id, 0), len(self._rows), subject)
        return (r for r in found if r.body.get("t") in types) if types else found

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        """Return some of these records; see `Journal`."""
        self._need_open()
        last = len(self._rows)
        if window.before_id:
            last = min(last, window.before_id - 1)
        numbers = range(max(window.after_id, 0) + 1, last + 1)
        found: list[Record] = []
        size = 0
        for number in reversed(numbers) if window.newest else numbers:
            row = self._rows[number - 1]
            if window.subject in ("", row[2]):
                found.append(record(number, *row))
                size += len(row[3])
                if len(found) >= most or size >= most_bytes:
                    break
        return found

    def size_bytes(self) -> int:
        """Return the bytes of its records' bodies."""
        with self._lock:
            return sum(len(row[3]) for row in self._rows)

    def close(self) -> None:
        """Forget nothing, take nothing more."""
        self._closed = True

    def _read(self, after_id: int, last_id: int, subject: str | None) -> Iterator[Record]:
        for number in range(after_id + 1, last_id + 1):
            row = self._rows[number - 1]
            if subject is None or row[2] == subject:
                yield record(number, *row)

    def _need_open(self) -> None:
        if self._closed:
            raise ValueError("the journal is closed")
