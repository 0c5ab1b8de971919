"""Fleets: instances that were ordered together and come to be all together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backfill.core.fleet import CloneMethod


class FleetState(StrEnum):
    """How far an order is."""

    WAITING = "waiting"  # for room, or for an order that came before it
    MAKING = "making"
    READY = "ready"  # every member takes jobs
    UNDOING = "undoing"  # one member could not be made: all go again
    FAILED = "failed"  # nothing of it is left; the reason is kept
    LEAVING = "leaving"  # somebody deleted it
    GONE = "gone"  # nothing of it is left; its record is dropped


@dataclass(frozen=True, slots=True)
class Fleet:
    """One order for `size` instances. Times in epoch seconds, 0 for what has not happened.

    `image` and `method` are empty for what the policy file says. `members` are the names that were
    given to it so far.
    """

    id: str
    size: int
    state: FleetState
    ordered_s: float
    image: str = ""
    method: CloneMethod | None = None
    members: tuple[str, ...] = ()
    begun_s: float | None = None  # its first member was begun
    all_begun_s: float | None = None  # its last member was begun for the first time
    ready_s: float | None = None  # its last member was ready
    over_s: float | None = None  # nothing of it was left
    retries: int = 0  # members that were begun anew
    reason: str = ""

    @property
    def growing(self) -> bool:
        """Whether instances are still to be made for it."""
        return self.state in (FleetState.WAITING, FleetState.MAKING)

    @property
    def settled(self) -> bool:
        """Whether nothing is to be done about it."""
        return self.state in (FleetState.READY, FleetState.FAILED)
