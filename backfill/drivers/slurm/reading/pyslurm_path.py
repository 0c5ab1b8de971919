"""Reads jobs through pyslurm, which lives in a process of its own; nodes through scontrol.

pyslurm does not show nodes that never registered, and without these a node of ours that waits for
its slurmd would look deleted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.job_machines import asked
from backfill.drivers.child import Child
from backfill.drivers.slurm.commands import CONTROLLER, NAME_CONF, SlurmTools, meaning_of
from backfill.drivers.slurm.reading.parse import asked_hosts, given, hosts, tasks
from backfill.drivers.slurm.reading.paths import BrokenPathError
from backfill.drivers.slurm.reading.states import is_exclusive, job_state
from backfill.drivers.slurm.reading.text_path import FEW, TextPath
from backfill.ports.errors import BadOutputError, UnreachableError

SUBJECT = "pyslurm"
_SCRIPT = Path(__file__).with_name("pyslurm_child.py")
_SLACK_S = 2.0  # whole seconds on Slurm's side, and the time that the question took
_PROTOCOL_ERROR = 1007


class PyslurmPath:
    """See ReadPath. `python` is an interpreter that has pyslurm."""

    name = "pyslurm"

    def __init__(self, commands: SlurmTools, python: str) -> None:
        self._commands = commands
        self._text = TextPath(commands)
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LC_ALL": "C.UTF-8",
            "SLURM_BITSTR_LEN": "0",
            **({"SLURM_CONF": str(commands.conf)} if commands.conf else {}),
            **commands.env,
        }
        # -u would not help: what counts is written and flushed by the script itself.
        argv = [*commands.prefix, python, str(_SCRIPT)]
        self._child = Child(argv, environment, SUBJECT, commands.timeout_s, BrokenPathError)

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """scontrol and pyslurm, one after the other: the second answers in milliseconds."""
        return self._text.all_nodes(), self.all_jobs()

    def all_jobs(self) -> dict[str, Job]:
        """See ReadPath."""
        return self._jobs(None)

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        if len(ids) > FEW or not all(job_id.isdigit() for job_id in ids):
            # A task or component has a number of its own that its id does not tell.
            return {i: job for i, job in self.all_jobs().items() if i in ids}
        found = self._jobs([int(job_id) for job_id in ids])
        return {i: job for i, job in found.items() if i in ids}

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        return {i: j for i, j in self.all_jobs().items() if not set(names).isdisjoint(j.nodes)}

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """See ReadPath."""
        return self._text.nodes(names)

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _jobs(self, numbers: list[int] | None) -> dict[str, Job]:
        conf = self._commands.conf
        if conf is not None and not self._commands.prefix and not conf.is_file():
            # libslurm would wait for it for a minute and then end the process.
            raise UnreachableError(CONTROLLER, f"there is no file {conf}", NAME_CONF)
        answer = self._child.ask({"call": "jobs", "ids": numbers})
        if "error" in answer:
            raise _meaning(answer["error"], str(self._child.greeting.get("pyslurm")))
        found: dict[str, Job] = {}
        try:
            for record in answer["jobs"]:
                found.update((job.id, job) for job in jobs_of(record, time.time()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadOutputError(SUBJECT, f"cannot read a job: {error!r}") from error
        return found


def _meaning(error: dict[str, Any], version: str) -> Exception:
    said = str(error.get("said"))
    match error.get("kind"):
        case "silent":
            return UnreachableError(CONTROLLER, said, "check it with: scontrol ping")
        case "rpc" if error.get("errno") == _PROTOCOL_ERROR:
            # Also a wrong munge key or clock, and then the next way of reading says so.
            return BrokenPathError(
                SUBJECT,
                f"its release ({version}) does not fit this slurmctld ({said})",
                "install the pyslurm of slurmctld's release or the one before, or read by text",
            )
        case "rpc":
            return meaning_of(CONTROLLER, SUBJECT, 1, said)
        case _:
            return BadOutputError(SUBJECT, said)


def jobs_of(record: dict[str, Any], now_s: float) -> list[Job]:
    """Read the jobs of one record of the child's: several for an array whose tasks wait together.

    What the values are: pyslurm v25.11.2, pyslurm/core/job/job.pyx. There 0 of any number is None,
    unless it is a priority, and so is a time that is not set or has no limit.
    """
    ends_s = _time_s(record["end_time"])
    # One plain word, in which COMPLETING hides the base, as in squeue.
    state, flags = job_state(record["state"], 0 < ends_s <= now_s + _SLACK_S)
    num_nodes = int(record["num_nodes"] or 0)
    cpus = int(record["cpus"] or 0)
    memory_mb, by_cpu = _memory(record, cpus, num_nodes)
    limit_min = record["time_limit"]
    planned = hosts(record["scheduled_nodes"] or "") if state is JobState.PENDING else ()
    machines, fault = asked(record["admin_comment"] or "", record["comment"] or "")
    return [
        Job(
            id=job_id,
            raw_id=int(record["id"]),
            partition=record["partition"] or "",
            state=state,
            flags=flags,
            qos=given(record["qos"] or ""),
            user=record["user_name"] or "",
            account=given(record["account"] or ""),
            name=record["name"] or "",
            nodes=hosts(record["allocated_nodes"] or ""),
            num_nodes=num_nodes,
            cpus=cpus,
            memory_mb=memory_mb,
            memory_by_cpu=by_cpu,
            priority=int(record["priority"] or 0),
            submit_s=_time_s(record["submit_time"]),
            eligible_s=_time_s(record["eligible_time"]),
            start_s=0.0 if state is JobState.PENDING else _time_s(record["start_time"]),
            time_limit_s=limit_min * 60.0 if isinstance(limit_min, int) else None,
            restarts=int(record["requeue_count"] or 0),
            requeue=bool(record["is_requeueable"]),
            reason="" if record["state_reason"] in (None, "None") else record["state_reason"],
            required_nodes=asked_hosts(record["required_nodes"] or ""),
            features=given(record["constraints"] or ""),
            deadline_s=_time_s(record["deadline"]),
            exclusive=is_exclusive(record["resource_sharing"] or ""),
            comment=given(record["comment"] or ""),
            machines=machines,
            machines_fault=fault,
            planned_s=_time_s(record["start_time"]) if planned else 0.0,
            planned_nodes=planned,
        )
        for job_id in _ids(record)
    ]


def _ids(record: dict[str, Any]) -> list[str]:
    array, task, waiting = (record[key] for key in ("array_id", "array_task_id", "array_tasks_waiting"))
    if array and task is not None:
        return [f"{array}_{task}"]
    if array and waiting:
        return [f"{array}_{number}" for number in tasks(waiting)]
    if array:
        return [f"{array}_0"]  # pyslurm reads the task number 0 as None
    if record["heterogeneous_id"]:
        return [f"{record['heterogeneous_id']}+{record['heterogeneous_offset'] or 0}"]
    return [str(int(record["id"]))]


def _memory(record: dict[str, Any], cpus: int, num_nodes: int) -> tuple[int, bool]:
    """Memory per node in MB, and whether it is by the CPU.

    Words such as UNLIMITED and None mean that none was asked for.
    """
    per_node, per_cpu = record["memory_per_node"], record["memory_per_cpu"]
    if isinstance(per_node, int) and per_node > 0:
        return per_node, False
    if isinstance(per_cpu, int) and per_cpu > 0:
        return math.ceil(per_cpu * cpus / max(num_nodes, 1)), True
    return 0, False


def _time_s(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
