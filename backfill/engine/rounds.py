"""Repeats tasks, each at its own interval, by a clock that nobody can set."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

_LOG = logging.getLogger("backfill.rounds")


# What is done only once, and found no thread, is tried again after this.
_AGAIN_S = 1.0


@dataclass(slots=True, eq=False)
class _Round:
    every_s: float  # 0: once
    do: Callable[[], object]
    slow: bool
    busy: threading.Lock = field(default_factory=threading.Lock)


class Rounds:
    """One thread begins everything; what is slow has a thread of its own, one at a time.

    A turn that was missed, as the machine slept or was busy, is taken once and not made up for.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._due: list[tuple[float, int, _Round]] = []
        self._number = count()
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def add(self, every_s: float, do: Callable[[], object], *, slow: bool = False) -> None:
        """Do it every so many seconds, the first time after one of them."""
        with self._change:
            self._push(_Round(every_s, do, slow), self._monotonic() + every_s)

    def once(self, do: Callable[[], object]) -> None:
        """Do it now, beside the caller."""
        self._spawn(_Round(0.0, do, slow=True))

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def late_s(self) -> float:
        """Return for how long what is due has not been begun: much only if nothing is begun any more."""
        with self._change:
            return max(0.0, self._monotonic() - self._due[0][0]) if self._due else 0.0

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        with self._change:
            self._closed = True
            self._change.notify()

    def _push(self, one: _Round, at_s: float) -> None:
        heapq.heappush(self._due, (at_s, next(self._number), one))
        self._change.notify()

    def _run(self) -> None:
        while (one := self._next()) is not None:
            if one.slow:
                self._spawn(one)
            else:
                _safely(one)

    def _next(self) -> _Round | None:
        """Wait for what is due next; None when all is over."""
        with self._change:
            while not self._closed:
                now_s = self._monotonic()
                wait_s = self._due[0][0] - now_s if self._due else None
                if wait_s is None or wait_s > 0.0:
                    self._change.wait(wait_s)
                    continue
                at_s, _, one = heapq.heappop(self._due)
                if one.every_s:
                    again_s = at_s + one.every_s
                    self._push(one, again_s if again_s > now_s else now_s + one.every_s)
                return one
        return None

    def _spawn(self, one: _Round) -> None:
        """In a thread of its own, unless the last turn of it is still under way."""
        if not one.busy.acquire(blocking=False):
            return

        def work() -> None:
            try:
                _safely(one)
            finally:
                one.busy.release()

        try:
            threading.Thread(target=work, name="round", daemon=True).start()
        except RuntimeError as error:  # no thread or memory is left: the others must go on
            one.busy.release()
            _LOG.error("a regular task is put off to its next turn, as it got no thread: %s", error)
            if not one.every_s:
                with self._change:
                    self._push(one, self._monotonic() + _AGAIN_S)


def _safely(one: _Round) -> None:
    try:
        one.do()
    except Exception:  # noqa: BLE001 - a defect in one must not end the others
        _LOG.exception("a regular task failed in an unforeseen way")
