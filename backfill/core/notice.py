"""What a job's owner may read in Slurm about what happened to the job."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.actions import TellJob
from backfill.core.cluster import OUR_REASON
from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode


def tell(draft: Draft, node: ManagedNode, jobs: Iterable[str], text: str) -> None:
    """Leave a sentence for the owners of these jobs. Best effort: nothing waits for it."""
    notice = draft.policies.notice
    if not notice.admin_comment:
        return
    said = f"{OUR_REASON} {text}"
    for job_id in jobs:
        job = draft.world.jobs.get(job_id)
        aloud = notice.terminal and job is not None and job.interactive
        why = "its owner may ask"
        draft.do(TellJob(node.name, node.generation, job_id, said, why, aloud=aloud))
