"""Counters and histograms in plain memory, told as data that any monitoring format is made from.

The words are Prometheus's: a family has a name, a kind and a help text, and a sample for each set of
label values. Names end with their unit. Nothing here grows with the cluster: whoever adds a label
says how many values it can have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Body = dict[str, object]
Labels = tuple[str, ...]
Sample = list[object]  # what follows the family's name, the labels, the value


class FamilyKind(StrEnum):
    """How the samples of a family are to be read."""

    COUNTER = "counter"  # since the daemon's start; its name ends with _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One thing that is measured. A counter's `name` is without its `_total`."""

    name: str
    kind: FamilyKind
    help: str
    labels: Labels = ()

    def told(self, samples: Iterable[Sample]) -> Body:
        """As plain data, with these samples."""
        return {"name": self.name, "type": self.kind.value, "help": self.help, "samples": list(samples)}

    def gauges(self, values: Mapping[Labels, float]) -> Body:
        """As plain data, with a value for each set of labels."""
        return self.told(self.sample("", labels, value) for labels, value in values.items())

    def sample(self, suffix: str, labels: Labels, value: float, **more: str) -> Sample:
        """One value."""
        return [suffix, {**dict(zip(self.labels, labels, strict=True)), **more}, value]


class Counts:
    """A counter. Of more than `most` sets of labels the further ones are counted under `other`.

    `known` sets begin at 0: of one that comes with its first event, Prometheus sees no increase by that.
    """

    def __init__(self, family: Family, most: int = 200, known: Iterable[Labels] = ()) -> None:
        self._family, self._most = family, most
        self._values: dict[Labels, float] = dict.fromkeys(known if family.labels else [()], 0.0)

    def add(self, *labels: str, by: float = 1.0) -> None:
        """So much more. Callable from one thread."""
        if labels not in self._values and len(self._values) >= self._most:
            labels = ("other",) * len(labels)
        self._values[labels] = self._values.get(labels, 0.0) + by

    def told(self) -> Body:
        """As plain data."""
        family = self._family
        return family.told(family.sample("_total", labels, value) for labels, value in self._values.items())


class Spreads:
    """A histogram with fixed bounds, upper ends included. `known` sets of labels begin empty."""

    def __init__(self, family: Family, bounds: tuple[float, ...], known: Iterable[Labels] = ()) -> None:
        self._family, self._bounds = family, bounds
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}
        for labels in known if family.labels else [()]:
            self._of(labels)

    def observe(self, value: float, *labels: str) -> None:
        """One more value. Callable from one thread."""
        buckets, total = self._of(labels)
        buckets[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def _of(self, labels: Labels) -> tuple[list[int], list[float]]:
        known = self._values.get(labels)
        if known is None:
            known = self._values[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        return known

    def told(self) -> Body:
        """As plain data: buckets count what is not larger than their bound, as Prometheus has it."""
        samples: list[Sample] = []
        family = self._family
        for labels, (buckets, total) in self._values.items():
            below = 0
            for bound, count in zip((*(f"{b:g}" for b in self._bounds), "+Inf"), buckets, strict=True):
                below += count
                samples.append(family.sample("_bucket", labels, below, le=bound))
            samples.append(family.sample("_count", labels, below))
            samples.append(family.sample("_sum", labels, total[0]))
        return family.told(samples)
