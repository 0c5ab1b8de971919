"""Fills a lab's queue with as many pending jobs as a large cluster has."""

from __future__ import annotations

from backfill.lab.cluster import Lab
from tests.real.slurm_lab import until

JOBS = 10_000
ROOM = (f"MaxArraySize={JOBS + 2}", f"MaxJobCount={2 * JOBS}")
_LIMIT_S = 600.0


def fill(lab: Lab, jobs: int = JOBS) -> None:
    """So many held jobs, each with a record of its own; the lab's slurm.conf has the lines ROOM."""
    array = lab.run(
        "ctl",
        ["sbatch", "--parsable", "-H", "-p", "any", "-o", "/dev/null", f"--array=0-{jobs}", "--wrap=true"],
        check=True,
    ).stdout.strip()
    # Touching all tasks but one gives each its own record.
    touched = ["scontrol", "update", f"JobId={array}_[1-{jobs}]", "Comment=apart"]
    lab.run("ctl", touched, timeout_s=_LIMIT_S)
    lab.run("ctl", ["scancel", f"{array}_0"], check=True)
    counted = ["squeue", "-h", "-t", "PENDING", "-o", "%A"]
    until(lambda: len(lab.run("ctl", counted).stdout.split()) == jobs, _LIMIT_S)
