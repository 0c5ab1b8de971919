"""What is learnt from what was seen: where boots fail in a row, and how the jobs of each owner run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.measures import Habits, RunTimes
from backfill.core.model.readiness import Streak, image_streak

if TYPE_CHECKING:
    from backfill.core.picture import Picture

# A boot shows that host and image are well; a return the host alone; what was only drained shows nothing.
_SHOWS = {Phase.BOOTING: 2, Phase.RETURNING: 1}


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
