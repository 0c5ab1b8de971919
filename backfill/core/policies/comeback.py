"""Comeback: when work that was pushed aside goes on, at its own host or at another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Comeback:
    """Return of displaced instances. Times in seconds."""

    # The host must have been free for so long first; 0 brings work back at once.
    settle_s: float = 0.0
    # A return that has not succeeded after this time has failed: the job is requeued.
    within_s: float = 120.0
    # A stopped instance moves to another host only after having waited so long for its own.
    move_after_s: float = 2.0
