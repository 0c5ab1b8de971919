"""What is learnt from what was seen: where boots fail in a row, and how the jobs of each owner run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.measures import Habits, RunTimes
from backfill.core.model.readiness import Streak, is_kind_streak, kind_streak
from backfill.core.picture import Picture
from backfill.core.tables import Table

# A boot shows that host and kind are well; a return the host alone; what was only drained shows nothing.
_SHOWS = {Phase.BOOTING: 2, Phase.RETURNING: 1}


def follow(
    streaks: Table[str, Mapping[str, Streak]], before: ManagedNode | None, after: ManagedNode, now_s: float
) -> Collection[str]:
    """Learn from a node's step whether it has proven itself, or failed while it tried.

    Returns the hosts that may be to blame now, or no longer.
    """
    if before is None or before.phase is after.phase:
        return ()
    host, kind = after.host, kind_streak(after.image, after.devices)
    if after.phase is Phase.READY:
        shown = (host, kind)[: _SHOWS.get(before.phase, 0)]
        return {one for name in shown for one in _ended(streaks, name)}
    if not (before.phase is Phase.BOOTING and after.phase is Phase.REMOVING and after.fail):
        return ()
    for name, other in ((host, kind), (kind, host)):
        known = streaks.get(name, {})
        count = known[other].count + 1 if other in known else 1
        streaks[name] = {**known, other: Streak(count, now_s, after.reason)}
    # Once it has failed on a second host as well the first may be to blame no longer.
    return tuple(streaks[kind]) if len(streaks[kind]) == 2 else (host,)


def _ended(streaks: Table[str, Mapping[str, Streak]], name: str) -> Collection[str]:
    """A host, or a kind, has proven itself; return the hosts that this concerns."""
    known: Mapping[str, Streak] = streaks.pop(name, {})
    return known if is_kind_streak(name) else (name,) if known else ()


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
