"""The book of payloads: what pilots have brought, and what was lost because of us, by day and pilot.

What ended comes from the pool's own account; why a run came to nothing, from our account of the
pilot's job. The journal keeps both over restarts.
"""

from __future__ import annotations

from collections import OrderedDict
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
# A counter cannot be put right: so long after we heard of a lost run it is counted as it looks then.
_SETTLED_S = 300.0
_SWEEP_S = 60.0  # of a journal's time
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
    """What runs have brought by day, and by pilot: the 500 of whose runs we heard last."""

    days: dict[str, PayloadSums] = field(default_factory=dict)
    pilots: dict[str, PayloadSums] = field(default_factory=dict)

    def heard(self, pilot: str) -> None:
        self.pilots[pilot] = self.pilots.pop(pilot) if pilot in self.pilots else PayloadSums()
        while len(self.pilots) > _MOST_PILOTS:
            del self.pilots[next(iter(self.pilots))]

    def add(self, run: PayloadEnded, cause: str) -> None:
        self.days.setdefault(_day(run.at_s), PayloadSums()).add(run, cause)
        if (pilot := self.pilots.get(run.job_id)) is not None:
            pilot.add(run, cause)

    def copy(self) -> _Sums:
        days = {day: sums.copy() for day, sums in self.days.items()}
        return _Sums(days, {pilot: sums.copy() for pilot, sums in self.pilots.items()})


@dataclass(slots=True)
class _OpenLoss:
    """A lost run for which our reason may still come."""

    run: PayloadEnded
    heard_s: float
    counted: bool  # or not to be

    @property
    def until_s(self) -> float:
        return max(self.run.at_s, self.heard_s) + _BEFORE_S


class PayloadBook:
    """Belongs to the daemon's thread. Days are those of UTC."""

    def __init__(self) -> None:
        # Ordered, as a plain dict gets slow if its first key is removed again and again.
        self._known: OrderedDict[str, None] = OrderedDict()  # ids of runs, the oldest first
        # Pilot -> when its work was, and why.
        self._given_up: OrderedDict[str, list[tuple[float, str]]] = OrderedDict()
        self._counts, self._worked_s = Counts(ENDED, _MOST_OUTCOMES), Counts(WORKED, _MOST_OUTCOMES)
        self._settled = _Sums()
        self._open: list[_OpenLoss] = []
        self._swept_s = 0.0

    def recall(self, journal: Journal) -> None:
        """Take in what the journal still knows."""
        for record in journal.read(types=(WorkLost.__name__, PayloadEnded.__name__)):
            self.take(decode(record.body), record.at_s)

    def take(self, change: PayloadEnded | WorkLost, at_s: float) -> None:
        """Take in what a journal has, written at `at_s`."""
        if abs(at_s - self._swept_s) >= _SWEEP_S:
            self._swept_s = at_s
            self.settle(at_s)
        if isinstance(change, PayloadEnded):
            self._add(change, at_s, count=False)
        else:
            self.lost(change)

    def lost(self, change: WorkLost) -> None:
        """Count a run of a job, perhaps a pilot's, that came to nothing."""
        pilot = str(change.number) if change.number else change.job_id
        times = self._given_up.setdefault(pilot, [])
        times.append((change.at_s, change.cause))
        while len(self._given_up) > _MOST_IDS:
            self._given_up.popitem(last=False)

    def news(self, runs: Iterable[PayloadRun], clock_s: float) -> Iterator[PayloadEnded]:
        """Yield what is to be written of the runs that the pool tells, those that are known left out."""
        for run in runs:
            if run.id in self._known or not run.pilot:
                continue
            ended = PayloadEnded(run.id, run.pilot, run.node, run.ended_s, round(run.worked_s, 3), run.done)
            self._add(ended, clock_s, count=True)
            yield ended

    def _add(self, run: PayloadEnded, clock_s: float, *, count: bool) -> None:
        self._known[run.run] = None
        while len(self._known) > _MOST_IDS:
            self._known.popitem(last=False)
        self._settled.heard(run.job_id)
        if not run.done:
            self._open.append(_OpenLoss(run, clock_s, counted=not count))
            return
        self._settled.add(run, DONE)
        if count:
            self._count(run, DONE)

    def settle(self, clock_s: float) -> None:
        """Count the lost runs for which our reason is known by now, and sum up those for which none can come.

        The pool may tell of a loss before our own account does, and we may hear of it long after it.
        """
        still = []
        for one in self._open:
            cause = self._cause(one.run)
            if not one.counted and clock_s >= one.heard_s + _SETTLED_S:
                self._count(one.run, cause)
                one.counted = True
            if clock_s < one.until_s:
                still.append(one)
            else:
                self._settled.add(one.run, cause)
        self._open = still

    def _count(self, run: PayloadEnded, cause: str) -> None:
        self._counts.add(cause)
        self._worked_s.add(cause, by=run.worked_s)

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
        for one in self._open:
            all_of_it.add(one.run, self._cause(one.run))
        days = dict(sorted(all_of_it.days.items(), reverse=True))
        return days, dict(reversed(all_of_it.pilots.items()))

    def _cause(self, run: PayloadEnded) -> str:
        """Name why we have given up a lost run's pilot at about that time; else it was not by us."""
        began_s = run.at_s - run.worked_s
        near = [
            (abs(at_s - run.at_s), cause)
            for at_s, cause in self._given_up.get(run.job_id, ())
            if began_s - _AFTER_S <= at_s <= run.at_s + _BEFORE_S
        ]
        return min(near)[1] if near else OTHERS


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()
