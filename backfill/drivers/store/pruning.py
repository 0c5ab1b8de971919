"""Old stories leave the journal a few records at a time, so that the daemon never waits for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from backfill.drivers.store.codec import unpack
from backfill.drivers.store.schema import connect, sqlite_trouble, transaction

# So many records, or pages of the file, at a time: an append waits for milliseconds at most.
_AT_ONCE = 500

# Reading keeps no writer waiting, however long it takes.
_LATEST = """
    SELECT subject, max(id) FROM record
    WHERE lasting = 1 AND type IN ('NodeManaged', 'NodeForgotten') GROUP BY subject
"""
_OTHERS = """
    SELECT id, type, coalesce(packed, body) FROM record
    WHERE lasting = 1 AND type NOT IN ('NodeManaged', 'NodeForgotten') ORDER BY id
"""
_PAGE = "SELECT id, at_s FROM record WHERE id > ? ORDER BY id LIMIT ?"


def prune(path: Path, before_s: float) -> int:
    """Delete from the journal at `path`; see `SqliteJournal.prune`."""
    try:
        db = connect(path, "rw")
        try:
            gone = _prune(db, before_s)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise sqlite_trouble(path, error) from error
    return gone


def _prune(db: sqlite3.Connection, before_s: float) -> int:
    needed = _needed(db)
    gone = 0
    for page in _old(db, before_s):
        doomed = [(number,) for number in page if number not in needed]
        with transaction(db):
            gone += db.executemany("DELETE FROM record WHERE id = ?", doomed).rowcount
    if gone:
        _shrink(db)
    return gone


def _old(db: sqlite3.Connection, before_s: float) -> Iterator[list[int]]:
    """Ids of the records of before, a page at a time: they are at the journal's beginning."""
    last = 0
    while page := db.execute(_PAGE, (last, _AT_ONCE)).fetchall():
        last = page[-1][0]
        old = [number for number, at_s in page if at_s < before_s]
        if not old:
            return
        yield old


def _needed(db: sqlite3.Connection) -> frozenset[int]:
    """Ids of what a restarted daemon needs, whatever its age: the last word on each matter.

    The last generation of a name is among it, so that it is never used twice, and what people have
    closed. Of matters that are not known here everything is kept.
    """
    nodes = dict(db.execute(_LATEST).fetchall())
    latest: dict[object, int] = {}
    for number, kind, body in db.execute(_OTHERS):
        key = _matter(kind, json.loads(unpack(body)), nodes, number)
        if key is not None:
            latest[key] = number
    return frozenset((*nodes.values(), *latest.values()))


def _matter(kind: str, body: dict[str, object], nodes: dict[str, int], number: int) -> object:
    """Return the matter on which a record is the last word until the next of it; None: on nothing."""
    match kind:
        case "Woken" | "CopiesEnded" | "CheckpointKept" | "CheckpointPutBack":
            # They change a record of a node; the next one has it all.
            name = str(body.get("name"))
            return None if number < nodes.get(name, 0) else (kind, name)
        case "HoldSet":
            return (kind, body["subject"], body.get("keep") is None)
        case "MemoryWritten":
            return (kind, body["host"])
        case "FleetSet":
            fleet = body["fleet"]
            assert isinstance(fleet, dict)
            return (kind, fleet["id"])
        case "MachinesSet":
            own = body["machines"]
            assert isinstance(own, dict)
            return (kind, own["job"])
        case _:
            return None if body.get("began", True) is False else number


def _shrink(db: sqlite3.Connection) -> None:
    """Give free pages back to the file system."""
    free = int(db.execute("PRAGMA freelist_count").fetchone()[0])
    for _ in range(-(-free // _AT_ONCE)):
        # A script: the vacuum frees one page per step, and `execute` takes one step.
        db.executescript(f"PRAGMA incremental_vacuum({_AT_ONCE});")
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    # This one keeps the writer waiting: once, or not at all while somebody reads.
    db.execute("PRAGMA busy_timeout = 0")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
