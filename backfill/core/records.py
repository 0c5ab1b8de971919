"""The journal's language: values to plain data and back, and what a restarted daemon reads."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from math import inf
from typing import Any, Union

from backfill.core import actions, changes, plan
from backfill.core.lifecycle import ManagedNode

Plain = dict[str, object]

_TYPES: dict[str, type] = {
    t.__name__: t
    for module in (changes, actions, plan)
    for t in vars(module).values()
    if isinstance(t, type) and dataclasses.is_dataclass(t)
}


def encode(value: object) -> Plain:
    """A change, action or refusal as plain JSON data; `t` names its type."""
    kind: Any = type(value)
    body: Plain = {"t": kind.__name__}
    for name in _names(kind):
        found = getattr(value, name)
        body[name] = found if type(found) in _ALREADY_PLAIN else _plain(found)
    return body


_ALREADY_PLAIN = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass; none for any other type."""
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
    """The inverse of `encode`. Raises ValueError for data that no version of ours has written."""
    kind = _TYPES.get(str(body.get("t")))
    if kind is None:
        raise ValueError(f"the journal names an unknown kind of entry: {body.get('t')!r}")
    return _build(kind)({k: v for k, v in body.items() if k != "t"})


@cache
def _build(kind: type) -> Callable[[Any], Any]:
    """A function that makes a `kind` out of plain data."""
    hints = typing.get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind)}

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


# Changes that no observation can bring back: a restarted daemon takes them from the journal.
REMEMBERED = frozenset(
    kind.__name__
    for kind in (
        changes.NodeManaged,
        changes.NodeForgotten,
        changes.HoldSet,
        changes.Woken,
        changes.CheckpointKept,
        changes.CheckpointPutBack,
        changes.MemoryWritten,
        changes.FleetSet,
    )
)


def remembered(bodies: Iterable[Plain], now_s: float = inf) -> list[changes.Change]:
    """Fold journal entries to the few changes that rebuild what only we know, newest last.

    The order is kept, so the phases follow one another legally; of each node only the record of
    its last phase is returned. No time in such a record is after `now_s`: where one is, the
    machine's clock was wrong then, or is now, and it would be waited for.
    """
    last: dict[str, changes.Change] = {}
    for body in bodies:
        if body.get("t") in REMEMBERED:
            _fold(last, decode(body))
    return [_by(now_s, change) for change in last.values()]


_TIMES = [
    f.name for f in dataclasses.fields(ManagedNode)
    if f.name.endswith("_s") and f.name != "not_before_s"
]  # fmt: skip


def _by(now_s: float, change: changes.Change) -> changes.Change:
    """The same with times that are still to come moved back together: their order stays."""
    if not isinstance(change, changes.NodeManaged):
        return change
    late = {name: at_s for name in _TIMES if (at_s := getattr(change.node, name)) > now_s}
    if not late:
        return change
    ahead_s = max(late.values()) - now_s
    times: dict[str, Any] = {name: at_s - ahead_s for name, at_s in late.items()}
    if change.node.not_before_s > now_s:
        times["not_before_s"] = change.node.not_before_s - ahead_s
    return changes.NodeManaged(dataclasses.replace(change.node, **times))


def _fold(last: dict[str, changes.Change], change: changes.Change) -> None:
    match change:
        case changes.NodeManaged():
            last[f"node {change.node.name}"] = change
        case changes.NodeForgotten():
            # Kept for its generation: a copy that turns up again must not look like a new one.
            last.pop(f"node {change.name}", None)
            last[f"forgotten {change.name}"] = change
        case changes.Woken() | changes.CheckpointKept() | changes.CheckpointPutBack():
            _note(last, change)
        case changes.MemoryWritten():
            last[f"rate {change.host}"] = change
        case changes.FleetSet():
            last[f"fleet {change.fleet.id}"] = change
        case changes.HoldSet():
            kind = "hold" if change.keep is None else "keep"
            last[f"{kind} {change.subject}"] = change
        case _:
            pass


def _note(
    last: dict[str, changes.Change],
    change: changes.Woken | changes.CheckpointKept | changes.CheckpointPutBack,
) -> None:
    """What the world does with such a change, done to the record in the journal."""
    known = last.get(f"node {change.name}")
    if not isinstance(known, changes.NodeManaged) or known.node.generation != change.generation:
        return
    match change:
        case changes.Woken():
            node = dataclasses.replace(known.node, woken_s=change.at_s)
        case changes.CheckpointKept():
            node = dataclasses.replace(known.node, checkpoint="", checkpoint_of=())
        case _:
            node = dataclasses.replace(known.node, put_back=True)
    last[f"node {change.name}"] = changes.NodeManaged(node)
