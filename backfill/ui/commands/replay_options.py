"""Values of the options of `replay`; one that cannot be understood is refused with a sentence.

The policy file's values are imported where they are needed: a bare replay is to start at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar

from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.window import TraceWindow

_Number = TypeVar("_Number", int, float)
# Low-priority work that is drawn from the model: so many jobs, by a seed.
HTC = re.compile(r"htc:(?:(?P<seed>\d{1,9}):)?(?P<jobs>[1-9]\d{0,6})")


def seeds(text: str) -> int:
    """Read a number of repeats."""
    if text.isascii() and text.isdigit() and 0 < int(text) <= 1000:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no number of repeats; give 1 to 1000")


def cluster(text: str) -> Cluster:
    """Equal nodes."""
    try:
        return Cluster.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def work(text: str) -> str:
    """Read a trace, or draw jobs of the HTC model."""
    if not text.startswith("htc:") or HTC.fullmatch(text) or Path(text).exists():
        return text
    what = "is neither htc:JOBS nor htc:SEED:JOBS, with at least one job; write htc:50000"
    raise argparse.ArgumentTypeError(f"'{text}' {what}, for example")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as somebody wrote it: seconds since 1970 or of the trace; `zoned`: with an offset from UTC.

    `zoned` is None for seconds.
    """

    at_s: int
    zoned: bool | None = None


def moment(text: str) -> Moment:
    """Read a moment as sacct's -S takes it, or as seconds: those since 1970, or of the trace's own."""
    seconds = text.removeprefix("@")
    try:
        if seconds.isascii() and seconds.isdigit() and len(seconds) < 12:
            _refuse_either(text)
            return Moment(int(seconds))
        at = datetime.fromisoformat(text)
    except ValueError:
        what = (
            f"'{text}' is no moment; write 2024-01-10 or 2024-01-10T08:00, or seconds as the trace has them"
        )
        raise argparse.ArgumentTypeError(what) from None
    zoned = at.tzinfo is not None
    return Moment(int((at if zoned else at.replace(tzinfo=UTC)).timestamp()), zoned)


def _refuse_either(text: str) -> None:
    """Refuse digits that may be a day as well as seconds."""
    if len(text) != 8:
        return
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return
    what = f"'{text}' is a day as well as a number of seconds; write {day} or @{text}"
    raise argparse.ArgumentTypeError(what)


def window(args: argparse.Namespace) -> TraceWindow:
    """Return what --from and --to say."""
    given = (getattr(args, "from"), args.to)
    bounds = (None if one is None else one.at_s for one in given)
    zoned = {one.zoned for one in given if one is not None}
    return TraceWindow(*bounds, zoned=True in zoned, local=False in zoned)


def duration(text: str) -> float:
    """Seconds."""
    from backfill.config.values import duration_s

    return _amount(duration_s, text, "30m")


def size(text: str) -> int:
    """Memory, MB."""
    from backfill.config.values import size_mb

    return _amount(size_mb, text, "64G")


def _amount(read: Callable[[str], _Number], text: str, example: str) -> _Number:
    from backfill.config.values import AmountError

    try:
        return read(text)
    except AmountError as error:
        what = f"'{text}' {error}; write {example}, for example"
        raise argparse.ArgumentTypeError(what) from None
