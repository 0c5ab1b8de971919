"""What a job's owner may read in Slurm about what happened to the job."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.actions import TellJob
from backfill.core.cluster import ENDED, OUR_REASON, JobState
from backfill.core.lifecycle import ManagedNode
from backfill.core.plan_builder import PlanBuilder

NOT_OURS = "its node is back; it stays suspended, because somebody else had suspended it before"


def went_on(pause_s: float) -> str:
    """Of a job that was suspended meanwhile."""
    return f"went on after a pause of {pause_s:.0f} s; its time limit did not run meanwhile"


def tell(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[str], text: str) -> None:
    """Leave a sentence for the owners of these jobs. Best effort: nothing waits for it."""
    notice = builder.policies.notice
    if not notice.admin_comment:
        return
    said = f"{OUR_REASON} {text}"
    for job_id in jobs:
        job = builder.world.jobs.get(job_id)
        aloud = notice.terminal and job is not None and job.interactive
        why = "its owner may ask"
        builder.do(TellJob(node.name, node.generation, why, job_id, said, aloud=aloud))


def tell_requeued(builder: PlanBuilder, node: ManagedNode) -> None:
    """Correct what was said of jobs that Slurm has put back into the queue while they stood still.

    Of one that ended nothing can be said any more: slurmctld updates no job that is over.
    """
    for held in node.held:
        job = builder.world.jobs.get(held.id)
        if job is None or job.restarts == held.restarts or job.state in ENDED:
            continue
        text = "Slurm put it back into the queue while its node stood still, so that it starts anew"
        if job.state is JobState.PENDING and job.reason.startswith("JobHeld"):
            text += f", and holds it ({job.reason}): an admin has to release it"
        tell(builder, node, (job.id,), text)
