"""How a clock was set: moments that were written down before, as it would show them now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """A clock was set by so much (back: negative), and showed `at_s` right after, epoch seconds."""

    at_s: float
    by_s: float


def as_now(moves: Sequence[Move], at_s: float) -> float:
    """A moment that was written down as `at_s`, as the clock would show it now.

    Where the clock went back, the hours that it showed twice are taken for the second time.
    """
    for move in moves:
        if at_s < move.at_s and at_s <= move.at_s - move.by_s:
            at_s += move.by_s
    return at_s


def as_then(moves: Sequence[Move], at_s: float) -> float:
    """A moment that is `at_s` as the clock shows it now, as it was written down at its time."""
    for move in reversed(moves):
        if at_s < move.at_s:
            at_s -= move.by_s
    return at_s


def moved_s(known: tuple[float, str, float] | None, found: tuple[float, str, float]) -> float:
    """What has to be added to times that were written before, to have them in the time of now.

    Both are a time, the boot of the machine, and its uptime then. Across a boot nobody can know how
    long it took if its clock may be wrong: no time has passed.
    """
    if known is None:
        return 0.0
    (then_s, booted, was_up_s), (now_s, boot, uptime_s) = known, found
    same = boot == booted and uptime_s >= was_up_s
    by_s = now_s - then_s - (uptime_s - was_up_s if same else 0.0)
    return by_s if abs(by_s) >= NOTABLE_S else 0.0


# A clock that was set by less was not set as far as anybody is told.
NOTABLE_S = 1.0
