"""Reads single values of `sacct`: job names, times, time limits and memory in Slurm's notations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

UNKNOWN = frozenset({"", "unknown", "none", "n/a", "invalid", "unlimited", "partition_limit"})
DIGITS = 11
_JOB = re.compile(
    r"(?P<base>\d+)(?:_(?P<task>\d+)|_\[(?P<tasks>[^\]]*)\]|\+(?P<part>\d+))?(?:\.(?P<step>.+))?"
)
_TIME = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@dataclass(frozen=True, slots=True)
class JobName:
    """`123`, `123_4` (array task), `123_[5-9%2]` (tasks still pending) or `123+1` (part of a job).

    `base` is what stands before the mark, `task` the number after it (-1 if there is none),
    `count` how many jobs it stands for, `step` the step's name or "".
    """

    base: int
    task: int
    count: int
    step: str
    label: str


def parse_job_name(text: str) -> JobName:
    """ValueError if it is no job name of Slurm."""
    match = _JOB.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no Slurm job id")
    number = match["task"] or match["part"]
    count = _count_tasks(match["tasks"]) if match["tasks"] is not None else 1
    step = match["step"] or ""
    label = text.removesuffix(f".{step}") if step else text
    return JobName(int(match["base"]), int(number) if number else -1, count, step, label)


def _count_tasks(text: str) -> int:
    """Count the tasks of `1,4-9,20-30:5%2`; what Slurm cut off as `...` is not known."""
    count = 0
    for part in text.partition("%")[0].split(","):
        span, _, stride = part.partition(":")
        first, dash, last = span.partition("-")
        if first.isdecimal():
            end = int(last) if dash and last.isdecimal() else int(first)
            count += len(range(int(first), end + 1, max(int(stride or 1), 1)))
    return max(count, 1)


def parse_instant_s(text: str) -> int | None:
    """Return seconds since 1970 of `2019-12-11T20:35:17` or of a plain number; None if unknown.

    sacct prints local time without a zone. It is read as if it were UTC: the same result on
    every machine, and differences are right except across a change of summer time.
    """
    if text.lower() in UNKNOWN:
        return None
    if text.isdecimal() and len(text) <= DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise ValueError(f"{text!r} is no time") from None


def parse_duration_s(text: str) -> int | None:
    """Return seconds of `1-02:03:04`, `02:03:04`, `03:04.567` or `184`; None if unknown."""
    if text.lower() in UNKNOWN:
        return None
    if text.isdecimal() and len(text) <= DIGITS:
        return int(text)
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_memory_mb(text: str) -> float | None:
    """Return MB of `504K`, `2659.95M`, `2.10G`, `7996Mc` (per CPU) or bytes; None if unknown.

    The suffix for "per node" or "per CPU" is dropped: see `memory_is_per_cpu`.
    """
    if text.lower() in UNKNOWN:
        return None
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory")
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()]


def memory_is_per_cpu(text: str) -> bool:
    """Whether ReqMem counts per CPU (`7996Mc`), as Slurm before 21.08 prints it."""
    return text.endswith("c")


def parse_tres_count(text: str, name: str) -> int:
    """Return the count of `name` in `billing=1,cpu=4,mem=7996M`; 0 if it is not listed."""
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key == name and value.isdecimal():
            return int(value)
    return 0
