"""A journal whose disk may hang: whoever appends is told so in time, and what comes late is counted.

A write to a dead disk or file server returns when that is back, or never, and cannot be called off.
So a thread of its own writes, and an eviction waits for it no longer than `within_s`, once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from queue import SimpleQueue

from backfill.ports.errors import UnreachableError
from backfill.ports.storage import Journal, Record, RecordWindow

_WITHIN_S = 1.0


class _Batch:
    """Records on their way to the disk."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.ended = threading.Event()
        self.error: BaseException | None = None


class PromptJournal:
    """See `Journal`; around another one. For one thread that appends, and any number that read."""

    def __init__(self, journal: Journal, where: str, within_s: float = _WITHIN_S) -> None:
        """`where`: what hangs, for people. `within_s`: how long an append may take."""
        self._journal, self._where, self._within_s = journal, where, within_s
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._late: _Batch | None = None  # the one for whose end nobody waits any more
        self._closed = False
        threading.Thread(target=self._write, name="journal", daemon=True).start()

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none; UnreachableError when that takes too long.

        Then they may be stored all the same, later. Whoever appends the same records again, with
        others behind them, stores each once.
        """
        new = self._not_stored_late(list(records))
        if not new:
            return
        if self._closed:
            self._journal.append(new)  # which says so
            return
        batch = _Batch(new)
        self._batches.put(batch)
        if not batch.ended.wait(self._within_s):
            self._late = batch
            raise self._hangs()
        if batch.error is not None:
            raise batch.error

    def _not_stored_late(self, records: list[Record]) -> list[Record]:
        """Those that a late batch did not bring to the disk after all."""
        late = self._late
        if late is None:
            return records
        if not late.ended.is_set():
            raise self._hangs()
        self._late = None
        if late.error is not None:
            return records
        stored = set(map(id, late.records))  # held by the batch, so no other has such an id
        return [record for record in records if id(record) not in stored]

    def _hangs(self) -> UnreachableError:
        return UnreachableError(
            self._where, f"its disk did not answer within {self._within_s:g} s", "see to that disk"
        )

    def _write(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._journal.append(batch.records)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                batch.error = error
            finally:
                batch.ended.set()

    def read(
        self, after_id: int = 0, subject: str | None = None, types: Collection[str] = ()
    ) -> Iterable[Record]:
        """See Journal."""
        return self._journal.read(after_id, subject, types)

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        """See Journal."""
        return self._journal.page(window, most, most_bytes)

    def size_bytes(self) -> int:
        """See Journal."""
        return self._journal.size_bytes()

    def close(self) -> None:
        """Give back the file, unless its disk hangs: then the end of the process does so."""
        late = self._late
        if self._closed or (late is not None and not late.ended.is_set()):
            return
        self._closed = True
        self._batches.put(None)
        self._journal.close()
