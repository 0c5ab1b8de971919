"""Slurm does not know a node, or the jobs that it stands still for, any more: few go at a time."""

from __future__ import annotations

from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode, Phase


def let_go(draft: Draft, node: ManagedNode, reason: str, *, fail: bool = False) -> None:
    """Remove it, unless as many are being removed as one decision may take."""
    most = draft.policies.limits.removals_at_once
    if draft.world.count_in(Phase.REMOVING) + draft.becoming(Phase.REMOVING) >= most:
        refusal = f"{reason}; limits.removals_at_once = {most} is reached"
        draft.refuse(node.name, "removal", refusal)
        return
    draft.become(node, Phase.REMOVING, reason, fail=fail)


def forgotten(draft: Draft, node: ManagedNode) -> None:
    """Slurm does not show a node that is at work."""
    jobs = [job.id for job in draft.world.jobs_on(node.name) if job.active]
    if jobs:
        reason = f"Slurm does not show it, but job {', '.join(jobs)} on it: this is not believed"
        draft.refuse(node.name, "care", reason)
        return
    let_go(draft, node, "Slurm does not show it any more: somebody deleted it there", fail=True)
