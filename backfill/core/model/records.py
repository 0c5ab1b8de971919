"""The journal's language: values to plain data and back, and what a restarted daemon reads."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from math import inf
from typing import Any, TypeVar, Union

from backfill.core.model import actions, changes, plan
from backfill.core.model import clock as moves
from backfill.core.model.fleet import Fleet
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import (
    PARTS,
    ManagedNode,
    disinherit,
    in_place,
    inherit,
    kept_here,
    unconfirmed,
    without,
    woken,
)
from backfill.core.model.refusals import Detail, Reason, Refusal, older

Plain = dict[str, object]


# Names that records of a type have kept from before it was renamed.
_FORMER: dict[type, str] = {actions.CancelParents: "EndNursing"}


def tag(kind: type) -> str:
    """Return the name of a type in the journal."""
    return _FORMER.get(kind) or kind.__name__


_TYPES: dict[str, type] = {
    tag(t): t
    for module in (changes, actions, plan)
    for t in vars(module).values()
    if isinstance(t, type) and dataclasses.is_dataclass(t) and t is not plan.Plan  # that is never written
}


def record_types() -> dict[str, type]:
    """Every type that a record may be of, by its name."""
    return dict(_TYPES)


def encode(value: object) -> Plain:
    """Turn a change, action or refusal into plain JSON data; `t` names its type."""
    kind: Any = type(value)
    body: Plain = {"t": tag(kind)}
    for name in _names(kind):
        found = getattr(value, name)
        body[name] = found if type(found) in _ALREADY_PLAIN else _plain(found)
    return body


def encode_briefly(value: object, known: ManagedNode | None = None) -> Plain:
    """Leave out what has its default: `decode` gives back the same value.

    The record of a node is made slim against `known`, the record before, where there is one.
    """
    if known is not None:
        value = slim(value, known)
    return {"t": tag(type(value)), **_brief(value)}


def _brief(value: object) -> Plain:
    kind: Any = type(value)
    found: Plain = {}
    for name, default in _defaults(kind):
        one = getattr(value, name)
        inner: Any = type(one)
        if one != default or inner is not type(default):
            found[name] = _brief(one) if _names(inner) else _plain(one)
    return found


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    """Each field with its default; a value of its own where there is none."""
    made = (
        (f.name, f.default_factory() if callable(f.default_factory) else f.default)
        for f in dataclasses.fields(kind)
    )
    return tuple(made)


S = TypeVar("S")


def slim(step: S, known: ManagedNode | None) -> S:
    """Leave out of a node's record a guest's report that the record before, `known`, has too.

    `World.apply` and `remembered` put it in again.
    """
    if not isinstance(step, changes.NodeManaged | plan.SetNode):
        return step
    return dataclasses.replace(step, node=disinherit(step.node, known))


_ALREADY_PLAIN = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Return names of the fields of a dataclass; none for any other type."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def _plain(value: object) -> object:
    kind: Any = type(value)
    if kind in _ALREADY_PLAIN:
        return value
    if names := _names(kind):
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def decode(body: Plain) -> Any:
    """Undo `encode`. Raises ValueError for data that no version of ours has written."""
    kind = _TYPES.get(str(body.get("t")))
    if kind is Refusal and "code" not in body:
        return older(*(str(body[name]) for name in ("subject", "what", "reason")))
    if kind is not None and issubclass(kind, actions.Head) and "subject" not in body:
        body = {**body, "subject": body["name"]}  # as it was called in version 2
    if kind is None:
        raise ValueError(f"the journal names an unknown kind of entry: {body.get('t')!r}")
    return _build(kind)({k: v for k, v in body.items() if k != "t"})


@cache
def _build(kind: type) -> Callable[[Any], Any]:
    """Return a function that makes a `kind` out of plain data."""
    hints = typing.get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind)}
    if kind is Detail:
        readers["value"] = _fact

    def build(data: Any) -> Any:
        # Fields that a later version dropped are ignored; new ones take their defaults.
        return kind(**{k: readers[k](v) for k, v in data.items() if k in readers})

    return build


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        read = _reader(inner[0])
        return lambda v: None if v is None else read(v)
    if origin is tuple:
        item = _reader(typing.get_args(hint)[0])
        return lambda v: tuple(item(x) for x in v)
    if origin is frozenset:
        return frozenset
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _build(hint)
    return _same


def _same(value: Any) -> Any:
    return value


def _fact(value: Any) -> Any:
    """Read the value of a fact: a plain one, a reason, or several of either."""
    if isinstance(value, list):
        return tuple(_fact(one) for one in value)
    return _build(Reason)(value) if isinstance(value, dict) else value


# Changes that no observation can bring back: a restarted daemon takes them from the journal.
REMEMBERED = frozenset(
    kind.__name__
    for kind in (
        changes.NodeManaged,
        changes.NodeForgotten,
        changes.Destroyed,
        changes.Unconfirmed,
        changes.HoldSet,
        changes.Woken,
        changes.CopiesEnded,
        changes.CheckpointKept,
        changes.CheckpointPutBack,
        changes.MemoryWritten,
        changes.FleetSet,
        changes.MachinesSet,
        changes.ClockSet,
        changes.ClockRead,
    )
)


def remembered(bodies: Iterable[Plain], now_s: float = inf) -> list[changes.Change]:
    """Fold journal entries to the few changes that rebuild what only we know, newest last.

    The order is kept, so the phases follow one another legally; of each node only the record of
    its last phase is returned. Where a daemon began in another time than the one before it, all
    that is older is moved with it. No time in such a record is after `now_s`: where one is, the
    machine's clock was wrong then, or is now, and it would be waited for.
    """
    last: dict[str, changes.Change] = {}
    for body in bodies:
        if body.get("t") in REMEMBERED:
            _fold(last, decode(body))
    return [_by(now_s, change) for change in last.values() if _counts(now_s, change)]


def _counts(now_s: float, change: changes.Change) -> bool:
    """Return False for what was destroyed more than an hour ago: no limit counts it any more."""
    return not isinstance(change, changes.Destroyed) or now_s == inf or change.at_s > now_s - 3600.0


def began(bodies: Iterable[Plain], now: changes.ClockRead) -> changes.ClockRead:
    """Tell by the journal how far times have moved when a daemon begins at `now`, and how long none was."""
    known: tuple[float, str, float] | None = None
    for body in bodies:
        if body.get("t") == changes.ClockRead.__name__:
            read = decode(body)
            known = (read.at_s, read.boot, read.uptime_s)
    by_s = moves.moved_s(known, (now.at_s, now.boot, now.uptime_s))
    away_s = 0.0 if known is None else max(0.0, now.at_s - known[0] - by_s)
    return dataclasses.replace(now, began=True, moved_s=by_s, away_s=away_s)


_KINDS: frozenset[type] = frozenset((*PARTS, Fleet, JobMachines))


@cache
def _moments(kind: type) -> tuple[str, ...]:
    """Fields on _s are moments; one that is a length of time says so: metadata={"span": True}."""
    found: Any = dataclasses.fields(kind)
    return tuple(f.name for f in found if f.name.endswith("_s") and not f.metadata.get("span"))


_RecordT = TypeVar("_RecordT")


def _each_moment(record: _RecordT, put: Callable[[str, float], float]) -> _RecordT:
    """Put `put(name, moment)` in the place of each moment of the record and of its parts."""
    kind: Any = type(record)
    after: dict[str, Any] = {}
    for name in _names(kind):
        value = getattr(record, name)
        if type(value) in _KINDS:
            after[name] = _each_moment(value, put)
        elif isinstance(value, tuple) and value and type(value[0]) in _KINDS:
            after[name] = tuple(_each_moment(one, put) for one in value)
    for name in _moments(kind):
        if (at_s := getattr(record, name)) is not None:
            after[name] = put(name, at_s)
    changed = {name: value for name, value in after.items() if value != getattr(record, name)}
    made: Any = record
    return typing.cast("_RecordT", dataclasses.replace(made, **changed) if changed else made)


def _moved(change: changes.Change, by_s: float) -> changes.Change:
    """Return what was written in an older time, in the one that is `by_s` later."""
    match change:
        case changes.NodeManaged():
            return changes.NodeManaged(_later(change.node, by_s))
        case changes.FleetSet():
            return changes.FleetSet(_later(change.fleet, by_s))
        case changes.MachinesSet():
            return changes.MachinesSet(_later(change.machines, by_s))
        case changes.HoldSet() | changes.MemoryWritten() | changes.Destroyed():
            return dataclasses.replace(change, at_s=change.at_s + by_s)
        case _:
            return change


def _later(record: _RecordT, by_s: float) -> _RecordT:
    """Move all moments of the record."""
    return _each_moment(record, lambda _, at_s: at_s + by_s)


def _by(now_s: float, change: changes.Change) -> changes.Change:
    """Move times that are still to come back together: their order stays."""
    if isinstance(change, changes.Destroyed):
        return dataclasses.replace(change, at_s=min(change.at_s, now_s))
    if not isinstance(change, changes.NodeManaged):
        return change
    last_s = _latest(change.node)
    if last_s <= now_s:
        return change
    ahead_s = last_s - now_s
    return changes.NodeManaged(
        _each_moment(change.node, lambda _, at_s: at_s - ahead_s if at_s > now_s else at_s)
    )


def _latest(node: ManagedNode) -> float:
    """Return the latest of its moments, but for the one that is to come: its next try."""
    found: list[float] = []

    def note(name: str, at_s: float) -> float:
        if name != "not_before_s":
            found.append(at_s)
        return at_s

    _each_moment(node, note)
    return max(found)


def _fold(last: dict[str, changes.Change], change: changes.Change) -> None:
    if isinstance(change, changes.ClockSet | changes.ClockRead):
        _clock(last, change)
        return
    _fold_destroyed(last, change)
    match change:
        case changes.NodeManaged(node=node):
            before = last.get(f"node {node.name}")
            known = before.node if isinstance(before, changes.NodeManaged) else None
            last[f"node {node.name}"] = changes.NodeManaged(inherit(node, known))
        case changes.NodeForgotten():
            # Kept for its generation: a copy that turns up again must not look like a new one.
            last.pop(f"node {change.name}", None)
            last[f"forgotten {change.name}"] = change
        case (
            changes.Woken()
            | changes.CopiesEnded()
            | changes.CheckpointKept()
            | changes.CheckpointPutBack()
            | changes.Unconfirmed()
        ):
            _note(last, change)
        case changes.MemoryWritten() | changes.FleetSet() | changes.MachinesSet():
            last[_only(change)] = change
        case changes.HoldSet():
            kind = "hold" if change.keep is None else "keep"
            last[f"{kind} {change.subject}"] = change
        case _:
            pass


def _only(change: changes.MemoryWritten | changes.FleetSet | changes.MachinesSet) -> str:
    """Return of what only the last word counts."""
    match change:
        case changes.MemoryWritten():
            return f"rate {change.host}"
        case changes.FleetSet():
            return f"fleet {change.fleet.id}"
        case changes.MachinesSet():
            return f"machines {change.machines.job}"


def _clock(last: dict[str, changes.Change], change: changes.ClockSet | changes.ClockRead) -> None:
    if isinstance(change, changes.ClockRead):
        if not change.began:
            return
        if change.moved_s:
            for key, known in last.items():
                last[key] = _moved(known, change.moved_s)
    last[f"clock {change.at_s!r}"] = change


def _fold_destroyed(last: dict[str, changes.Change], change: changes.Change) -> None:
    """Keep what was destroyed counted when its node is forgotten."""
    if isinstance(change, changes.NodeManaged) and (found := change.node.condemned) is not None:
        node = change.node
        change = changes.Destroyed(node.name, node.generation, found.since_s, found.cause)
    if isinstance(change, changes.Destroyed):
        last[f"destroyed {change.name} {change.generation} {change.at_s}"] = change


def _note(
    last: dict[str, changes.Change],
    change: changes.Woken
    | changes.CopiesEnded
    | changes.CheckpointKept
    | changes.CheckpointPutBack
    | changes.Unconfirmed,
) -> None:
    """Do to the record in the journal what the world does with such a change."""
    known = last.get(f"node {change.name}")
    if not isinstance(known, changes.NodeManaged) or known.node.generation != change.generation:
        return
    match change:
        case changes.Woken():
            node = woken(known.node, change.at_s)
        case changes.CopiesEnded():
            node = without(known.node, change.jobs)
        case changes.CheckpointKept():
            node = kept_here(known.node)
        case changes.Unconfirmed():
            node = unconfirmed(known.node, change.reason)
        case _:
            node = in_place(known.node)
    last[f"node {change.name}"] = changes.NodeManaged(node)
