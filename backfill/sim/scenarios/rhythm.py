"""When things come round on a cluster: what a play there has of its own, and how it is learned."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from backfill.core import changes as ch
from backfill.core.cluster import JobState
from backfill.core.records import decode
from backfill.ports.storage import Record

# Slurm sleeps a second between two looks at its queue, and then has to do some work.
_TICKS_S = tuple(1.0 + i * 0.0005 for i in range(50))


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds; `..._at_s` from the beginning of the story on. A second run has other phases."""

    # How long the daemon has been there at the beginning; it reads the outside since then.
    lead_s: float = 0.0
    # Slurm looks at its queue so often; when it does so once.
    tick_s: float = 1.0
    tick_at_s: float = 0.0
    # It does not look before then: a slurmctld that has just started.
    first_at_s: float = 0.0
    # Whoever submits looks so often whether the moment has come; 0: notices at once.
    look_s: float = 0.0
    # What one number of a counting job takes; 0: as the scenario says.
    count_s: float = 0.0


def heard(records: Iterable[Record], known: Rhythm, start_s: float, counts: Mapping[str, int]) -> Rhythm:
    """`known`, and what the journal of a run tells of its clocks.

    The tick comes from the allocations that hooks told of: its phase and period are fitted to all
    of them. `start_s`: when the story began, epoch s; `counts`: by job id, to what it counted.
    """
    ears = _Ears()
    for record in records:
        ears.hear(record)
    tick_s, tick_at_s = ears.tick(known, start_s)
    counted_s = [ears.computed_s(job_id) / count for job_id, count in counts.items()]
    return replace(
        known,
        lead_s=max(0.0, start_s - ears.begun_s),
        tick_s=tick_s,
        tick_at_s=tick_at_s,
        count_s=median(counted_s) if counted_s else 0.0,
    )


class _Ears:
    def __init__(self) -> None:
        self.begun_s = 0.0
        self._allocated_s: list[float] = []
        self._spans: dict[str, list[tuple[float, bool]]] = {}  # by job: since when it runs or not

    def hear(self, record: Record) -> None:
        if record.kind == "daemon" and record.body.get("event") == "start":
            self.begun_s = record.at_s
        if record.kind != "change":
            return
        match change := decode(record.body):
            case ch.JobSeen(job):
                runs = job.state is JobState.RUNNING
                self._spans.setdefault(job.id, []).append((record.at_s, runs))
            case ch.Claimed():
                self._allocated_s.append(change.at_s)
            case _:
                pass

    def computed_s(self, job_id: str) -> float:
        """For how long the job was seen to run."""
        spans = self._spans.get(job_id, [])
        ends = spans[1:]
        return sum(b - a for (a, runs), (b, _) in zip(spans, ends, strict=False) if runs)

    def tick(self, known: Rhythm, start_s: float) -> tuple[float, float]:
        """Period and phase."""
        times = [at_s - start_s for at_s in self._allocated_s]
        if not times:
            return known.tick_s, known.tick_at_s
        tick_s = max(_TICKS_S, key=lambda period: abs(_mean(times, period)))
        at_s = cmath.phase(_mean(times, tick_s)) / (2 * math.pi) * tick_s % tick_s
        return tick_s, at_s


def _mean(times: list[float], period: float) -> complex:
    """The mean of the times on a clock face that goes round once in `period`."""
    return sum(cmath.exp(2j * math.pi * time / period) for time in times) / len(times)
