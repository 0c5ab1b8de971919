"""What several threads want of Slurm at the same time becomes one piece of work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from backfill.ports.errors import DriverError

_Wish = TypeVar("_Wish")
# How a piece of work went for each wish of it, by its place: None where it went well.
Ends = Mapping[int, DriverError | None]


@dataclass(eq=False, slots=True)
class _Ticket(Generic[_Wish]):
    """A wish that waits for its turn, and how that ended."""

    wish: _Wish
    done: bool = False
    error: DriverError | None = None


class Together(Generic[_Wish]):
    """Whoever comes first carries out what all who wait by then want; nobody waits for more."""

    def __init__(self) -> None:
        self._waiting: list[_Ticket[_Wish]] = []
        self._list_lock = threading.Lock()
        self._turn = threading.Lock()

    def want(self, wish: _Wish, work: Callable[[Sequence[_Wish]], Ends]) -> None:
        """Have the wish carried out by `work`, mine or another's; raises its DriverError."""
        ticket = _Ticket(wish)
        with self._list_lock:
            self._waiting.append(ticket)
        with self._turn:
            if not ticket.done:
                self._carry_out(work)
        if ticket.error is not None:
            raise ticket.error

    def _carry_out(self, work: Callable[[Sequence[_Wish]], Ends]) -> None:
        with self._list_lock:
            batch, self._waiting = self._waiting, []
        ends: Ends
        try:
            ends = work([ticket.wish for ticket in batch])
        except DriverError as error:
            ends = dict.fromkeys(range(len(batch)), error)
        for place, ticket in enumerate(batch):
            ticket.done, ticket.error = True, ends.get(place)
