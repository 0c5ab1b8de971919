"""Asks Slurm through pyslurm in a process of its own; reads and writes one JSON object per line.

This file is run, never imported, and imports nothing of ours: pyslurm holds the interpreter for
as long as a call lasts, may end the process, and is under the GPL. Its interpreter may be another.
A request is {"call": "jobs", "ids": [...]}; the answer is {"jobs": [...]} with plain values, or
{"error": {"kind": ..., "errno": ..., "said": ...}}. The first line says which pyslurm this is.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# What is read of a job. Names and meanings: pyslurm v25.11.2, pyslurm/core/job/job.pyx, class Job.
FIELDS = (
    "id",
    "name",
    "state",
    "state_reason",
    "partition",
    "qos",
    "account",
    "comment",
    "admin_comment",
    "user_name",
    "allocated_nodes",
    "required_nodes",
    "cpus",
    "num_nodes",
    "memory_per_node",
    "memory_per_cpu",
    "constraints",
    "array_id",
    "array_task_id",
    "array_tasks_waiting",
    "time_limit",
    "submit_time",
    "start_time",
    "eligible_time",
    "end_time",
    "requeue_count",
    "is_requeueable",
    "priority",
    "heterogeneous_id",
    "heterogeneous_offset",
    "deadline",
    "scheduled_nodes",
    "resource_sharing",
)
NOT_FOUND = (-1, 2017, 2018)
PROTOCOL_ERROR = 1007  # slurmctld is of a release that this pyslurm does not speak


def plain(value: Any) -> bool | int | float | str | None:
    """Make a value that JSON can carry; what pyslurm has split at commas (constraints) is whole again.

    Any other object of pyslurm's becomes its text.
    """
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def job_record(job: Any) -> dict[str, Any]:
    """One job as a plain dictionary. AttributeError: this pyslurm has other names."""
    return {field: plain(getattr(job, field)) for field in FIELDS}


def jobs(pyslurm: Any, ids: list[int] | None) -> dict[str, Any]:
    """All jobs, or those with these numbers that Slurm knows."""
    # Without a controller every other call waits for 10 to 20 s, the ping fails at once: it raises,
    # `is_responding` of its answer is always true (pyslurm/core/slurmctld/base.pyx, `ping`).
    try:
        pyslurm.slurmctld.ping_primary()
    except pyslurm.RPCError as error:
        if error.errno == PROTOCOL_ERROR:
            raise
        said = f"slurmctld does not answer the ping ({error})"
        return {"error": {"kind": "silent", "said": said}}
    if ids is None:
        return {"jobs": [job_record(job) for job in pyslurm.Jobs.load().values()]}
    found = []
    for number in ids:
        try:
            found.append(job_record(pyslurm.Job.load(number)))
        except pyslurm.RPCError as error:
            if error.errno not in NOT_FOUND:
                raise
    return {"jobs": found}


def answer(pyslurm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Do what the request asks; whatever fails becomes an answer."""
    try:
        return jobs(pyslurm, request["ids"])
    except pyslurm.RPCError as error:
        return {"error": {"kind": "rpc", "errno": plain(error.errno), "said": str(error)}}
    except Exception as error:  # noqa: BLE001  the parent turns it into a typed error
        return {"error": {"kind": "broken", "said": f"{type(error).__name__}: {error}"}}


def main() -> int:
    """Serve until standard input ends."""
    # What libslurm prints must never get between our lines.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    try:
        import pyslurm
    except Exception as error:  # noqa: BLE001  whatever it is, the parent must hear of it
        say({"error": {"kind": "missing", "said": f"{type(error).__name__}: {error}"}})
        return 1
    say({"pyslurm": str(getattr(pyslurm, "__version__", "unknown"))})
    for line in sys.stdin:
        say(answer(pyslurm, json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
