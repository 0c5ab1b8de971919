"""Notice: what the owners of jobs are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """Where a job's owner can read why it stood still, or waits."""

    # Leave a sentence in the job's AdminComment (`scontrol show job`) when it is paused, goes on
    # or starts anew. What others have written there stays, and so does the owner's Comment.
    admin_comment: bool = True
    # Where somebody's salloc or srun waits for the job, the same is printed there at that moment
    # (`scontrol notify`). Batch jobs have no terminal, and their output is left alone.
    terminal: bool = True
    # A low-priority job that has waited for room so long is told why, in the same place; 0: never.
    waiting_after_s: float = 600.0
    # So many of them in a minute, those that wait longest first; each is one update in slurmctld.
    waiting_per_min: int = 6
    # A job hears of another reason only after this time, and of the same one never.
    again_s: float = 3600.0
