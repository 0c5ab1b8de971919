"""The fence: may a stopped instance run again, or would a job of it then run twice?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backfill.core.model.cluster import ENDED, Job
from backfill.core.model.lifecycle import HeldJob
from backfill.core.model.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class Verdict:
    """`keep`: held jobs that Slurm still holds here. `stale`: why the copy may never run again.

    `lost`: of which jobs it is stale. Where there is one, `keep` stands still beside it for good,
    unless the guest can end the processes of a copy before any of them runs. `overdue`: those of
    `lost` that are Slurm's present run, and have stood still for longer than they could.
    """

    keep: tuple[HeldJob, ...]
    stale: Reason | None = None
    lost: tuple[HeldJob, ...] = ()
    overdue: tuple[HeldJob, ...] = ()

    @property
    def mixed(self) -> bool:
        """Return True if intact work is in a copy that may never run again."""
        return bool(self.keep and self.lost)

    @property
    def apart(self) -> bool:
        """Return True if there surely is such a copy, so that the intact work only goes on by a new start."""
        return self.mixed and not all(held.late for held in self.lost)


_NOTHING_HELD = Verdict(())


def judge(node: str, held: Sequence[HeldJob], jobs: Mapping[str, Job], now_s: float | None = None) -> Verdict:
    """Compare the jobs frozen on `node` with Slurm's word, and with their patience by `now_s`.

    A job that ended for good can run no second time, so it is merely dropped. A job that Slurm has
    put back into the queue, started again, or placed elsewhere makes the whole copy stale, also once
    Slurm has forgotten it, and so does one whose patience is over. None for `now_s`: they run, so that
    patience has no say.
    """
    if not held:
        return _NOTHING_HELD
    keep, lost, overdue, why = [], [], [], None
    for frozen in held:
        job, run = jobs.get(frozen.id), frozen.later_run
        if job is None and run is not None:
            lost.append(frozen)
            why = why or because(Code.COPY_REQUEUED, job=frozen.id, restarts=run, copied=frozen.restarts)
            continue
        if job is None or (job.state in ENDED and job.restarts == frozen.restarts):
            continue
        stale = _stale(node, frozen, job)
        if stale is None and frozen.patience is not None and now_s is not None and frozen.overdue(now_s):
            stale = because(Code.PATIENCE_OVER, job=frozen.id, patience_s=frozen.patience.left_s)
            overdue.append(frozen)
        if stale is None:
            keep.append(frozen)
            continue
        lost.append(frozen)
        why = why or stale
    return Verdict(tuple(keep), why, tuple(lost), tuple(overdue))


def _stale(node: str, frozen: HeldJob, job: Job) -> Reason | None:
    """Return why the copy of this job is none of its present run, if it is none."""
    if job.restarts != frozen.restarts:
        counts = {"restarts": job.restarts, "copied": frozen.restarts}
        return because(Code.COPY_REQUEUED, job=job.id, **counts)
    if not job.active or node not in job.nodes:
        nodes = job.nodes or ("no node",)
        return because(Code.COPY_ELSEWHERE, job=job.id, state=job.state.value, nodes=nodes)
    return None


def unknown_runs(held: Iterable[HeldJob]) -> tuple[Reason, ...]:
    """Return of which jobs nobody knows whether the stopped copy is of their present run.

    What was held is forgotten with the journal, and Slurm may have requeued a job since.
    """
    return tuple(because(Code.RUN_UNKNOWN, job=h.id, restarts=h.restarts) for h in held if not h.sure)


def unsure(held: Sequence[HeldJob]) -> Reason | None:
    """Return why a stopped instance may neither go on nor be destroyed, if that is so."""
    unknown = unknown_runs(held)
    jobs = tuple(h.id for h in held if not h.sure)
    return because(Code.COPY_UNSURE, jobs=jobs, runs=unknown) if unknown else None
