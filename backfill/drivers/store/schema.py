"""The file behind the journal: making it, recognising it, and what its troubles mean."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

from backfill.core.model.records import REMEMBERED
from backfill.drivers.store.formats import VERSION
from backfill.ports.errors import BadOutputError, BusyError, DriverError, RefusedError

_APPLICATION = 0x62666C6A  # "bflj" in the header of the file: it is ours
_WAIT_S = 5.0
MOVE_AWAY = "move the file away with its -wal and -shm, or name another one; nothing in it was changed"

# Of SQLite 3.37, and Enterprise Linux 9 has 3.34: types are checked where it can.
_STRICT = "STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""

_TABLES = f"""
    PRAGMA auto_vacuum = INCREMENTAL;
    BEGIN;
    PRAGMA application_id = {_APPLICATION};
    PRAGMA user_version = 1;
    CREATE TABLE record (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at_s REAL NOT NULL,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        body TEXT NOT NULL
    ) {_STRICT};
    CREATE INDEX record_subject ON record (subject, id);
    COMMIT;
    PRAGMA journal_mode = WAL;
"""


# What came with version 2. `lasting`: a restarted daemon needs the record, whatever its age;
# `packed`: what was in `body`, which is empty now (`codec.pack`).
_PACKED = """
    ALTER TABLE record ADD COLUMN type TEXT NOT NULL DEFAULT '';
    ALTER TABLE record ADD COLUMN lasting INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE record ADD COLUMN packed BLOB;
    UPDATE record SET type = coalesce(json_extract(body, '$.t'), '');
    CREATE INDEX record_lasting ON record (id) WHERE lasting = 1;
"""

# What came with version 3. Up to which id records are of an older version (`migrations.migrated`).
_WRITTEN = f"""
    CREATE TABLE written (version INTEGER PRIMARY KEY, last_id INTEGER NOT NULL) {_STRICT};
"""

_LASTING = """
    UPDATE record SET lasting = 1 WHERE lasting = 0 AND type IN (SELECT value FROM json_each(?))
"""


def build(path: Path) -> None:
    """Make an empty journal under another name and move it into place: never a half-made one."""
    draft = Path(f"{path}.new")
    for leftover in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm"), Path(f"{draft}-journal")):
        leftover.unlink(missing_ok=True)
    try:
        db = sqlite3.connect(draft)
        try:
            db.executescript(_TABLES)
            _migrate(db)
        finally:
            db.close()
        _set_aside(Path(f"{path}-wal"))
        _set_aside(Path(f"{path}-shm"))
        draft.replace(path)
    except sqlite3.Error as error:
        raise sqlite_trouble(path, error) from error


def _set_aside(leftover: Path) -> None:
    """Rename what belongs to a journal that was moved away: SQLite would replay it into the new one.

    It is kept, because it may hold the last records of that journal.
    """
    if leftover.exists():
        names = (Path(f"{leftover}.stray{number}") for number in count(1))
        leftover.rename(next(name for name in names if not name.exists()))


def open_checked(path: Path, *, writable: bool) -> sqlite3.Connection:
    """Open a sound journal that we understand; raises BadOutputError and changes nothing else."""
    try:
        version = _check(path)
        db = connect(path, "rw" if writable else "ro")
    except sqlite3.Error as error:
        raise sqlite_trouble(path, error) from error
    try:
        if version < VERSION:
            if not writable:
                _refuse_older(path, version)
            _migrate(db)
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise sqlite_trouble(path, error) from error
        raise
    return db


def _refuse_older(path: Path, version: int) -> None:
    """Only a daemon may change a journal, and of version 1 not even reading goes without."""
    if version < 2:
        raise BadOutputError(
            str(path),
            f"was written by an older backfill (journal version {version})",
            "start the daemon of this version with it once, which takes it over; nothing was changed",
        )


def _migrate(db: sqlite3.Connection) -> None:
    """Bring a journal to this version, all or nothing. No older program reads it from then on."""
    lasting = json.dumps(sorted(REMEMBERED))
    with transaction(db):
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        for statement in _PACKED.split(";")[:-1] if version < 2 else ():
            db.execute(statement)
        if version < 3:
            db.execute(_WRITTEN)
        if version < VERSION:
            db.execute("INSERT INTO written SELECT ?, coalesce(max(id), 0) FROM record", (version,))
        db.execute(_LASTING, (lasting,))  # all kinds at once: a long journal takes seconds to look through
        db.execute(f"PRAGMA user_version = {VERSION}")


def versions(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Pairs (last id, version) for records of older versions, ascending by id."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    found: list[tuple[int, int]] = []
    if version >= 3:
        query = "SELECT last_id, version FROM written ORDER BY last_id"
        found = [(int(last), int(number)) for last, number in db.execute(query)]
    return found if version == VERSION else [*found, (sys.maxsize, version)]


def foreseen(path: Path) -> str:
    """Say what the daemon's start makes of a journal, and change nothing; empty: it goes on with it.

    Whether it is sound is not looked at, and one that cannot be read tells nothing. BadOutputError: the
    start would refuse it.
    """
    try:
        if not path.stat().st_size:
            return ""
        db = connect(path, "ro")
    except (OSError, sqlite3.Error):
        return ""
    try:
        version = _version(path, db)
    except sqlite3.Error as error:
        trouble = sqlite_trouble(path, error)
        if isinstance(trouble, BadOutputError):
            raise trouble from error
        return ""
    finally:
        db.close()
    if version == VERSION:
        return ""
    return (
        f"{path}: the daemon's start converts it from version {version} to {VERSION}, after which an older "
        "backfill refuses it: copy it before"
    )


def _check(path: Path) -> int:
    """Look before anything may be written; returns the version."""
    db = connect(path, "ro")
    try:
        version = _version(path, db)
        faults = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if faults != "ok":
            raise BadOutputError(str(path), f"the journal is damaged: {faults}", MOVE_AWAY)
        return version
    finally:
        db.close()


def _version(path: Path, db: sqlite3.Connection) -> int:
    """Return a version that we understand. Raises BadOutputError for any other, and for another file."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != _APPLICATION:
        raise BadOutputError(str(path), "is not a journal of backfill", MOVE_AWAY)
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise BadOutputError(
            str(path),
            f"was written by a newer backfill (journal version {version}, this one reads up to {VERSION})",
            "use that backfill, or move the file away with its -wal and -shm: instances are found "
            "by their tags then and go on; nothing in it was changed",
        )
    return version


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file as it is: `rw` or `ro`."""
    db = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={mode}",
        uri=True,
        timeout=_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if mode == "rw":
            db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is written inside."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # of some troubles, such as a full disk, SQLite rolls back by itself
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def sqlite_trouble(path: Path, error: sqlite3.Error) -> DriverError:
    """Translate an error of SQLite for the operator."""
    code = getattr(error, "sqlite_errorcode", None)
    base = code & 0xFF if isinstance(code, int) else None
    if base in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return BadOutputError(str(path), f"is not a sound journal: {error}", MOVE_AWAY)
    if base in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(str(path), f"the journal was in use for {_WAIT_S:g} s: {error}")
    if base == sqlite3.SQLITE_FULL:
        return RefusedError(str(path), "the disk is full", "make room")
    return RefusedError(
        str(path), f"the journal cannot be used: {error}", "check the path, its rights and the disk"
    )
