"""Removing checkpoints: never one that is in use, and none where nobody can say whether it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from backfill.engine.checkpoint_order import CommandError
from backfill.engine.long_orders import LongOrders

_KEPT = ("7-1700000000", "8-1700000000")
_PATIENCE_S = 60.0


class Shelf:
    """A keeper with two checkpoints."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.at_a_drop: Callable[[], None] = lambda: None

    def checkpoints(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(id=one, name="vn1", job=one[0], restarts=0, generation=1) for one in _KEPT]

    def drop(self, identity: str) -> None:
        self.dropped.append(identity)
        self.at_a_drop()


class Desk:
    """Long orders of a daemon that has such a shelf; `answer` instead of its own, where it is busy."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.managed: dict[str, Any] = {}
        self.answer: Mapping[str, Any] | None = None
        self.ended = threading.Event()
        self.notes: list[Any] = []
        daemon: Any = SimpleNamespace(
            outside=SimpleNamespace(
                keepers={"bm1": self.shelf},
                clock=SimpleNamespace(now=lambda: 0.0, ahead=lambda: 0.0),
                manager=SimpleNamespace(read_jobs=lambda ids: {}),
            ),
            cycle=SimpleNamespace(policies=SimpleNamespace(checkpoints=SimpleNamespace(quota_mb=None))),
            world=SimpleNamespace(clock_moves=(), managed=self.managed),
        )
        unused: Any = None
        self._orders = LongOrders(daemon, self._inside, unused, unused, None)

    def _inside(self, ask: Callable[[Any], Any], body: Any) -> Any:
        return ask(body) if self.answer is None else self.answer

    def use(self, identity: str) -> None:
        self.managed["vn1"] = SimpleNamespace(order=SimpleNamespace(id=identity), name="vn1")

    def remove(self) -> None:
        self._orders.known["remove-checkpoints"]({"ids": list(_KEPT)}, self._noted)

    def _noted(self, *told: Any) -> None:
        self.notes.append(told)
        self.ended.set()


def test_what_nobody_needs_is_removed() -> None:
    """All that were named."""
    desk = Desk()
    desk.remove()
    assert desk.ended.wait(_PATIENCE_S)
    assert desk.shelf.dropped == [*_KEPT]


def test_nothing_is_removed_while_the_daemon_is_too_busy_to_say() -> None:
    """No answer is not the answer that none is in use."""
    desk = Desk()
    desk.use(_KEPT[0])
    with pytest.raises(CommandError, match="just being used for vn1"):
        desk.remove()
    desk.answer = {"error": "the daemon was too busy to answer", "kind": "busy"}
    with pytest.raises(CommandError, match="nothing is removed: the daemon was too busy"):
        desk.remove()
    assert desk.shelf.dropped == []


def test_one_that_comes_into_use_meanwhile_stays() -> None:
    """A long list takes its time; the one before it is gone, and that is told."""
    desk = Desk()
    desk.shelf.at_a_drop = lambda: desk.use(_KEPT[1])
    desk.remove()
    assert desk.ended.wait(_PATIENCE_S)
    assert desk.shelf.dropped == [_KEPT[0]]
    assert f"{_KEPT[1]} is just being used for vn1" in str(desk.notes)
