"""Old stories leave the journal a few records at a time, so that the daemon never waits for it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from backfill.drivers.store.schema import connect, sqlite_trouble, transaction

# So many records, or pages of the file, at a time: an append waits for milliseconds at most.
_AT_ONCE = 500

# Everything is first found out in a table of the connection's own, which keeps no writer waiting.
# ?1: newest time to delete; {0}: the ending types.
_ENDED = """
    CREATE TEMP TABLE ended AS
    SELECT subject, max(id) AS last FROM record
    WHERE at_s < ?1 AND json_extract(body, '$.t') IN ({0})
    GROUP BY subject
"""
# A restarted daemon needs the last generation of a name, and what people have closed.
_OVER = """
    INSERT OR IGNORE INTO doomed
    SELECT r.id FROM ended AS e JOIN record AS r ON r.subject = e.subject AND r.id <= e.last
    WHERE r.at_s < ?1 AND json_extract(r.body, '$.t') IS NOT 'HoldSet'
    AND NOT (r.id = e.last AND json_extract(r.body, '$.t') IS 'NodeForgotten')
"""
# What only a replay of the journal needs: clocks, freshness, and where plans were made.
_BEATS = """
    INSERT OR IGNORE INTO doomed
    SELECT id FROM record WHERE at_s < ?1 AND (
        kind = 'plan'
        OR (kind = 'change' AND json_extract(body, '$.t') IN ('Tick', 'SourceSeen', 'NodesRead'))
    )
"""
_BATCH = "SELECT id FROM temp.doomed WHERE id > ? ORDER BY id LIMIT ?"


def prune(path: Path, before_s: float, ends: frozenset[str]) -> int:
    """Delete from the journal at `path`; see `SqliteJournal.prune`."""
    try:
        db = connect(path, "rw")
        try:
            gone = _prune(db, before_s, ends)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise sqlite_trouble(path, error) from error
    return gone


def _prune(db: sqlite3.Connection, before_s: float, ends: frozenset[str]) -> int:
    db.execute("CREATE TEMP TABLE doomed (id INTEGER PRIMARY KEY)")
    db.execute(_ENDED.format(",".join("?" * len(ends))), (before_s, *sorted(ends)))
    db.execute(_OVER, (before_s,))
    db.execute(_BEATS, (before_s,))
    gone, last = 0, 0
    while batch := db.execute(_BATCH, (last, _AT_ONCE)).fetchall():
        last = batch[-1][0]
        with transaction(db):
            gone += db.executemany("DELETE FROM record WHERE id = ?", batch).rowcount
    if gone:
        _shrink(db)
    return gone


def _shrink(db: sqlite3.Connection) -> None:
    """Give free pages back to the file system."""
    free = int(db.execute("PRAGMA freelist_count").fetchone()[0])
    for _ in range(-(-free // _AT_ONCE)):
        # A script: the vacuum frees one page per step, and `execute` takes one step.
        db.executescript(f"PRAGMA incremental_vacuum({_AT_ONCE});")
    db.executescript("PRAGMA wal_checkpoint(TRUNCATE);")
