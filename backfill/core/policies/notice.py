"""Notice: what the owners of jobs are told."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Notice:
    """Where a job's owner can read why it stood still, or waits."""

    admin_comment: bool = key(
        True,
        "Leave a sentence in the job's AdminComment (`scontrol show job`) when it is paused, "
        "continues or starts again. What others have written there stays, and so does the "
        "owner's Comment.",
    )
    terminal: bool = key(
        True,
        "If somebody's salloc or srun waits for the job, print the same there at that moment "
        "(`scontrol notify`). Batch jobs have no terminal, and their output is left alone.",
    )
    waiting_after_s: float = key(
        600.0,
        "A low-priority job that has waited this long for room is told why, in the same place; 0: never.",
        least=0,
    )
    waiting_per_min: int = key(
        6,
        "How many of them are told in a minute, the longest waiting first; each is one update in slurmctld.",
    )
    again_s: float = key(
        3600.0, "A job is told a different reason only after this time, and the same one never again."
    )
