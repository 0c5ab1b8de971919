"""Notice: what the owners of jobs are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """Where a job's owner can read why it stood still. Nobody is written to."""

    # Leave a sentence in the job's AdminComment (`scontrol show job`) when it is paused, goes on
    # or starts anew. What others have written there stays, and so does the owner's Comment.
    admin_comment: bool = True
