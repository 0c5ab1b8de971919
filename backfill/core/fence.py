"""The fence: may a stopped instance run again, or would a job of it then run twice?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.core.cluster import ENDED, Job
from backfill.core.lifecycle import HeldJob
from backfill.core.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class Verdict:
    """`keep`: held jobs that Slurm still holds here. `stale`: why the copy must be destroyed."""

    keep: tuple[HeldJob, ...]
    stale: Reason | None = None


def judge(node: str, held: Iterable[HeldJob], jobs: Mapping[str, Job]) -> Verdict:
    """Compare the jobs frozen on `node` with Slurm's word.

    A job that ended for good can run no second time, so it is merely dropped. A job that Slurm has
    put back into the queue, started again, or placed elsewhere makes the whole copy stale.
    """
    keep = []
    for frozen in held:
        job = jobs.get(frozen.id)
        if job is None or (job.state in ENDED and job.restarts == frozen.restarts):
            continue
        if job.restarts != frozen.restarts:
            counts = {"restarts": job.restarts, "copied": frozen.restarts}
            return Verdict((), because(Code.COPY_REQUEUED, job=job.id, **counts))
        if not job.active or node not in job.nodes:
            nodes = job.nodes or ("no node",)
            return Verdict((), because(Code.COPY_ELSEWHERE, job=job.id, state=job.state.value, nodes=nodes))
        keep.append(frozen)
    return Verdict(tuple(keep))
