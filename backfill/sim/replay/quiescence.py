"""Decides when a replay may fast-forward: no job on bare metal can make the daemon do or say anything."""

from __future__ import annotations

from backfill.core.plan import Plan
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.sim.replay.trace_cluster import TraceCluster

_OF_METAL = frozenset({"*nodes", "*jobs", "*queue", "*claims", "*read"})
_OF_ANY_JOB = ("job ", "claim ", "read ")


class Quiescence:
    """Asks the findings of the latest plan, once each time that nothing of ours is left.

    A plan that leads to nothing, wants to be made again at no time and rests on nothing that a
    high-priority job touches would come out the same whatever these jobs do, but for the answers
    to their hooks: the room is free, since nothing of ours is on any host.
    """

    def __init__(self, world: World, sim: TraceCluster, policies: PolicySet) -> None:
        self._world, self._sim = world, sim
        queues = {f"queue {partition}" for partition in policies.priorities.high}
        self._touched = {*_OF_METAL, *queues, *sim.shape.names, *sim.hosts}
        self._asked = False

    def possible(self, plan: Plan) -> bool:
        """Return True if all is quiet; the first time that it seems so the plan has to be made anew."""
        world = self._world
        busy = self._sim.active_low or world.managed or world.instances or world.operations
        if busy or world.doubts or world.fleets or plan.actions or plan.refusals:
            self._asked = False
            return False
        findings = world.findings
        if "scale" not in findings or "liveness" not in findings:
            return False
        if not findings.heeds(self._touches):
            return True
        if not self._asked:
            # What plans rested on that were made meanwhile is not told apart: begin anew, once.
            self._asked = True
            findings.doubt()
        return False

    def _touches(self, what: str) -> bool:
        return what in self._touched or what.startswith(_OF_ANY_JOB)
