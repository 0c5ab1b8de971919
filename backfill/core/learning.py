"""What is learnt from what was seen: where boots fail in a row, and how the jobs of each owner run."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.readiness import Streak, image_streak

if TYPE_CHECKING:
    from backfill.core.picture import Picture

# A boot shows that host and image are well; a return the host alone; what was only drained shows nothing.
_SHOWS = {Phase.BOOTING: 2, Phase.RETURNING: 1}

_LATEST = 16  # jobs of one owner that count
_LATEST_OF_ALL = 64  # for an owner of whom too little is known
_FEWEST = 3  # of which something can be said


def follow(
    streaks: dict[str, Streak], before: ManagedNode | None, after: ManagedNode, now_s: float
) -> tuple[str, ...]:
    """Learn from a node's step whether it has proven itself, or failed while it tried.

    Returns the names whose streaks are different now.
    """
    if before is None or before.phase is after.phase:
        return ()
    failed = before.phase is Phase.BOOTING and after.phase is Phase.REMOVING and after.fail
    if not (failed or after.phase is Phase.READY):
        return ()
    names = (after.host, image_streak(after.image))
    if not failed:
        shown = names[: _SHOWS.get(before.phase, 0)]
        return tuple(name for name in shown if streaks.pop(name, None) is not None)
    for name in names:
        count = streaks[name].count + 1 if name in streaks else 1
        streaks[name] = Streak(count, now_s, after.reason)
    return names


class Habits:
    """Of each user the share of the time limit that each of the latest jobs has used, 0 to 1."""

    def __init__(self) -> None:
        self._shares: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=_LATEST_OF_ALL)

    def learn(self, user: str, ran_s: float, limit_s: float) -> bool:
        """Take in a job of this user's that ran for so long, by a limit above 0.

        Returns True if anybody's shares may be others than before.
        """
        before = self.shares(user), self.shares("")
        share = max(0.0, min(1.0, ran_s / limit_s))
        self._shares.setdefault(user, deque(maxlen=_LATEST)).append(share)
        self._of_all.append(share)
        return (self.shares(user), self.shares("")) != before

    def shares(self, user: str) -> tuple[float, float] | None:
        """Return the shares that a quarter, and nine in ten, of this user's latest jobs did not exceed.

        Those of all users' jobs, if too few of this one's are known; None: of these, too.
        """
        own = self._shares.get(user, ())
        known = sorted(own if len(own) >= _FEWEST else self._of_all)
        if len(known) < _FEWEST:
            return None
        return known[(len(known) - 1) // 4], known[ceil(0.9 * len(known)) - 1]


class RunTimes:
    """For how long the latest jobs of each user ran that came to their end, s."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=_LATEST_OF_ALL)

    def learn(self, user: str, ran_s: float) -> None:
        """Take in a job of this user's that has ended."""
        self._times.setdefault(user, deque(maxlen=_LATEST)).append(ran_s)
        self._of_all.append(ran_s)

    def left_s(self, user: str, age_s: float) -> list[float]:
        """Return how much longer than `age_s` the latest jobs of this user ran, of those that did, sorted.

        Those of all users' jobs, if too few of this one's are known; empty if too few of these are, too.
        """
        own = self._times.get(user, ())
        known = own if len(own) >= _FEWEST else self._of_all
        return sorted(ran_s - age_s for ran_s in known if ran_s > age_s) if len(known) >= _FEWEST else []


class Owners:
    """How the latest jobs of each user ran."""

    def __init__(self) -> None:
        self.habits = Habits()  # of jobs that were on hosts
        self.run_times = RunTimes()  # of jobs that were on nodes of ours

    def learn(self, world: Picture, job: Job, state: JobState, ended_s: float) -> bool:
        """Learn from a job that has ended; return True if somebody's habits may be others than before.

        One that was neither on a node of ours nor on a host teaches nothing: the journal does not tell
        of it, and a replay has to learn the same.
        """
        if not job.user or job.start_s <= 0.0:
            return False
        ran_s = ended_s - job.start_s
        if any(name in world.managed for name in job.nodes):
            if state is JobState.COMPLETED:
                self.run_times.learn(job.user, ran_s)
            return False
        if not job.time_limit_s or not any(world.host_of_node(name) for name in job.nodes):
            return False
        return self.habits.learn(job.user, ran_s, job.time_limit_s)
