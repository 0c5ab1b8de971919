"""Queries that the daemon's own thread answers a slice at a time, so that hooks never wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from queue import Empty

from backfill.engine.messages import Query


class Asked:
    """Queries that are not answered yet. For the daemon's one thread."""

    def __init__(self) -> None:
        self._open: deque[tuple[Query, Generator[object, None, object]]] = deque()

    def begin(self, question: Query) -> None:
        """Answer it, or begin to."""
        if not question.wanted():
            return
        found = question.ask()
        if isinstance(found, Generator):
            self._open.append((question, found))
        else:
            question.reply.put(found)

    def go_on(self) -> bool:
        """Make one slice of one answer, in turns; whether there is more to do."""
        if self._open:
            question, slices = self._open.popleft()
            if question.wanted():
                try:
                    next(slices)
                    self._open.append((question, slices))
                except StopIteration as end:
                    question.reply.put(end.value)
        return bool(self._open)

    def go_on_while(self, idle: Callable[[], bool], within_s: float) -> bool:
        """Make slices while there is nothing else to do; whether there is more of them."""
        until_s = time.monotonic() + within_s
        while self._open and idle() and time.monotonic() < until_s:
            self.go_on()
        return bool(self._open)


class PendingAnswer:
    """What another thread waits for: its query is begun or given up, never both."""

    def __init__(self, ask: Callable[[], object]) -> None:
        """`ask`: as in a query."""
        self._ask = ask
        self._lock = threading.Lock()
        self._begun = self._given_up = False
        self.query = Query(self._begin, wanted=lambda: not self._given_up)

    def within(self, patience_s: float) -> object:
        """Return the answer; None: it was not begun, and nothing comes of it any more.

        What was begun is waited for, as it may be an order; but an answer in slices is left off.
        """
        try:
            return self.query.reply.get(timeout=patience_s)
        except Empty:
            return None if self._give_up() else self.query.reply.get()

    def _begin(self) -> object:
        with self._lock:
            if self._given_up:
                return None
            self._begun = True
        found = self._ask()
        if isinstance(found, Generator):
            self._begun = False
        return found

    def _give_up(self) -> bool:
        with self._lock:
            self._given_up = not self._begun
            return self._given_up
