"""Contracts with this machine: the daemon's journal and its clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal. `kind` names the event, `body` is plain JSON data."""

    at_s: float
    kind: str
    subject: str
    body: dict[str, object]
    id: int = 0


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """Records of a journal whose ids are between these two, both left out; of one subject or all.

    `before_id` 0: there is no upper end. `newest`: the latest come first.
    """

    after_id: int = 0
    before_id: int = 0
    subject: str = ""
    newest: bool = False


class Journal(Protocol):
    """Append-only memory of the daemon; what was appended survives a SIGKILL."""

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none."""

    def read(
        self, after_id: int = 0, subject: str | None = None, types: Collection[str] = ()
    ) -> Iterable[Record]:
        """Return records in order of their ids; with `types` those whose body is of one of them (`t`)."""

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        """Return some of these records, the next ones in order of their ids, or the latest first.

        At most `most`, and no more after their bodies have together reached `most_bytes`; empty
        when there are none. No append waits for it.
        """

    def size_bytes(self) -> int:
        """Return what it takes on its disk. May wait for that disk, which no append of ours does."""

    def close(self) -> None:
        """Flush and give back the file."""


class Clock(Protocol):
    """Time that never jumps. Epoch seconds; the simulator has its own."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""

    def ahead(self) -> float:
        """By how much that is ahead of the machine's clock, which drivers and guests go by.

        It changes only when somebody sets that clock; below zero after a step forward.
        """

    def reading(self) -> tuple[str, float]:
        """Return the id of this boot of the machine, and its uptime in seconds."""
