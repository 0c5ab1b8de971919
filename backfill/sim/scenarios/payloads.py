"""What becomes of a pool's payloads in a play: done, computed in vain, or run a second time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.drivers.simulated.pool import PayloadsKept


@dataclass(frozen=True, slots=True)
class PayloadStock:
    """The pool's books, and when payloads computed: `good` of those runs that are done, `vain` of others.

    Both are spans of epoch seconds.
    """

    kept: PayloadsKept
    good: tuple[tuple[float, float], ...]
    vain: tuple[tuple[float, float], ...]

    @property
    def runs_lost(self) -> int:
        """How many runs came to nothing."""
        return sum(not done for _, done in self.kept.by_run.values())

    @property
    def lost(self) -> float:
        """What was in vain, as a share of all that payloads computed."""
        vain_s, good_s = span_s(self.vain), span_s(self.good)
        return vain_s / (vain_s + good_s) if vain_s else 0.0


def stock(kept: PayloadsKept, segments: Iterable[Segment]) -> PayloadStock:
    """Sort what pilots have computed by what came of it; a pilot without a payload computes nothing."""
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for one in segments:
        found = kept.by_run.get((one.job, one.restart))
        if found is not None:
            spans[found[1]].append((one.start_s, one.end_s))
    return PayloadStock(kept, tuple(spans[True]), tuple(spans[False]))


def span_s(spans: Iterable[tuple[float, float]], until_s: float = inf) -> float:
    """Return how long they are together, up to a moment."""
    return sum(max(0.0, min(end_s, until_s) - start_s) for start_s, end_s in spans)
