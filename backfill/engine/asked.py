"""Queries that the daemon's own thread answers a slice at a time, so that hooks never wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator

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
