"""Tables that can be put back: a plan tries its steps on the world, and one that fails is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class UndoLog:
    """Remembers how to take back every change of the tables that share it, while that is wanted."""

    __slots__ = ("_undo", "on")

    def __init__(self) -> None:
        self.on = False
        self._undo: list[Callable[[], object]] = []

    def note(self, undo: Callable[[], object]) -> None:
        """Remember how to take back what is just done."""
        self._undo.append(undo)

    def keep(self) -> None:
        """Let what was changed so far stay as it is."""
        self._undo.clear()

    @property
    def changes(self) -> int:
        """How many changes could be taken back now."""
        return len(self._undo)

    def take_back(self, changes: int) -> None:
        """Take back all but the first so many changes."""
        while len(self._undo) > changes:
            self._undo.pop()()

    @contextmanager
    def tentatively(self) -> Iterator[None]:
        """Take back at the end whatever is changed meanwhile."""
        if self.on:
            raise AssertionError("a plan is made while another one is")
        self.on = True
        try:
            yield
        finally:
            self.on = False
            self.take_back(0)


class Table(dict[K, V]):
    """A dict that can be put back. Its values must not be changed in place."""

    __slots__ = ("_log",)

    def __init__(self, log: UndoLog) -> None:
        super().__init__()
        self._log = log

    def __setitem__(self, key: K, value: V) -> None:
        if self._log.on:
            self._log.note(partial(self._put_back, key, dict.get(self, key, _MISSING)))
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: K) -> None:
        if self._log.on:
            self._log.note(partial(self._put_back, key, dict.get(self, key, _MISSING)))
        dict.__delitem__(self, key)

    def pop(self, key: K, default: Any = None) -> Any:
        """Take out a key; unlike a dict's, never raise."""
        if self._log.on and key in self:
            self._log.note(partial(self._put_back, key, self[key]))
        return dict.pop(self, key, default)

    def _put_back(self, key: K, value: V) -> None:
        if value is _MISSING:
            dict.pop(self, key, None)
        else:
            dict.__setitem__(self, key, value)


class Tally(Table[K, int]):
    """Counts of things that are alike, which can be put back; what is not there is no key."""

    def add(self, key: K) -> None:
        """Count one more."""
        self[key] = self.get(key, 0) + 1

    def discard(self, key: K) -> None:
        """Count one less."""
        if left := self[key] - 1:
            self[key] = left
        else:
            del self[key]


class Bag(set[K]):
    """A set that can be put back; only `add` and `discard` may change it."""

    def __init__(self, log: UndoLog) -> None:
        super().__init__()
        self._log = log

    def add(self, key: K) -> None:
        """Put in a key."""
        if self._log.on and key not in self:
            self._log.note(partial(set.discard, self, key))
        set.add(self, key)

    def discard(self, key: object) -> None:
        """Take out a key, if it is there."""
        if self._log.on and key in self:
            self._log.note(partial(self._add_back, key))
        set.discard(self, key)

    def _add_back(self, key: Any) -> None:
        set.add(self, key)
