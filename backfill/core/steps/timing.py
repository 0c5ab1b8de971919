"""When Slurm may be told of an eviction: what is on its way to slurmctld comes first."""

from __future__ import annotations

from backfill.core.actions import DrainNode, KickJob, ResumeJob, UndrainNode
from backfill.core.adopting import mark
from backfill.core.cluster import OUR_REASON, Node
from backfill.core.lifecycle import ManagedNode
from backfill.core.plan_builder import PlanBuilder

# From the hook's word to the first command of the job: 30 to 40 ms where little else runs.
_JOB_STARTS_S = 0.1
_RETURN = tuple(f"{kind.__name__}:" for kind in (KickJob, ResumeJob, UndrainNode))


def job_starts(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether the job that took the host is just being started: our calls would be in its way.

    They take slurmctld's locks and processor time in those milliseconds; the instance stands still
    already, and nothing is lost when Slurm hears of it a little later.
    """
    came_s = max((claim.since_s for claim in builder.world.claims_on(node.host)), default=0.0)
    builder.wake_at(came_s + _JOB_STARTS_S)
    return builder.now_s < came_s + _JOB_STARTS_S


def drained(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """Whether the node takes no new jobs and its return, if there was one, is over; else see to it.

    A call of that may wait for a thread behind long calls, and would undo what overtook it. Where
    Slurm shows the node as drained no longer, the one that lifts the drain has been there already.
    """
    if not seen.drained:
        frozen = mark(node, builder.world.jobs_on(node.name))
        builder.do(DrainNode(node.name, node.generation, f"{OUR_REASON} {node.reason}{frozen}"))
        return False
    calls = builder.world.operations_of(node.name)
    return not any(call.running and call.key.startswith(_RETURN) for call in calls)
