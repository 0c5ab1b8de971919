"""Who follows the events learns by the last one that they read whether the journal is still the same."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

Questions = Generator[dict[str, int], Mapping[str, Any], int | None]

TOLD = "an older copy of the journal was put back; what came since then follows, with ids used before"
# What is looked through for the place at which to go on.
_PAGE, _PAGES = 1000, 50


@dataclass(frozen=True, slots=True)
class LastRead:
    """An event by its id, 0: none; `at_ms`: when it was, -1: nobody knows."""

    id: int = 0
    at_ms: int = -1

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> LastRead:
        """Remember an event."""
        return cls(event["id"], round(event["at_s"] * 1000))

    @classmethod
    def read(cls, text: str) -> LastRead:
        """Read what `str` has made, or an id alone."""
        number, _, at_ms = text.partition("-")
        return cls(int(number or 0), int(at_ms or -1))

    def __str__(self) -> str:
        return f"{self.id}" if self.at_ms < 0 else f"{self.id}-{self.at_ms}"


def place_in_copy(last: LastRead) -> Questions:
    """Find out whether the journal still has what was read last; None: it has, otherwise the id behind
    which to go on.

    Yields what events to ask for, and is sent the answers. Where a copy was put back, ids come again: the
    event is told from another one by its time. Then all goes on that is later, or, where its time is not
    known, the latest.
    """
    if not last.id:
        return None
    answer = yield {"after": last.id - 1, "before": last.id + 1, "limit": 1}
    known = last.at_ms >= 0
    if answer["newest"] >= last.id and (not known or last in map(LastRead.of, answer["events"])):
        return None
    if answer["newest"] >= last.id:
        answer = yield {"first": 1, "limit": 1}
        if answer["read_from"] > last.id:  # the journal keeps what was read last no longer
            return None
    before = 0
    for _ in range(_PAGES if known else 1):
        answer = yield {"before": before, "limit": _PAGE}
        older = [event["id"] for event in answer["events"] if LastRead.of(event).at_ms <= last.at_ms]
        if older:
            return int(older[-1])
        before = answer["read_from"]
        if not answer["more"]:
            return 0
    return max(0, before - 1)
