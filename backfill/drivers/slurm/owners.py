"""What the owner of a job is told: in AdminComment, and at the terminal where somebody waits."""

from __future__ import annotations

import contextlib

from backfill.core.cluster import OUR_REASON
from backfill.drivers.slurm.checks import JOB_ID, checked, one_line
from backfill.drivers.slurm.commands import Commands
from backfill.ports.errors import DriverError, RefusedError


def tell_owner(commands: Commands, job_id: str, text: str, over: str, aloud: bool) -> None:
    """See WorkloadManager.tell. The owner's Comment is never touched."""
    target = checked(job_id, JOB_ID, "job id")
    subject = f"job {job_id}"
    if aloud and "_" not in target:
        # Refused while the job is suspended; nobody may be there any more. scontrol reads the
        # number alone, which of a heterogeneous job is its leader's.
        with contextlib.suppress(DriverError):
            commands.run(["scontrol", "notify", target.partition("+")[0], one_line(text)], subject)
    asked = ["squeue", "-h", "-j", target, "-O", "admin_comment:"]
    # One line for each record: an array has several once a task has begun.
    lines = {line.strip() for line in commands.run(asked, subject).split("\n")} - {"", "(null)"}
    if over and lines != {one_line(over)}:
        return  # something else has been said since
    theirs = sorted(line for line in lines if not line.startswith(OUR_REASON))
    if theirs:
        raise RefusedError(subject, f"its AdminComment is somebody else's: {theirs[0][:100]}")
    comment = f"AdminComment={one_line(text)}"
    commands.run(["scontrol", "update", f"JobId={target}", comment], subject)
