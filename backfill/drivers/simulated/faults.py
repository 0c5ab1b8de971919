"""Failures that a test orders in advance: which call, how often, before or after it acted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from backfill.ports import DriverError, UnreachableError

_FINE: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class Fault:
    """One ordered failure; `subject` None means any, `times` below 0 means for ever."""

    call: str
    error: DriverError
    subject: str | None
    times: int
    acts: bool
    hang_s: float
    rate: float


class Faults:
    """The failures in force. The same seed gives the same failures."""

    def __init__(self, seed: int) -> None:
        # Repeatable failures are the point here, not secrets.
        self._random = random.Random(seed)  # noqa: S311 - a seed that replays, nothing secret
        self._orders: list[Fault] = []
        self._dead_boots: dict[str, int] = {}

    def fail(
        self,
        call: str,
        error: DriverError,
        *,
        subject: str | None = None,
        times: int = 1,
        acts: bool = False,
        rate: float = 1.0,
    ) -> None:
        """Let the next `times` calls of the port method `call` raise an error like `error`.

        `subject`: only for this host, instance, node or job. `acts`: the call does its work first,
        as when an answer is lost. `rate`: share of the calls that fail, drawn from the seed.
        """
        self._orders.append(Fault(call, error, subject, times, acts, 0.0, rate))

    def hang(self, call: str, hang_s: float, *, subject: str | None = None, times: int = 1) -> None:
        """Let the call do nothing for `hang_s` and then raise UnreachableError.

        The call itself returns at once in simulated time; a runner adds `hang_s(...)`.
        """
        error = UnreachableError(subject or call, f"'{call}' did not answer for {hang_s:g} s")
        self._orders.append(Fault(call, error, subject, times, False, hang_s, 1.0))

    def hang_s(self, call: str, *subjects: str) -> float:
        """How long the next such call would be stuck, s; 0 when it would not."""
        order = self._find(call, subjects)
        return order.hang_s if order is not None else 0.0

    def never_boots(self, name: str, times: int = 1) -> None:
        """Let the next `times` guests called `name` start and never reach slurmd (-1: for ever)."""
        self._dead_boots[name] = times

    def boots(self, name: str) -> bool:
        """Tell whether a guest that starts now will boot, and count it."""
        left = self._dead_boots.get(name, 0)
        if left > 0:
            self._dead_boots[name] = left - 1
        return left == 0

    def clear(self) -> None:
        """Let everything work again."""
        self._orders.clear()
        self._dead_boots.clear()

    @property
    def none(self) -> bool:
        """Whether nothing is ordered."""
        return not self._orders

    def around(self, call: str, *subjects: str) -> AbstractContextManager[None]:
        """Run the body of a port call with the failure that is ordered for it, if any."""
        return self._around(call, subjects) if self._orders else _FINE

    @contextmanager
    def _around(self, call: str, subjects: tuple[str, ...]) -> Iterator[None]:
        order = self._find(call, subjects)
        if order is not None and order.rate < 1.0 and self._random.random() >= order.rate:
            order = None
        if order is None:
            yield
            return
        if order.times > 0:
            order.times -= 1
        if order.acts:
            yield
        old = order.error
        raise type(old)(old.subject, old.problem, old.remedy)

    def _find(self, call: str, subjects: tuple[str, ...]) -> Fault | None:
        for order in self._orders:
            wanted = order.subject is None or order.subject in subjects
            if order.call == call and order.times != 0 and wanted:
                return order
        return None
