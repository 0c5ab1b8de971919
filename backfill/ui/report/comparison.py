"""Compares two policies on the same input: one sentence for each difference, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from backfill.ui.report.figures import FIGURES, Figure, Summary

# What differs by less than this share of the larger value is not told.
_SAME = 0.005


def differences(one: str, first: Sequence[Summary], other: str, second: Sequence[Summary]) -> Iterator[str]:
    """Say how `other` differs from `one`, the most telling figures first; a sentence each.

    The summaries pair up, run by run on the same input and seed. With several of them, each
    sentence has the 95 % interval of the paired difference.
    """
    told = False
    for figure in FIGURES:
        before, after = figure.mean(first), figure.mean(second)
        if before is not None and after is not None and worth_telling(figure, first, second):
            told = True
            yield _sentence(figure, one, before, other, after) + _sure(figure, first, second)
    for rung in sorted({rung for s in (*first, *second) for rung in s.evictions.by_rung}):
        counts = [shown_count([s.evictions.by_rung.get(rung, 0) for s in each]) for each in (first, second)]
        if counts[0] != counts[1]:
            told = True
            yield f"Preemptions by {rung}: {counts[1]} with {other}, {counts[0]} with {one}."
    pushed = [any(s.evictions.vacate_s.count for s in each) for each in (first, second)]
    if pushed[0] != pushed[1]:
        name = one if pushed[1] else other
        yield f"No instance was pushed aside with {name}: how fast room was given back cannot be compared."
    if not told:
        yield f"{other} makes no difference to {one} on this input."


def worth_telling(figure: Figure, first: Sequence[Summary], second: Sequence[Summary]) -> bool:
    """Return True if there are means of both, and they differ by so much that it matters to a person."""
    before, after = figure.mean(first), figure.mean(second)
    if before is None or after is None:
        return False
    return abs(after - before) > _SAME * max(abs(before), abs(after))


def difference(figure: Figure, first: Sequence[Summary], second: Sequence[Summary]) -> Interval:
    """Return the paired difference of one figure, of the runs in which both have it."""
    values = [(figure.of(a), figure.of(b)) for a, b in zip(first, second, strict=True)]
    both = [(a, b) for a, b in values if a is not None and b is not None]
    return paired([a for a, _ in both], [b for _, b in both])


def shown_count(counts: Sequence[int]) -> str:
    """Write how many there were, on average where there was more than one run."""
    return f"{fmean(counts):.1f}" if len(counts) > 1 else f"{counts[0]}"


def _sure(figure: Figure, first: Sequence[Summary], second: Sequence[Summary]) -> str:
    """Say the interval as a further sentence; nothing for a single run."""
    found = difference(figure, first, second)
    if found.count < 2:
        return ""
    text = figure.change(found.mean, found.half)
    if found.sure:
        return f" Over {found.count} seeds: {text}."
    return f" Over {found.count} seeds it cannot be told from chance: {text}."


def _sentence(figure: Figure, one: str, before: float, other: str, after: float) -> str:
    verb = "rises" if after > before else "falls"
    change = ""
    if figure.unit == "%":
        change = f" ({100 * (after - before):+.1f} points)"
    elif before:
        change = f" ({100 * (after - before) / abs(before):+.1f} %)"
    verdict = ""
    if figure.better:
        good = (after > before) == (figure.better > 0)
        verdict = f", which is {'better' if good else 'worse'}"
    title = figure.title[0].upper() + figure.title[1:]
    return (
        f"{title}: {verb} from {figure.shown(before)} with {one} to {figure.shown(after)} "
        f"with {other}{change}{verdict}."
    )


# 97.5 % quantiles of Student's t by degrees of freedom, 1 to 30.
_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and how far, with 95 % confidence, the true one may lie from it at most."""

    mean: float
    half: float
    count: int

    @property
    def sure(self) -> bool:
        """Return True if it differs from zero with 95 % confidence."""
        return self.count > 1 and abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half:.2g}"


def interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of independent values; infinitely wide for a single one."""
    count = len(values)
    if count == 0:
        return Interval(0.0, float("inf"), 0)
    if count == 1:
        return Interval(values[0], float("inf"), 1)
    return Interval(fmean(values), _t(count - 1) * stdev(values) / sqrt(count), count)


def paired(one: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the interval of `other - one`, run by run on the same input."""
    return interval([b - a for a, b in zip(one, other, strict=True)])


def _t(degrees: int) -> float:
    if degrees <= len(_T):
        return _T[degrees - 1]
    return 1.96 + 2.4 / degrees  # within 0.001 from 31 on
