"""Amounts and names: how many, Resources, and Slurm's hostlists as sets of node names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

# A node name in which any number of ranges may stand: rack[1-2]n[01-16]-ib.
_PART = re.compile(r"^[A-Za-z0-9_.-]*(?:\[[0-9,\- ]+\][A-Za-z0-9_.-]*)*$")
_RANGES = re.compile(r"\[([0-9,\- ]+)\]")
_NUMBERED = re.compile(r"^(?P<prefix>.*?)(?P<number>\d+)$")
_LARGEST_HOSTLIST = 1_000_000


def counted(number: int, one: str, many: str = "") -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


@dataclass(frozen=True, slots=True, order=True)
class Resources:
    """What a host offers or an instance takes: whole CPUs and MiB of memory."""

    cpus: int
    memory_mb: int

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpus + other.cpus, self.memory_mb + other.memory_mb)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpus - other.cpus, self.memory_mb - other.memory_mb)

    def fits(self, room: Resources) -> bool:
        """Tell whether this much fits into `room` in every dimension."""
        return self.cpus <= room.cpus and self.memory_mb <= room.memory_mb

    def __str__(self) -> str:
        return f"{self.cpus} CPUs and {self.memory_mb} MB"


NOTHING = Resources(0, 0)


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Expand a Slurm hostlist such as `n[1,3-5],login` to names, in order and without repeats.

    Raises ValueError naming the faulty part. An empty text, `None assigned` and `(null)` are the
    ways in which Slurm says "no node" and give an empty tuple.
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "None", "N/A"):
        return ()
    names: dict[str, None] = {}
    for part in _split(text):
        for name in _expand(part):
            names[name] = None
            if len(names) > _LARGEST_HOSTLIST:
                raise ValueError(f"hostlist '{text[:40]}…' names more than a million nodes")
    return tuple(names)


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        if depth not in (0, 1):
            raise ValueError(f"hostlist '{text}': brackets do not match")
    if depth:
        raise ValueError(f"hostlist '{text}': brackets do not match")
    parts.append(text[start:])
    return parts


def _expand(part: str) -> Iterable[str]:
    if _PART.match(part.strip()) is None or part.strip() == "":
        raise ValueError(f"hostlist part '{part}' is not a node name or a range like n[1-4]")
    # Names and ranges take turns; the last range counts fastest, as Slurm has it.
    pieces = _RANGES.split(part.strip())
    choices = [
        [n for piece in text.split(",") for n in _numbers(piece, part)] if at % 2 else [text]
        for at, text in enumerate(pieces)
    ]
    if math.prod(map(len, choices)) > _LARGEST_HOSTLIST:
        raise ValueError(f"hostlist part '{part[:40]}' names more than a million nodes")
    return map("".join, itertools.product(*choices))


def _numbers(piece: str, part: str) -> Iterable[str]:
    low, dash, high = piece.strip().partition("-")
    if not low.isdigit() or (dash and not high.isdigit()):
        raise ValueError(f"hostlist part '{part}': '{piece}' is not a number or a range")
    first, last = int(low), int(high) if dash else int(low)
    if last < first or last - first > _LARGEST_HOSTLIST:
        raise ValueError(f"hostlist part '{part}': the range '{piece}' is empty or too long")
    return (str(n).zfill(len(low)) for n in range(first, last + 1))


def fold_hostlist(names: Iterable[str]) -> str:
    """Write node names as a compact Slurm hostlist; the inverse of `parse_hostlist` as a set."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.match(name)
        if match is None:
            plain.append(name)
            continue
        digits = match["number"]
        width = len(digits) if digits.startswith("0") else 0
        groups.setdefault((match["prefix"], width), []).append(int(digits))
    folded = [_fold_group(prefix, width, numbers) for (prefix, width), numbers in groups.items()]
    return ",".join(sorted(plain + folded))


def _fold_group(prefix: str, width: int, numbers: list[int]) -> str:
    numbers = sorted(numbers)
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    texts = [
        str(a).zfill(width) if a == b else f"{str(a).zfill(width)}-{str(b).zfill(width)}"
        for a, b in runs
    ]
    if len(numbers) == 1:
        return f"{prefix}{texts[0]}"
    return f"{prefix}[{','.join(texts)}]"
