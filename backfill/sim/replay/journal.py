"""Replays a daemon's journal: from the same changes the same plans must come, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

from backfill.core import changes as ch
from backfill.core.plan import SetNode
from backfill.core.planner import plan
from backfill.core.policy import PolicySet
from backfill.core.records import Plain, decode, encode, remembered, slim
from backfill.core.world import World
from backfill.ports.storage import Record

_TAKEN_OVER = "policy file taken over"


class JournalError(Exception):
    """The journal cannot be replayed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A plan that came out differently: its time (epoch seconds) and the steps as JSON lines."""

    at_s: float
    record: int
    journal: tuple[str, ...]
    replayed: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """A unified diff from the journal's steps to those of the replay, for people."""
        title = f"plan at {self.at_s:.3f} (record {self.record})"
        before, after = [_told(s) for s in self.journal], [_told(s) for s in self.replayed]
        if before == after:  # they differ in what is not told
            before, after = list(self.journal), list(self.replayed)
        yield from unified_diff(before, after, f"journal: {title}", f"replay: {title}", lineterm="")


@dataclass(slots=True)
class Outcome:
    """What came of a replay."""

    plans: int = 0
    steps: int = 0
    changes: int = 0
    lives: int = 0
    skipped: int = 0  # records before the first start of a daemon that is there as a whole
    policy_changes: int = 0
    differences: list[Difference] = field(default_factory=list)


def replay_journal(records: Iterable[Record], policies: PolicySet) -> Outcome:
    """Plan again wherever the journal says that a plan was made, and compare step by step.

    Of a pruned journal only what follows the last gap is replayed, from a start of the daemon on.
    Raises JournalError where no start of a daemon follows.
    """
    found = list(records)
    first = _first_whole(found)
    replayer = _Replayer(policies)
    for record in found[:first]:
        replayer.remember(record)
    for record in found[first:]:
        replayer.take(record)
    replayer.outcome.skipped = first
    return replayer.outcome


def _first_whole(records: list[Record]) -> int:
    """Index of the first start of a daemon after which no record is missing."""
    gap = 0
    for index in range(1, len(records)):
        if records[index].id != records[index - 1].id + 1 or _gap(records[index]):
            gap = index
    for index in range(gap, len(records)):
        if _starts(records[index]):
            return index
    raise JournalError(
        "the journal has no start of a daemon after which nothing was pruned; replay it sooner, or "
        "restart the daemon and replay from there"
    )


def _starts(record: Record) -> bool:
    return record.kind == "daemon" and record.body.get("event") == "start"


def _gap(record: Record) -> bool:
    """Whether records are missing here although ids go on: the journal could not be written."""
    return record.kind == "daemon" and record.body.get("event") == "gap"


class _Replayer:
    def __init__(self, policies: PolicySet) -> None:
        self.outcome = Outcome()
        self._policies = policies
        self._world = World()
        self._told: list[Plain] = []  # all changes so far: what a restarted daemon remembers
        self._planned: tuple[str, ...] = ()
        self._journaled: list[str] = []
        self._missing = 0  # steps of the latest plan that the journal still has to tell
        self._at: Record | None = None

    def remember(self, record: Record) -> None:
        """Take in what came before."""
        if record.kind in ("change", "clock"):
            self._told.append(record.body)

    def take(self, record: Record) -> None:
        """Follow one record."""
        match record.kind:
            case "change":
                self._told.append(record.body)
                self._world.apply(decode(record.body))
                self.outcome.changes += 1
            case "clock":
                self._told.append(record.body)
            case "plan":
                self._plan(record)
            case "intent" | "phase" if self._missing:
                self._journaled.append(self._line(_as_now(record.body)))
                self._missing -= 1
                self._compare()
            case "daemon" if _starts(record):
                self._start(record)
            case "daemon" if str(record.body.get("event")).startswith(_TAKEN_OVER):
                self.outcome.policy_changes += 1
            case _:
                pass

    def _start(self, record: Record) -> None:
        self.outcome.lives += 1
        self._missing = 0
        self._world = World()
        self._world.apply(ch.Tick(record.at_s))
        for change in remembered(self._told, record.at_s):
            self._world.apply(change)

    def _plan(self, record: Record) -> None:
        self._at = record
        self._planned = tuple(map(self._line, plan(self._world, self._policies).actions))
        self._journaled = []
        self._missing = int(str(record.body.get("steps", 0)))
        self.outcome.plans += 1
        self.outcome.steps += self._missing
        self._compare()

    def _line(self, step: Any) -> str:
        """A step as it is compared; `Plain` for one that this version does not know."""
        if isinstance(step, SetNode):
            step = slim(step, self._world.managed.get(step.node.name))
        return _line(step if isinstance(step, dict) else encode(step))

    def _compare(self) -> None:
        if self._missing or self._at is None:
            return
        journaled = tuple(self._journaled)
        if journaled != self._planned:
            self.outcome.differences.append(Difference(self._at.at_s, self._at.id, journaled, self._planned))


def _line(body: Plain) -> str:
    return json.dumps(body, sort_keys=True)


def _as_now(body: Plain) -> Any:
    """A step as this version has it: fields that came later have their defaults."""
    try:
        return decode(body)
    except (ValueError, TypeError):  # there is no such step any more, or it needs what was unknown
        return body


def _told(line: str) -> str:
    """A step without what is not set: `CreateNode cpus=1 name=vn1 reason="2 waiting jobs"`."""
    body = json.loads(line)
    kind = body.pop("t", "")
    return " ".join([kind, *(f"{key}={json.dumps(value)}" for key, value in _set(body, ""))])


def _set(body: Plain, above: str) -> Iterator[tuple[str, object]]:
    for key, value in body.items():
        if isinstance(value, dict):
            yield from _set(value, f"{above}{key}.")
        elif value:
            yield above + key, value
