"""The note that lets a transaction be finished or taken back after a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from backfill.drivers.slurm.conf.files import read_or_empty, remove_file, replace_file
from backfill.drivers.slurm.conf.health import SlurmHealth


class Direction(StrEnum):
    """The direction of an unfinished transaction."""

    FORWARD = "forward"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Note:
    """All that is needed to finish: both texts, the way to reload, and what must not get lost."""

    old: str
    new: str
    restart: bool
    picture: SlurmHealth
    expected: tuple[str, ...]
    direction: Direction = Direction.FORWARD
    why: str = ""

    def turned(self, why: str) -> Note:
        """Turn the note: the transaction is on its way back."""
        return replace(self, direction=Direction.BACK, why=why)


class NoteFile:
    """At most one note, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, note: Note) -> None:
        """Store it before the step that it is about."""
        body = {
            "old": note.old,
            "new": note.new,
            "restart": note.restart,
            "picture": note.picture.to_json(),
            "expected": list(note.expected),
            "direction": note.direction.value,
            "why": note.why,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(body, indent=1) + "\n")

    def read(self) -> Note | None:
        """Read the note of a transaction that has not ended; None when there is none."""
        text = read_or_empty(self._path)
        if not text:
            return None
        body: Mapping[str, object] = json.loads(text)
        picture, expected = body["picture"], body["expected"]
        assert isinstance(picture, dict)
        assert isinstance(expected, list)
        return Note(
            str(body["old"]),
            str(body["new"]),
            bool(body["restart"]),
            SlurmHealth.from_json(picture),
            tuple(expected),
            Direction(str(body["direction"])),
            str(body["why"]),
        )

    def clear(self) -> None:
        """Remove the note: the transaction has ended."""
        if self._path.exists():
            remove_file(self._path)
