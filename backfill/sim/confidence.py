"""How sure a difference is: paired over repeated runs, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

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
        """Whether it differs from zero with 95 % confidence."""
        return self.count > 1 and abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half:.2g}"


def interval(values: Sequence[float]) -> Interval:
    """The 95 % interval of the mean of independent values; infinitely wide for a single one."""
    count = len(values)
    if count == 0:
        return Interval(0.0, float("inf"), 0)
    if count == 1:
        return Interval(values[0], float("inf"), 1)
    return Interval(fmean(values), _t(count - 1) * stdev(values) / sqrt(count), count)


def paired(one: Sequence[float], other: Sequence[float]) -> Interval:
    """The interval of `other - one`, run by run on the same input."""
    return interval([b - a for a, b in zip(one, other, strict=True)])


def _t(degrees: int) -> float:
    if degrees <= len(_T):
        return _T[degrees - 1]
    return 1.96 + 2.4 / degrees  # within 0.001 from 31 on
