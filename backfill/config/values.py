"""Amounts as people write them in the policy file: durations and sizes."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
_PLAIN = re.compile(_NUMBER)
_LEADING_ZERO = re.compile(r"0\d")
_PIECE = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>[A-Za-zµ]+)")
_SLURM_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,5})(?::(\d{1,5}))?(?::(\d{1,5}))?")
LONGEST_S = 3650 * 86400.0  # ten years: more is a mistake, or meant "never"
LARGEST_MB = 2**40

DURATIONS = "a number of seconds, or 500ms, 90s, 5m, 1h30m, 2d, or Slurm's 1-02:30:00"
SIZES = "a whole number of {unit}, or with a unit: 256MB, 2G, 2GiB, 1T (1G = 1024M, as in Slurm)"

_TIME_UNITS = {
    "ms": Decimal("0.001"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Decimal(1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Decimal(3600)),
    **dict.fromkeys(("d", "day", "days"), Decimal(86400)),
    **dict.fromkeys(("w", "week", "weeks"), Decimal(604800)),
}
_SIZE_UNITS_MB = {
    f"{letter}{tail}": factor
    for letter, factor in (
        ("k", Decimal(1) / 1024),
        ("m", Decimal(1)),
        ("g", Decimal(1024)),
        ("t", Decimal(1024**2)),
    )
    for tail in ("", "b", "ib")
}


class AmountError(ValueError):
    """The text is not such an amount; `str()` goes into a sentence after the key's name."""


def duration_s(text: str) -> float:
    """Read a duration; a bare number is seconds.

    Raises AmountError.
    """
    text = text.strip()
    _refuse_sign(text)
    seconds = _plain(text)
    if seconds is None:
        seconds = _slurm_time(text)
    if seconds is None:
        seconds = _pieces(text)
    if seconds > LONGEST_S:
        raise AmountError("is longer than ten years")
    return float(seconds)


def size_mb(text: str, unit_mb: int = 1) -> int:
    """Read a size in MB (MiB); a bare number counts `unit_mb` each. Raises AmountError."""
    text = text.strip()
    _refuse_sign(text)
    amount = _plain(text)
    if amount is not None:
        amount *= unit_mb
    else:
        match = _PIECE.fullmatch(text)
        if match is None:
            raise AmountError("is not a size")
        factor = _SIZE_UNITS_MB.get(match["unit"].lower())
        if factor is None:
            raise AmountError(f"has the unknown unit {match['unit']}")
        amount = Decimal(match["number"]) * factor
    if amount % 1:
        raise AmountError("is not a whole number of MB")
    if amount > LARGEST_MB:
        raise AmountError("is larger than any machine")
    return int(amount)


def number(text: str) -> float:
    """Read a plain number, without unit. Raises AmountError."""
    text = text.strip()
    _refuse_sign(text)
    if _LEADING_ZERO.match(text):
        raise AmountError("begins with a zero")
    plain = _plain(text)
    if plain is None:
        raise AmountError("is not a plain number")
    return float(plain)


def _refuse_sign(text: str) -> None:
    if re.match(r"-\s*\d", text):
        raise AmountError("is negative")


def _plain(text: str) -> Decimal | None:
    return Decimal(text) if _PLAIN.fullmatch(text) else None


def _slurm_time(text: str) -> Decimal | None:
    """Read M:S, H:M:S, D-H, D-H:M or D-H:M:S; None when it is none of them."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is None:
        parts = [0] * (3 - len(parts)) + parts
    else:
        parts += [0] * (3 - len(parts))
    hours, minutes, seconds = parts
    if seconds > 59 or (minutes > 59 and (days or hours)) or (days and hours > 23):
        raise AmountError("has more than 59 minutes or seconds, or more than 23 hours in a day")
    return Decimal(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def _pieces(text: str) -> Decimal:
    """Read one or more numbers with units, such as 1h30m."""
    total, rest = Decimal(0), text
    while rest:
        match = _PIECE.match(rest)
        if match is None:
            raise AmountError("is not a duration")
        factor = _TIME_UNITS.get(match["unit"].lower())
        if factor is None:
            raise AmountError(f"has the unknown unit {match['unit']}")
        total += Decimal(match["number"]) * factor
        rest = rest[match.end() :].strip()
    if not text:
        raise AmountError("is empty")
    return total
