"""A job's own machines with the look-ups of planning: thousands of jobs may wait for theirs."""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import partial

from backfill.core.model.job_machines import JobMachines
from backfill.core.tables import Bag, Table, UndoLog

Place = tuple[float, str]  # in the queue: since when, and the job


class MachineIndex:
    """What jobs have as their own, or wait for. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self.machines: Table[str, JobMachines] = Table(log)  # by job
        # How many were ordered for the jobs of each user; None: for those of all.
        self._ordered: Table[str | None, int] = Table(log)
        self._waiting: dict[str, Bag[str]] = {}  # by user: jobs for which nothing was ordered yet
        self._parts: Table[str, frozenset[str]] = Table(log)  # job -> ids of its components
        self._queue: list[Place] = []  # of those whose turn is by when they came, sorted
        self._first: dict[int, JobMachines | None] = {}  # by that limit, as far as it was asked for

    # --- reading -------------------------------------------------------------------------------

    def ordered(self, user: str | None = None) -> int:
        """Count the machines that belong to jobs, or to those of one user."""
        return self._ordered.get(user, 0)

    def waiting_of(self, user: str) -> Bag[str]:
        """Return the user's jobs for which nothing was ordered yet."""
        return self._waiting.get(user) or Bag(self._log)

    def fellows(self, job_id: str) -> list[JobMachines]:
        """Return what the other components of a heterogeneous job are to have."""
        leader, plus, _ = job_id.partition("+")
        parts = sorted(self._parts.get(leader, ())) if plus else ()
        return [self.machines[part] for part in parts if part != job_id]

    def lacking(self, own: JobMachines) -> int:
        """Count these and those of its fellows for which nothing was ordered: they begin together."""
        return own.size + sum(other.size for other in self.fellows(own.job) if not other.fleet)

    def first(self, most_per_user: int) -> JobMachines | None:
        """Return who has waited longest of those whose owners may have as many more; 0: any number."""
        if most_per_user not in self._first:
            self._first[most_per_user] = self._find_first(most_per_user)
        return self._first[most_per_user]

    def _find_first(self, most: int) -> JobMachines | None:
        for _, job_id in self._queue:
            own = self.machines[job_id]
            if not most or self.ordered(own.user) + self.lacking(own) <= most:
                return own
        return None

    # --- changing ------------------------------------------------------------------------------

    def put(self, own: JobMachines) -> None:
        """Take in what a job is to have, or a new record of it."""
        old = self.machines.get(own.job)
        self.machines[own.job] = own
        self._note(old, own)

    def drop(self, job_id: str) -> None:
        """Forget what a job had; unknown: nothing."""
        if (old := self.machines.pop(job_id)) is not None:
            self._note(old, None)

    def _note(self, before: JobMachines | None, after: JobMachines | None) -> None:
        self._first.clear()
        if self._log.on:
            self._log.note(self._first.clear)
        if before is not None:
            self._count(before, -1)
            self._leave(before, for_good=after is None)
        if after is not None:
            self._count(after, 1)
            self._join(after)

    def _count(self, own: JobMachines, sign: int) -> None:
        for key in (None, own.user) if own.fleet else ():
            self._ordered[key] = self.ordered(key) + sign * own.size

    def _leave(self, own: JobMachines, *, for_good: bool) -> None:
        if _waits(own):
            self._waiting[own.user].discard(own.job)
            if not own.inside:
                self._move((own.queued_s, own.job), there=False)
        leader, plus, _ = own.job.partition("+")
        if plus and for_good:
            self._parts[leader] = self._parts[leader] - {own.job}

    def _join(self, own: JobMachines) -> None:
        if _waits(own):
            self._waiting.setdefault(own.user, Bag(self._log)).add(own.job)
            if not own.inside:
                self._move((own.queued_s, own.job), there=True)
        leader, plus, _ = own.job.partition("+")
        if plus:
            self._parts[leader] = self._parts.get(leader, frozenset()) | {own.job}

    def _move(self, place: Place, *, there: bool) -> None:
        if self._log.on:
            self._log.note(partial(self._put_back, place, there=not there))
        self._put_back(place, there=there)

    def _put_back(self, place: Place, *, there: bool) -> None:
        if there:
            insort(self._queue, place)
        else:
            del self._queue[bisect_left(self._queue, place)]


def _waits(own: JobMachines) -> bool:
    return own.waits and not own.fleet
