"""Replays a daemon's journal: from the same changes the same plans must come, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from operator import attrgetter
from typing import Any, NamedTuple

from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode, inherit
from backfill.core.model.plan import Action, ForgetNode, SetNode
from backfill.core.model.records import Plain, decode, encode, remembered, slim
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.ports.storage import Record

_TAKEN_OVER = "policy file taken over"

# What the journal tells between two rounds of one decision.
_OF_STEPS = (
    ch.NodeManaged,
    ch.NodeForgotten,
    ch.FleetSet,
    ch.MachinesSet,
    ch.ClaimAnswered,
    ch.ClaimEnded,
    ch.OperationStarted,
    ch.JobSeen,
    ch.NodeSeen,
)


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
        """Yield a unified diff from the journal's steps to those of the replay, for people."""
        title = f"plan at {self.at_s:.3f} (record {self.record})"
        before, after = [_told(s) for s in self.journal], [_told(s) for s in self.replayed]
        if before == after:  # they differ in what is not told
            before, after = list(self.journal), list(self.replayed)
        yield from unified_diff(before, after, f"journal: {title}", f"replay: {title}", lineterm="")


@dataclass(slots=True)
class JournalOutcome:
    """The result of a replay."""

    plans: int = 0
    steps: int = 0
    changes: int = 0
    lives: int = 0
    skipped: int = 0  # records before the first start of a daemon that is there as a whole
    policy_changes: int = 0
    differences: list[Difference] = field(default_factory=list)


def replay_journal(records: Iterable[Record], policies: PolicySet) -> JournalOutcome:
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
    return replayer.finish()


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
    """Return True if records are missing here although ids go on: the journal could not be written."""
    return record.kind == "daemon" and record.body.get("event") == "gap"


class _Replayer:
    def __init__(self, policies: PolicySet) -> None:
        self.outcome = JournalOutcome()
        self._policies = policies
        self._world = World()
        self._told: list[Plain] = []  # all changes so far: what a restarted daemon remembers
        self._planned: list[_Told] = []
        self._journaled: list[_Told] = []
        self._missing = 0  # steps of the latest plan that the journal still has to tell
        self._at: Record | None = None
        self._rounds = 0  # so many records of plans tell what is one plan now
        self._again = False  # a step of our own was among them
        self._news = False  # something came since that no step of the plan has brought about

    def remember(self, record: Record) -> None:
        """Take in what came before."""
        if record.kind in ("change", "clock"):
            self._told.append(record.body)

    def take(self, record: Record) -> None:
        """Follow one record."""
        match record.kind:
            case "change":
                self._told.append(record.body)
                change = decode(record.body)
                self._news = self._news or not isinstance(change, _OF_STEPS)
                self._world.apply(change)
                self.outcome.changes += 1
            case "clock":
                self._told.append(record.body)
            case "plan":
                self._plan(record)
            case "intent" | "phase" if self._missing:
                self._journaled.append(self._journaled_step(record))
                self._again = self._again or record.kind == "phase"
                self._missing -= 1
            case "daemon" if _starts(record):
                self._start(record)
            case "daemon" if str(record.body.get("event")).startswith(_TAKEN_OVER):
                self.outcome.policy_changes += 1
            case _:
                pass

    def finish(self) -> JournalOutcome:
        """Nothing follows."""
        self._compare()
        return self.outcome

    def _start(self, record: Record) -> None:
        self._compare()
        self.outcome.lives += 1
        self._world = World()
        self._world.apply(ch.Tick(record.at_s))
        for change in remembered(self._told, record.at_s):
            self._world.apply(change)

    def _plan(self, record: Record) -> None:
        steps = int(str(record.body.get("steps", 0)))
        self.outcome.steps += steps
        same = self._at is not None and self._at.at_s == record.at_s and not (self._news or self._missing)
        if same and self._again and not record.body.get("whole"):
            self._rounds += 1  # as was written while a plan was one step of many
        else:
            self._compare()
            self._at, self._rounds = record, 1
            self._planned = list(_told_of(self._world, plan(self._world, self._policies, spare=True).actions))
            self.outcome.plans += 1
        self._missing, self._news, self._again = steps, False, False

    def _journaled_step(self, record: Record) -> _Told:
        step: Any = _as_now(record.body)
        if isinstance(step, SetNode):
            step = slim(step, self._world.managed.get(step.node.name))
        return _Told(record.subject, _line(step if isinstance(step, dict) else encode(step)))

    def _compare(self) -> None:
        """Of a plan in rounds the steps about each subject have to be the same, in their order."""
        if self._at is not None and not self._missing:
            journaled, planned = self._journaled, self._planned
            if self._rounds > 1:
                journaled, planned = sorted(journaled, key=_subject), sorted(planned, key=_subject)
            if journaled != planned:
                before, after = ([told.line for told in side] for side in (journaled, planned))
                found = Difference(self._at.at_s, self._at.id, tuple(before), tuple(after))
                self.outcome.differences.append(found)
        self._at, self._planned, self._journaled, self._missing = None, [], [], 0


class _Told(NamedTuple):
    """A step as it is compared, and whom it is about."""

    subject: str
    line: str


_subject = attrgetter("subject")


def _told_of(world: World, steps: Iterable[Action]) -> Iterator[_Told]:
    """Yield the steps of a plan as the journal tells them: of a record what is new in it."""
    known: dict[str, ManagedNode | None] = {}
    for step in steps:
        told: Any = step
        if isinstance(step, SetNode):
            name = step.node.name
            told = slim(step, known.get(name, world.managed.get(name)))
            known[name] = inherit(step.node, known.get(name, world.managed.get(name)))
        elif isinstance(step, ForgetNode):
            known[step.name] = None
        yield _Told(step.subject, _line(encode(told)))


def _line(body: Plain) -> str:
    return json.dumps(body, sort_keys=True)


def _as_now(body: Plain) -> Any:
    """Return a step as this version has it: fields that came later have their defaults."""
    try:
        return decode(body)
    except (ValueError, TypeError):  # there is no such step any more, or it needs what was unknown
        return body


def _told(line: str) -> str:
    """Return a step without what is not set: `CreateNode cpus=1 name=vn1 reason="2 waiting jobs"`."""
    body = json.loads(line)
    kind = body.pop("t", "")
    return " ".join([kind, *(f"{key}={json.dumps(value)}" for key, value in _set(body, ""))])


def _set(body: Plain, above: str) -> Iterator[tuple[str, object]]:
    for key, value in body.items():
        if isinstance(value, dict):
            yield from _set(value, f"{above}{key}.")
        elif value:
            yield above + key, value
