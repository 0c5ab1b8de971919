"""Amounts and names: Resources, how fast memory reaches the disk, and Slurm's hostlists as sets of names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

# A node name in which any number of ranges may stand: rack[1-2]n[01-16]-ib.
_PART = re.compile(r"^[A-Za-z0-9_.-]*(?:\[[0-9,\- ]+\][A-Za-z0-9_.-]*)*$")


_RANGES = re.compile(r"\[([0-9,\- ]+)\]")


_NUMBERED = re.compile(r"^(?P<prefix>.*?)(?P<number>\d+)$")


_LARGEST_HOSTLIST = 1_000_000


# The most that a cluster of Slurm's can have, so whoever names more is not to be believed.
MOST_NODES = 65_536


_LONGEST_NUMBER = 18  # digits; what has more is no number of a node


_LONGEST_NAME = 255  # as of any host


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
        """Return True if this much fits into `room` in every dimension."""
        return self.cpus <= room.cpus and self.memory_mb <= room.memory_mb

    def __str__(self) -> str:
        return f"{self.cpus} CPUs and {self.memory_mb} MB"


NOTHING = Resources(0, 0)


def parse_hostlist(text: str, most: int = _LARGEST_HOSTLIST) -> tuple[str, ...]:
    """Expand a Slurm hostlist such as `n[1,3-5],login` to names, in order and without repeats.

    Raises ValueError naming the faulty part, and for more than `most` names, which are counted
    before any is made. An empty text, `None assigned` and `(null)` are the ways in which Slurm says
    "no node" and give an empty tuple.
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "None", "N/A"):
        return ()
    parts, named = [], 0
    for part in _split(text):
        choices = _choices(part, most)
        product = 1
        for some in choices:
            product *= len(some)
            if named + product > most:
                raise ValueError(f"hostlist '{_short(text)}' names more than {most} nodes")
        named += product
        parts.append(choices)
    names = (map("".join, itertools.product(*choices)) for choices in parts)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


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
            raise ValueError(f"hostlist '{_short(text)}': brackets do not match")
    if depth:
        raise ValueError(f"hostlist '{_short(text)}': brackets do not match")
    parts.append(text[start:])
    return parts


class _Span(Sequence[str]):
    """The numbers of one range as texts, none of which is made before it is asked for."""

    def __init__(self, first: int, last: int, width: int) -> None:
        self._numbers = range(first, last + 1)
        self._width = width

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [str(n).zfill(self._width) for n in self._numbers[at]]
        return str(self._numbers[at]).zfill(self._width)


def _choices(part: str, most: int) -> list[Sequence[str]]:
    """Return what may stand at each place of the name: texts and ranges take turns, and the last range
    counts fastest, as Slurm has it."""
    if _PART.match(part.strip()) is None or part.strip() == "":
        raise ValueError(f"hostlist part '{_short(part)}' is not a node name or a range like n[1-4]")
    pieces = _RANGES.split(part.strip())
    if sum(map(len, pieces[::2])) + len(pieces) // 2 > _LONGEST_NAME:
        raise ValueError(f"hostlist part '{_short(part)}' is longer than a name of a node can be")
    return [_ranges(text, part, most) if at % 2 else [text] for at, text in enumerate(pieces)]


def _ranges(text: str, part: str, most: int) -> Sequence[str]:
    spans = [_span(piece, part) for piece in text.split(",")]
    if sum(map(len, spans)) > most:
        raise ValueError(f"hostlist part '{_short(part)}' names more than {most} nodes")
    return spans[0] if len(spans) == 1 else [n for span in spans for n in span]


def _span(piece: str, part: str) -> _Span:
    low, dash, high = piece.strip().partition("-")
    where, what = f"hostlist part '{_short(part)}'", f"'{_short(piece)}'"
    if not low.isdigit() or (dash and not high.isdigit()):
        raise ValueError(f"{where}: {what} is not a number or a range")
    if max(len(low), len(high)) > _LONGEST_NUMBER:
        raise ValueError(f"{where}: a number has too many digits")
    first, last = int(low), int(high) if dash else int(low)
    if last < first:
        raise ValueError(f"{where}: the range {what} is empty")
    return _Span(first, last, len(low))


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
        str(a).zfill(width) if a == b else f"{str(a).zfill(width)}-{str(b).zfill(width)}" for a, b in runs
    ]
    if len(numbers) == 1:
        return f"{prefix}{texts[0]}"
    return f"{prefix}[{','.join(texts)}]"


# Weight of the newest measurement: disks change slowly, neighbours come and go.
_NEWEST = 0.3


@dataclass(frozen=True, slots=True)
class WriteRate:
    """One host's rate, fixed costs included. `samples`: how many suspends it was learned from."""

    mb_s: float = 0.0
    samples: int = 0

    def learn(self, written_mb: float, took_s: float) -> WriteRate:
        """Learn the rate from one more suspend; one that wrote next to nothing tells nothing."""
        if written_mb < 1.0 or took_s <= 0.0:
            return self
        seen_mb_s = written_mb / took_s
        if not self.samples:
            return WriteRate(seen_mb_s, 1)
        return WriteRate(self.mb_s + _NEWEST * (seen_mb_s - self.mb_s), self.samples + 1)

    def predict_s(self, memory_mb: float) -> float | None:
        """Seconds that a suspend of so much memory should take; None before the first one."""
        return memory_mb / self.mb_s if self.samples else None
