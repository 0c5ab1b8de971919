"""The note that lets a transaction be finished or taken back after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from backfill.drivers.slurm.conf.files import give_to_owner_of, make_own_directory, remove_file, replace_file
from backfill.drivers.slurm.conf.health import SlurmHealth
from backfill.ports.errors import UnreadableError, unreadable

_Value = TypeVar("_Value")


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
    """At most one note, on disk. `about`: the name of the managed file, for the operator."""

    def __init__(self, path: Path, about: str) -> None:
        self._path = path
        self._about = about

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
        make_own_directory(self._path.parent)
        replace_file(self._path, json.dumps(body, indent=1) + "\n")
        give_to_owner_of(self._path.parent, self._path)

    def read(self) -> Note | None:
        """Read the note of a transaction that has not ended; None when there is none.

        UnreadableError: it is damaged or cannot be read, so that nobody knows what slurmctld has read
        and which way to go.
        """
        try:
            text = self._path.read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(str(self._path), error) from error
        try:
            return _parsed(text)
        except (TypeError, ValueError) as error:
            # With the lines of the file as it is, slurmctld may drop a node under a job only where it has
            # read the other text since: the diff shows such a node as a line that is to come.
            raise UnreadableError(
                str(self._path),
                f"this note of an interrupted change of {self._about} is damaged ({error})",
                f"see with `backfill slurm diff` that {self._about} lacks no node with a job, let slurmctld "
                "read it (`scontrol reconfigure`; before Slurm 23.11, a restart), then remove this note",
            ) from error

    def clear(self) -> None:
        """Remove the note: the transaction has ended."""
        if self._path.exists():
            remove_file(self._path)


def _parsed(text: str) -> Note:
    """Return the note that was stored as this text. TypeError, ValueError, in a few words: it is none."""
    if not text:
        raise ValueError("it is empty")
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise TypeError("it is no object")
    return Note(
        _value(body, "old", _text),
        _value(body, "new", _text),
        _value(body, "restart", _flag),
        _value(body, "picture", SlurmHealth.from_json),
        _value(body, "expected", _texts),
        _value(body, "direction", Direction),
        _value(body, "why", _text),
    )


def _value(body: Mapping[str, Any], key: str, read: Callable[[Any], _Value]) -> _Value:
    try:
        return read(body[key])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its `{key}` is missing or odd") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_text(one) for one in value)
