"""Drives a cycle: takes what was read and what calls have led to, decides, and says when to go on.

One and the same for the daemon, for a rehearsal on a simulated cluster and for a replay. They differ
only in who calls it: threads and sockets, or simulated time.
"""

from __future__ import annotations

from math import inf

from backfill.core.model import changes as ch
from backfill.core.model.plan import Plan
from backfill.engine.cycle import Cycle
from backfill.engine.messages import CallResult, ClusterPicture, HostPicture, NodesPicture, ReadFailed
from backfill.engine.observe import cluster_changes, host_changes, node_changes
from backfill.engine.watch import Watch, crowd_of, stirs

Picture = ClusterPicture | NodesPicture | HostPicture | ReadFailed


class CycleDriver:
    """Feeds one cycle. Its owner ticks the cycle first; times are epoch seconds."""

    def __init__(self, cycle: Cycle, watch: Watch) -> None:
        self.cycle = cycle
        self.watch = watch

    def take_picture(self, picture: Picture, now_s: float) -> None:
        """Take what a source showed, or that it could not be read."""
        world, cycle = self.cycle.world, self.cycle
        match picture:
            case ClusterPicture():
                cycle.take(cluster_changes(world, picture.seen))
            case HostPicture():
                cycle.take(host_changes(world, picture.seen))
            case NodesPicture(seen=None):
                cycle.take([ch.SourceFailed("slurm", now_s, picture.problem)])
                self.watch.answered(now_s)
            case NodesPicture():
                assert picture.seen is not None
                cycle.take(node_changes(world, picture.names, picture.seen))
                self.watch.answered(now_s)
            case ReadFailed():
                cycle.take([ch.SourceFailed(picture.source, now_s, picture.problem)])

    def take_result(self, result: CallResult, now_s: float) -> frozenset[str]:
        """Take the outcome of a call; return the hosts to be read at once, because it may have acted."""
        action, key = result.action, result.action.key
        elapsed_s = round(result.elapsed_s, 6)
        body: dict[str, object] = {"key": key, "elapsed_s": elapsed_s, "problem": result.problem}
        self.cycle.record("outcome", action.subject, body)
        if stirs(action):
            self.watch.stir(now_s)
        done = ch.OperationDone(key, now_s, result.problem, result.retry)
        self.cycle.take([*result.changes, done])
        if not result.problem:
            return frozenset()
        return frozenset({action.lands_on, action.asks} if action.lands_on else ())

    def decide(self, now_s: float) -> Plan:
        """Decide, begin what was decided, and watch the nodes whose next change is awaited."""
        plan, world = self.cycle.decide(), self.cycle.world
        watched = plan.watch | self.watch.leaving(world)
        self.watch.want(watched, now_s, crowd=crowd_of(world, watched))
        return plan

    def due_s(self, now_s: float) -> float:
        """When the latest plan, or the watch, wants to go on at the latest; inf: only with news."""
        wake_s = self.cycle.last.wake_at_s
        return min(inf if wake_s is None else wake_s, now_s + self.watch.due_in_s(now_s))
