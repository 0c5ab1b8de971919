"""Reads Slurm's JSON, of its tools and of slurmrestd, from OpenAPI v0.0.38 to data_parser v0.0.45.

Between these the same fields are plain or wrapped: a number may be `{set, infinite, number}`, a
state one word or a list of base and flags, features a text or a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.job_machines import asked
from backfill.drivers.slurm.commands import meaning_of
from backfill.drivers.slurm.reading.parse import asked_hosts, given, hosts, job_memory, tasks
from backfill.drivers.slurm.reading.states import is_exclusive, job_state, node_state
from backfill.ports.errors import BadOutputError

# The last version that says of a waiting job whether it is exclusive (26.05 still speaks it).
TELLING = "v0.0.44"
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
_SLACK_S = 2.0  # whole seconds on Slurm's side, and the time that the question took
_STATES = {state.value for state in JobState}
_NO_TIME = 2**31 - 1  # from here on a time stands for "none" or "unlimited"


def read_document(text: str, source: str, subject: str) -> dict[str, Any]:
    """Parse the answer. The typed error when it reports one, BadOutputError when it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOutputError(source, f"its answer is no JSON: {text[:80]!r}") from error
    if not isinstance(document, dict):
        raise BadOutputError(source, f"its answer is no JSON object: {text[:80]!r}")
    errors = document.get("errors") or []
    if errors:
        first = errors[0] if isinstance(errors, list) else errors
        said = (
            first
            if not isinstance(first, dict)
            else (f"{first.get('error') or ''} {first.get('description') or ''}")
        )
        raise meaning_of(subject, source, 1, str(said).strip())
    return document


def jobs_of(document: dict[str, Any], source: str, now_s: float) -> dict[str, Job]:
    """Read the jobs of an answer by id, one for each task of an array; BadOutputError otherwise."""
    found: dict[str, Job] = {}
    for entry in _entries(document, "jobs", source):
        try:
            found.update((job.id, job) for job in _jobs(entry, now_s))
        except _UNREADABLE as error:
            what = entry.get("job_id") if isinstance(entry, dict) else entry
            raise BadOutputError(source, f"cannot read the job {what!r}: {error!r}") from error
    return found


def nodes_of(document: dict[str, Any], source: str) -> dict[str, Node]:
    """Read the nodes of an answer by name; BadOutputError otherwise."""
    found: dict[str, Node] = {}
    for entry in _entries(document, "nodes", source):
        try:
            node = _node(entry)
        except _UNREADABLE as error:
            what = entry.get("name") if isinstance(entry, dict) else entry
            raise BadOutputError(source, f"cannot read the node {what!r}: {error!r}") from error
        found[node.name] = node
    return found


def _entries(document: dict[str, Any], key: str, source: str) -> list[Any]:
    entries = document.get(key)
    if not isinstance(entries, list):
        raise BadOutputError(source, f"its answer has no list of {key}")
    return entries


def number(value: Any) -> int | None:
    """Read a number, plain or wrapped; None where it is not set or has no limit."""
    if isinstance(value, dict):
        value = value["number"] if value["set"] and not value["infinite"] else None
    return None if value is None else int(value)


def _known(value: int | None) -> int:
    """Read a number that must be there: by its restarts a run of a job is told from another."""
    if value is None:
        raise ValueError("its number of restarts is not set")
    return value


def _jobs(entry: dict[str, Any], now_s: float) -> Iterator[Job]:
    ends_s = _time_s(entry["end_time"])
    state, flags = _job_state(entry["job_state"], 0 < ends_s <= now_s + _SLACK_S)
    nodes = int(number(entry["node_count"]) or 0)
    minimum = number(entry["memory_per_node"]) or number(entry["memory_per_cpu"]) or 0
    limit_min = number(entry["time_limit"])
    total = _text(entry["tres_alloc_str"]) or _text(entry["tres_req_str"])
    memory_mb, by_cpu = job_memory(f"{minimum}M", total, nodes)
    # 22.05 does not say where it expects a job to start.
    expected = _text(entry.get("scheduled_nodes"))
    planned = hosts(expected) if state is JobState.PENDING else ()
    # 22.05 has no --extra.
    texts = (_text(entry.get(name)) for name in ("admin_comment", "extra", "comment"))
    machines, fault = asked(*texts)
    alone = any(map(is_exclusive, _words(entry.get("shared"))))  # from v0.0.45 on it is not told
    for job_id in _ids(entry):
        yield Job(
            id=job_id,
            raw_id=int(entry["job_id"]),
            partition=_text(entry["partition"]),
            state=state,
            flags=flags,
            qos=given(_text(entry["qos"])),
            user=_text(entry["user_name"]),
            account=given(_text(entry["account"])),
            name=_text(entry["name"]),
            nodes=hosts(_text(entry["nodes"])),
            num_nodes=nodes,
            cpus=number(entry["cpus"]) or 0,
            memory_mb=memory_mb,
            memory_by_cpu=by_cpu,
            priority=number(entry["priority"]) or 0,
            submit_s=_time_s(entry["submit_time"]),
            eligible_s=_time_s(entry["eligible_time"]),
            start_s=0.0 if state is JobState.PENDING else _time_s(entry["start_time"]),
            time_limit_s=None if limit_min is None else limit_min * 60.0,
            restarts=_known(number(entry["restart_cnt"])),
            requeue=bool(entry["requeue"]),
            reason="" if entry["state_reason"] == "None" else _text(entry["state_reason"]),
            required_nodes=asked_hosts(_text(entry["required_nodes"])),
            features=given(_text(entry["features"])),
            deadline_s=_time_s(entry["deadline"]),
            interactive=not entry["batch_flag"],
            exclusive=alone,
            comment=given(_text(entry["comment"])),
            machines=machines,
            machines_fault=fault,
            planned_s=_time_s(entry["start_time"]) if planned else 0.0,
            planned_nodes=planned,
        )


def _ids(entry: dict[str, Any]) -> list[str]:
    """Read the id as Slurm shows it; several for the tasks of an array that are still together."""
    array, task = number(entry["array_job_id"]), number(entry["array_task_id"])
    if array and task is not None:
        return [f"{array}_{task}"]
    if array and entry["array_task_string"]:
        return [f"{array}_{waiting}" for waiting in tasks(entry["array_task_string"])]
    leader = number(entry["het_job_id"])
    if leader:
        return [f"{leader}+{number(entry['het_job_offset']) or 0}"]
    return [str(int(entry["job_id"]))]


def _job_state(value: Any, ended: bool) -> tuple[JobState, frozenset[str]]:
    words = [value] if isinstance(value, str) else list(value)
    base = [word for word in words if word in _STATES]
    if len(base) != 1 or len(words) == 1:
        return job_state(words[0], ended)
    return JobState(base[0]), frozenset(words) - {base[0]}


def _node(entry: dict[str, Any]) -> Node:
    state = entry["state"]
    words = [state, *(entry.get("state_flags") or [])] if isinstance(state, str) else state
    base, flags = node_state("+".join(words))
    address = _text(entry["address"])
    return Node(
        name=_text(entry["name"]),
        base=NodeBase(base),
        flags=flags,
        # scontrol indents further lines, so that how they began is not known there.
        reason="\n".join(filter(None, map(str.strip, _text(entry["reason"]).split("\n")))),
        reason_by=_text(entry.get("reason_set_by_user")) if entry["reason"] else "",
        address=address,
        cpus=int(entry["cpus"]),
        cpus_allocated=int(entry["alloc_cpus"]),
        memory_mb=int(entry["real_memory"]),
        memory_allocated_mb=number(entry.get("alloc_memory")) or 0,
        partitions=_words(entry["partitions"]),
        features=_words(entry["features"]),
        boot_time_s=_time_s(entry["boot_time"]),
        slurmd_start_s=_time_s(entry["slurmd_start_time"]),
    )


def _words(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value or ()
    return tuple(word for word in words if word)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _time_s(value: Any) -> float:
    seconds = number(value) or 0
    return 0.0 if seconds >= _NO_TIME or seconds < 0 else float(seconds)
