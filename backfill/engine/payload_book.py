"""The book of payloads: what pilots have brought, and what was lost because of us, by day and pilot.

What ended comes from the pool's own account; why a run came to nothing, from our account of the
pilot's job. The journal keeps both over restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from backfill.core.model.changes import PayloadEnded, WorkLost
from backfill.core.model.records import decode
from backfill.engine.families import Body, Counts, Family, FamilyKind
from backfill.ports.pools import PayloadRun
from backfill.ports.storage import Journal

# A cause each, `done` and what was not by us.
_MOST_OUTCOMES = 32
ENDED = Family(
    "backfill_payload_runs",
    FamilyKind.COUNTER,
    "Runs of payloads in pilots, by the pool's account: done, or lost for this cause.",
    ("outcome",),
)
WORKED = Family(
    "backfill_payload_seconds",
    FamilyKind.COUNTER,
    "Seconds that these runs worked, by how they ended.",
    ("outcome",),
)
_MOST_DAYS = 31
_MOST_PILOTS = 500
_MOST_IDS = 100_000  # of runs that need not be booked again
# A pool notices late that a pilot has gone, or books it at once and we a little later.
_BEFORE_S, _AFTER_S = 1800.0, 900.0
# So long after its end it is known why a run came to nothing, if by us.
_SETTLED_S = 300.0
DONE, OTHERS = "done", "not by us"


@dataclass(slots=True)
class PayloadSums:
    """What payloads have brought: `lost` by cause: runs, and the seconds that they had worked."""

    done: int = 0
    worked_s: float = 0.0
    lost: dict[str, list[float]] = field(default_factory=dict)

    def add(self, run: PayloadEnded, cause: str) -> None:
        if run.done:
            self.done += 1
            self.worked_s += run.worked_s
        else:
            line = self.lost.setdefault(cause, [0.0, 0.0])
            line[0] += 1
            line[1] += run.worked_s

    @property
    def lost_s(self) -> float:
        """How long runs had worked that came to nothing because of us."""
        return sum(line[1] for why, line in self.lost.items() if why != OTHERS)

    def copy(self) -> PayloadSums:
        lost = {why: [*line] for why, line in self.lost.items()}
        return PayloadSums(self.done, self.worked_s, lost)

    def told(self) -> Body:
        lost = {why: {"runs": int(line[0]), "s": line[1]} for why, line in sorted(self.lost.items())}
        return {"done": self.done, "worked_s": self.worked_s, "lost": lost}


@dataclass(slots=True)
class _Sums:
    """What runs have brought by day, and by pilot: the 500 whose runs were booked last."""

    days: dict[str, PayloadSums] = field(default_factory=dict)
    pilots: dict[str, PayloadSums] = field(default_factory=dict)

    def add(self, run: PayloadEnded, cause: str) -> None:
        self.days.setdefault(_day(run.at_s), PayloadSums()).add(run, cause)
        pilot = self.pilots.pop(run.job_id, None) or PayloadSums()
        pilot.add(run, cause)
        self.pilots[run.job_id] = pilot
        while len(self.pilots) > _MOST_PILOTS:
            del self.pilots[next(iter(self.pilots))]

    def copy(self) -> _Sums:
        days = {day: sums.copy() for day, sums in self.days.items()}
        return _Sums(days, {pilot: sums.copy() for pilot, sums in self.pilots.items()})


class PayloadBook:
    """Belongs to the daemon's thread. Days are those of UTC."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}  # ids of runs, the oldest first
        self._given_up: dict[str, list[tuple[float, str]]] = {}  # pilot -> when its work was, and why
        self._counts, self._worked_s = Counts(ENDED, _MOST_OUTCOMES), Counts(WORKED, _MOST_OUTCOMES)
        self._settled = _Sums()
        self._unsettled: list[tuple[PayloadEnded, bool]] = []  # and whether it is to be counted

    def recall(self, journal: Journal) -> None:
        """Take in what the journal still knows."""
        last_s = 0.0
        for record in journal.read(types=(WorkLost.__name__, PayloadEnded.__name__)):
            self.take(decode(record.body))
            last_s = max(last_s, record.at_s)
        self.settle(last_s)

    def take(self, change: PayloadEnded | WorkLost) -> None:
        """Take in what a journal has."""
        if isinstance(change, PayloadEnded):
            self._add(change, count=False)
        else:
            self.lost(change)

    def lost(self, change: WorkLost) -> None:
        """Count a run of a job, perhaps a pilot's, that came to nothing."""
        times = self._given_up.setdefault(change.job_id, [])
        times.append((change.at_s, change.cause))
        while len(self._given_up) > _MOST_IDS:
            del self._given_up[next(iter(self._given_up))]

    def news(self, runs: Iterable[PayloadRun]) -> Iterator[PayloadEnded]:
        """Yield what is to be written of the runs that the pool tells, those that are known left out."""
        for run in runs:
            if run.id in self._known or not run.pilot:
                continue
            ended = PayloadEnded(run.id, run.pilot, run.node, run.ended_s, round(run.worked_s, 3), run.done)
            self._add(ended, count=True)
            yield ended

    def _add(self, run: PayloadEnded, *, count: bool) -> None:
        self._known[run.run] = None
        self._unsettled.append((run, count))
        while len(self._known) > _MOST_IDS:
            del self._known[next(iter(self._known))]

    def settle(self, clock_s: float) -> None:
        """Sum up what has ended, lost runs once our reason for them is known.

        The pool may tell of a loss before our own account does, and a counter cannot be put right.
        """
        later = []
        for run, count in self._unsettled:
            if not run.done and clock_s < run.at_s + _SETTLED_S:
                later.append((run, count))
                continue
            cause = self._cause(run)
            self._settled.add(run, cause)
            if count:
                self._counts.add(cause)
                self._worked_s.add(cause, by=run.worked_s)
        self._unsettled = later

    def counters(self, clock_s: float) -> list[Body]:
        """Return what has ended since this daemon began."""
        self.settle(clock_s)
        return [self._counts.told(), self._worked_s.told()]

    def told(self) -> Body:
        """Return the sums of each day and of each pilot, the latest first, for `status`."""
        days, pilots = self.sums()
        return {
            "days": [{"day": day, **sums.told()} for day, sums in list(days.items())[:_MOST_DAYS]],
            "pilots": [{"pilot": pilot, **sums.told()} for pilot, sums in pilots.items()],
        }

    def sums(self) -> tuple[dict[str, PayloadSums], dict[str, PayloadSums]]:
        """Return them by day, and by the job of a pilot, the latest first."""
        all_of_it = self._settled.copy()
        for run, _ in self._unsettled:
            all_of_it.add(run, self._cause(run))
        days = dict(sorted(all_of_it.days.items(), reverse=True))
        return days, dict(reversed(all_of_it.pilots.items()))

    def _cause(self, run: PayloadEnded) -> str:
        """Name why we have given up the pilot's work at about that time; else it was not by us."""
        if run.done:
            return DONE
        began_s = run.at_s - run.worked_s
        near = [
            (abs(at_s - run.at_s), cause)
            for at_s, cause in self._given_up.get(run.job_id, ())
            if began_s - _AFTER_S <= at_s <= run.at_s + _BEFORE_S
        ]
        return min(near)[1] if near else OTHERS


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()
