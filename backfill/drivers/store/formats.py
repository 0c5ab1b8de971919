"""The versions of the journal's format: each moves with the types of its records.

A program refuses a journal of a later version, because it may say what the program does not
understand. `tests/component/test_store_formats.py` compares the last line with what this program writes.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum

from backfill.core.model.records import REMEMBERED, record_types, tag
from backfill.drivers.store.codec import WORDS

# Version, and `fingerprint` of what it writes. Never change a line: add one, and
# what becomes of older records in `migrations.py`. A line that no release has may still change.
FORMATS = (
    (1, ""),  # plain text; before fingerprints were taken
    (2, "9532352ca33e57c1"),
    (3, "d7adf9e11035b7c8"),
)
VERSION = FORMATS[-1][0]


def fingerprint() -> str:
    """Make a short text that changes with the meaning of any record."""
    lines = sorted({line for kind in record_types().values() for line in _lines(kind, set())})
    lines += [f"lasting {name}" for name in sorted(REMEMBERED)]
    lines += [f"words {number} {words!r}" for number, words in sorted(WORDS.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _lines(kind: object, seen: set[object]) -> Iterator[str]:
    """Yield the parts of a type, down to plain values: fields, defaults, and members of enums."""
    for inner in typing.get_args(kind):
        yield from _lines(inner, seen)
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    if issubclass(kind, Enum):
        yield f"{kind.__name__} = {[member.value for member in kind]}"
    elif is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for field in fields(kind):
            default = "needed" if field.default is MISSING else repr(field.default)
            yield f"{tag(kind)}.{field.name}: {field.type} = {default}"
            yield from _lines(hints[field.name], seen)
