"""Decides when a replay may fast-forward: no job on bare metal can make the daemon do or say anything."""

from __future__ import annotations

from backfill.core.model.plan import Plan
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.sim.replay.trace_cluster import TraceCluster


class Quiescence:
    """Asks once after each plan.

    Where nothing of ours exists or is wanted, a plan that says nothing and wants to be made again
    at no time would come out the same whatever jobs of high priority do, but for the answers to
    their hooks: the room is free, since nothing of ours is on any host.
    """

    def __init__(self, world: World, sim: TraceCluster, policies: PolicySet) -> None:
        self._world, self._sim, self._policies = world, sim, policies

    def possible(self, plan: Plan) -> bool:
        """Return True if all is quiet."""
        world = self._world
        busy = self._sim.active_low or world.managed or world.instances or world.operations
        if busy or world.doubts or world.fleets or world.machines or plan.actions or plan.refusals:
            return False
        # Clone parents that are kept ready follow the room on each host.
        return not any(rule.warm_parents for rule in self._policies.environments.rules)
