"""What a job's owner may read in Slurm about what happened to the job."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.actions import TellJob
from backfill.core.cluster import OUR_REASON
from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode


def tell(draft: Draft, node: ManagedNode, jobs: Iterable[str], text: str) -> None:
    """Leave a sentence for the owners of these jobs. Best effort: nothing waits for it."""
    if draft.policies.notice.admin_comment:
        for job_id in jobs:
            said = f"{OUR_REASON} {text}"
            draft.do(TellJob(node.name, node.generation, job_id, said, "its owner may ask"))
