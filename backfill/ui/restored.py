"""Who follows the events learns by the last one that they read whether the journal is still the same."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]
Questions = Generator[dict[str, int], Answer, int | None]

TOLD = "an older copy of the journal was put back; what came since then follows, with ids used before"
# What is looked through for the place at which to go on: all that the journal has is halved until it is
# no more. An id need never have been there: whoever follows says what they read last.
_PAGE = 1000


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
    newest, known = answer["newest"], last.at_ms >= 0
    if newest >= last.id and (not known or last in map(LastRead.of, answer["events"])):
        return None
    if not known:
        answer = yield {"before": 0, "limit": _PAGE}
        return max(0, answer["read_from"] - 1) if answer["more"] else 0
    answer = yield {"first": 1, "limit": 1}
    if newest >= last.id and answer["read_from"] > last.id:
        return None  # the journal keeps what was read last no longer
    first = _read_of(answer, last)
    if answer["events"] and not first:
        return 0  # all is later
    return (yield from _last_read(last, first, min(last.id, newest + 1)))


def _last_read(last: LastRead, low: int, high: int) -> Generator[dict[str, int], Answer, int]:
    """Find the last event before `high` that is no later than what was read last; `low`: one of these.

    What came after the copy is later, and all that it shares with the other journal has lower ids. `high`
    is at most one behind the journal's last id, so that an id that never was makes it no longer: three
    million are halved 12 times.
    """
    answer = yield {"before": high, "limit": _PAGE}
    if (found := _read_of(answer, last)) or not answer["more"]:
        return found or low
    high = answer["read_from"]
    while high - low > _PAGE:
        middle = (low + high) // 2
        answer = yield {"after": middle - 1, "before": high, "limit": 1}
        if found := _read_of(answer, last):
            low = found
        else:
            high = middle
    answer = yield {"first": 1, "after": low, "before": high, "limit": _PAGE}
    return _read_of(answer, last) or low


def _read_of(answer: Answer, last: LastRead) -> int:
    """Return the last event of these that was there when the last one was read; 0: none."""
    return max(
        (event["id"] for event in answer["events"] if LastRead.of(event).at_ms <= last.at_ms), default=0
    )
