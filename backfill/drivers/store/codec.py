"""Journal records to the text that is stored, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable

from backfill.ports import Record

Row = tuple[float, str, str, str]

# Made once: `json.dumps` with separators of one's own makes one for every call.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def rows(records: Iterable[Record]) -> list[Row]:
    """What is stored of each record. Raises TypeError or ValueError before anything is stored."""
    return [(float(r.at_s), r.kind, r.subject, dump(r.body)) for r in records]


def dump(body: dict[str, object]) -> str:
    """Plain JSON data as compact text, keys in their order. TypeError: it is not plain."""
    return _encode(body)


def record(number: int, at_s: float, kind: str, subject: str, body: str) -> Record:
    """The inverse of `rows` for one stored line."""
    return Record(at_s, kind, subject, json.loads(body), number)
