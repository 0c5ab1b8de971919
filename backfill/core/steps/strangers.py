"""Jobs on a node of an image that is not for their owners: put back before they get anywhere."""

from __future__ import annotations

from backfill.core.actions import DrainNode, RequeueJob
from backfill.core.cluster import OUR_REASON, Job, Node
from backfill.core.condemn import permit
from backfill.core.lifecycle import Cause, ManagedNode
from backfill.core.plan_builder import PlanBuilder
from backfill.core.refusals import Code, Goal, Reason, because
from backfill.core.sentences import sentence
from backfill.core.wants import image_of

# A job that has run for longer is left to its end: what it was not to see it has seen by now, and
# its work is intact. Slurm itself keeps strangers away, so it began before it could do so.
_JUST_BEGUN_S = 60.0


def strangers(builder: PlanBuilder, node: ManagedNode, seen: Node) -> bool:
    """See to jobs that may not be here; True while there are any, for which the node is closed.

    To open it again makes the reservation anew that keeps them off it.
    """
    environments = builder.policies.environments
    if not environments.private:
        return False
    image, found = image_of(builder.policies, node), False
    for job in builder.world.jobs_on(node.name):
        why = environments.keeps_out(image, job) if job.active else None
        if why is not None:
            found = True
            _put_back(builder, node, job, why)
    if not found and node.condemned is not None:
        builder.note(node, node.reason, condemned=None)
    if found and not seen.drained:
        reason = f"{OUR_REASON} somebody is on it who may not have it"
        builder.do(DrainNode(node.name, node.generation, reason))
    return found


def _put_back(builder: PlanBuilder, node: ManagedNode, job: Job, why: Reason) -> None:
    over_s = job.start_s + _JUST_BEGUN_S
    builder.wake_at(over_s)
    if not job.requeue:
        why = because(Code.NO_REQUEUE, found=why)
    elif builder.now_s >= over_s:
        why = because(Code.LEFT_TO_END, found=why)
    elif permit(builder, node, Cause.STRANGER, sentence(why)):
        builder.do(RequeueJob(node.name, node.generation, sentence(why), job.id, job.restarts))
    builder.refuse(f"job {job.id}", Goal.PLACE, why, node.name)
