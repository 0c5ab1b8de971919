"""Pilots that we send ourselves: how they are told from others; and what the pool outside says."""

from __future__ import annotations

from dataclasses import dataclass

_MARK, _NAME = "backfill: pilot ", "backfill-pilot-"


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """A pool's own word, or the lack of it. `seen_s`: when the last answer began; 0: none came yet."""

    seen_s: float = 0.0
    idle: int = 0  # payloads that wait for a pilot
    problem: str = ""  # why the latest question has no answer


def mark_of(slot: int) -> str:
    """Return the comment by which the pilot of a slot is known in Slurm."""
    return f"{_MARK}{slot}"


def name_of(slot: int) -> str:
    """Return the job name of the pilot of a slot: Slurm lets one of a name work at a time."""
    return f"{_NAME}{slot}"


def slot_of_name(name: str) -> int | None:
    """Return the slot that a job of this name has; None: none."""
    number = name.removeprefix(_NAME)
    return int(number) if number != name and number.isdecimal() else None


def slot_of(name: str, comment: str) -> int | None:
    """Return whose slot's pilot a job with these says to be; None: of none."""
    slot = slot_of_name(name)
    return slot if slot is not None and comment == mark_of(slot) else None
