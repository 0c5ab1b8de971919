"""The journal in one SQLite file: one writer, any number of readers, safe against SIGKILL."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from backfill.core.model.records import REMEMBERED
from backfill.drivers.store.codec import packed, record, unpack
from backfill.drivers.store.migrations import migrated
from backfill.drivers.store.pruning import prune
from backfill.drivers.store.schema import (
    MOVE_AWAY,
    build,
    connect,
    open_checked,
    sqlite_trouble,
    transaction,
    versions,
)
from backfill.ports.errors import BadOutputError, BusyError, NotFoundError, RefusedError
from backfill.ports.storage import Record, RecordWindow

_INSERT = (
    "INSERT INTO record (at_s, kind, subject, type, lasting, body, packed) VALUES (?, ?, ?, ?, ?, '', ?)"
)
_LAST = "SELECT coalesce(max(id), 0) FROM record"
_COLUMNS = "SELECT id, at_s, kind, subject, coalesce(packed, body) FROM record"
_READ = f"{_COLUMNS} WHERE id > ? AND id <= ?"
# Both are answered by the index of subjects.
_SUBJECTS = "SELECT subject, max(id) FROM record WHERE id > ? AND id <= ? GROUP BY subject"
_BACK = f"{_COLUMNS} WHERE subject = ? AND id > ? AND id <= ? ORDER BY id DESC LIMIT 50"
_PAGE = 500  # records fetched at once: appends get in between


class JournalReader:
    """Reads a journal that a daemon, perhaps in another process, is writing. Thread-safe."""

    def __init__(self, path: Path | str) -> None:
        """Open it. Raise NotFoundError, or BadOutputError for a file that is not a sound journal."""
        self.path = Path(path)
        try:
            there = self.path.exists()
        except OSError as error:
            raise RefusedError(
                str(self.path),
                f"the journal cannot be read: {error.strerror}",
                "check the path, or try as root",
            ) from error
        if not there:
            raise NotFoundError(
                str(self.path), "there is no journal", "start the daemon once, or name another file"
            )
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = open_checked(self.path, writable=False)
        self._older = versions(self._db)

    def read(
        self, after_id: int = 0, subject: str | None = None, types: Collection[str] = ()
    ) -> Iterator[Record]:
        """Yield records in order of their ids, up to what was there when reading began."""
        with self._connected() as db:
            last_id = int(db.execute(_LAST).fetchone()[0])
        query, wanted = _READ, []
        if types and REMEMBERED.issuperset(types):  # as a restarted daemon needs a few of millions
            wanted = list(types)
            query += f" AND lasting = 1 AND type IN ({','.join('?' * len(wanted))})"
        if subject is not None:
            query += " AND subject = ?"
            wanted.append(subject)
        found = self._read(f"{query} ORDER BY id LIMIT {_PAGE}", after_id, last_id, wanted)
        return (r for r in found if r.body.get("t") in types) if types else found

    def latest(self, after_id: int, last_id: int, types: Collection[str]) -> Iterator[Record]:
        """Yield of each subject the latest record of these types after one id and up to another.

        Only a subject's last records are looked at: what is in its story for good has its types there.
        """
        with self._connected() as db:
            found = db.execute(_SUBJECTS, (after_id, last_id)).fetchall()
        for subject, newest in found:
            with self._connected() as db:
                page = db.execute(_BACK, (subject, after_id, newest)).fetchall()
            for number, at_s, kind, about, stored in page:
                one = self._as_now(record(number, at_s, kind, about, self._text(stored)))
                if one.body.get("t") in types:
                    yield one
                    break

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        """Return some of these records; see `Journal`. It has a connection of its own."""
        query = f"{_COLUMNS} WHERE id > ?"
        values: list[object] = [window.after_id]
        if window.before_id:
            query, values = f"{query} AND id < ?", [*values, window.before_id]
        if window.subject:
            query, values = f"{query} AND subject = ?", [*values, window.subject]
        query += f" ORDER BY id {'DESC' if window.newest else 'ASC'} LIMIT ?"
        found: list[Record] = []
        size = 0
        try:
            with closing(connect(self.path, "ro")) as db:
                for number, at_s, kind, about, stored in db.execute(query, (*values, most)):
                    body = self._text(stored)
                    found.append(self._as_now(record(number, at_s, kind, about, body)))
                    size += len(body)
                    if size >= most_bytes:
                        break
        except sqlite3.Error as error:
            raise sqlite_trouble(self.path, error) from error
        return found

    def close(self) -> None:
        """Give back the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _need_open(self) -> None:
        if self._db is None:
            raise ValueError(f"the journal {self.path} is closed")

    def _read(self, query: str, after_id: int, last_id: int, wanted: list[str]) -> Iterator[Record]:
        while after_id < last_id:
            with self._connected() as db:
                page = db.execute(query, (after_id, last_id, *wanted)).fetchall()
            for row in page:
                number, at_s, kind, about, stored = row
                yield self._as_now(record(number, at_s, kind, about, self._text(stored)))
            if len(page) < _PAGE:
                return
            after_id = page[-1][0]

    def _as_now(self, found: Record) -> Record:
        for last_id, version in self._older:
            if found.id <= last_id:
                return replace(found, body=migrated(found.body, version))
        return found

    def _text(self, stored: bytes | str) -> str:
        try:
            return unpack(stored)
        except ValueError as error:
            raise BadOutputError(str(self.path), str(error), MOVE_AWAY) from error

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._need_open()
            assert self._db is not None
            try:
                yield self._db
            except sqlite3.Error as error:
                raise sqlite_trouble(self.path, error) from error


class SqliteJournal(JournalReader):
    """The Journal of the daemon: WAL, synchronous=NORMAL, one writer per file.

    An append that returned survives the death of the process (a power cut may cost the last ones).
    """

    def __init__(self, path: Path | str) -> None:
        """Make the file if there is none.

        Raises BusyError while another process writes it, BadOutputError for a file that is not a
        sound journal of this version or an older one, RefusedError where the path forbids it.
        """
        self.path = Path(path)
        self._guard = _only_writer(self.path)
        try:
            if not self.path.exists() or self.path.stat().st_size == 0:
                build(self.path)
            self._lock = threading.Lock()
            self._db = open_checked(self.path, writable=True)
            self._older = versions(self._db)
        except BaseException:
            os.close(self._guard)
            raise

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none."""
        new = packed(records)
        if not new:
            return
        with self._connected() as db:
            if len(new) == 1:
                db.execute(_INSERT, new[0])
            else:
                with transaction(db):
                    db.executemany(_INSERT, new)

    def prune(self, keep_s: float, now_s: float) -> int:
        """Delete what is older than `keep_s` seconds, but for what a restarted daemon needs.

        Returns the number of deleted records and shrinks the file. Appends go on meanwhile.
        """
        self._need_open()
        return prune(self.path, now_s - keep_s)

    def size_bytes(self) -> int:
        """Return the bytes of the file, and of what is not yet folded into it."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Flush and give back the file; a second time does nothing."""
        if self._db is not None:
            super().close()
            os.close(self._guard)


def _only_writer(path: Path) -> int:
    """Lock the file beside the journal: SQLite would let two daemons write in turns.

    Not the journal itself: to close a second descriptor of it would drop SQLite's own locks.
    """
    try:
        guard = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RefusedError(
            str(path),
            f"the journal cannot be made there: {error.strerror}",
            "give a path in a directory that exists and that we may write",
        ) from error
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(guard, 20).decode(errors="replace").strip() or "unknown"
        os.close(guard)
        raise BusyError(
            str(path), f"process {holder} is writing this journal", "run one daemon per journal"
        ) from None
    os.truncate(guard, 0)
    os.pwrite(guard, f"{os.getpid()}\n".encode(), 0)
    return guard
