"""Random values of known distributions, made from `Random.random()` alone.

Python promises that this method gives the same numbers for the same seed in every version and on
every machine; it does not promise that of `gauss` or `gammavariate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log, sqrt
from random import Random


def seeded(seed: int) -> Random:
    """Return the one source of randomness of a workload or run."""
    return Random(seed)  # noqa: S311 - it must repeat, it guards no secret


def uniform_int(rng: Random, low: int, high: int) -> int:
    """Whole number of [low, high], each equally likely."""
    return low + int(rng.random() * (high - low + 1))


def exponential(rng: Random, mean: float) -> float:
    return -mean * log(1.0 - rng.random())


def normal(rng: Random) -> float:
    """Mean 0, deviation 1; Marsaglia's polar method."""
    while True:
        x, y = 2.0 * rng.random() - 1.0, 2.0 * rng.random() - 1.0
        square = x * x + y * y
        if 0.0 < square < 1.0:
            return x * sqrt(-2.0 * log(square) / square)


def lognormal(rng: Random, median: float, deviation: float) -> float:
    """Deviation is that of the natural logarithm."""
    return median * exp(deviation * normal(rng))


def gamma(rng: Random, shape: float, scale: float) -> float:
    """Mean shape x scale, shape at least 1; Marsaglia and Tsang, ACM TOMS 26(3), 2000."""
    d = shape - 1.0 / 3.0
    c = 1.0 / sqrt(9.0 * d)
    while True:
        x = normal(rng)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * log(v):
            return scale * d * v


def gamma_cdf(x: float, shape: float, scale: float) -> float:
    """Probability that a gamma value is at most x, by the series of the incomplete gamma."""
    if x <= 0.0:
        return 0.0
    z = x / scale
    term = total = 1.0 / shape
    n = shape
    while term > total * 1e-15:
        n += 1.0
        term *= z / n
        total += term
    return total * exp(shape * log(z) - z - lgamma(shape))


def choose(rng: Random, weights: Sequence[float]) -> int:
    """Index of a weight, drawn in proportion to the weights."""
    rest = rng.random() * sum(weights)
    for index, weight in enumerate(weights):
        rest -= weight
        if rest < 0.0:
            return index
    return len(weights) - 1
