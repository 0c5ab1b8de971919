"""Learns step costs from a daemon's journal: the medians of what its calls took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from statistics import median

from backfill.core import changes as ch
from backfill.core.cluster import Node
from backfill.core.records import decode
from backfill.drivers.simulated.costs import StepCosts
from backfill.ports import Record

_FIELDS = {
    "CreateInstance": "create_s",
    "DeleteInstance": "delete_s",
    "PauseInstance": "pause_s",
    "ThawInstance": "thaw_s",
    "SuspendInstance": "suspend_s",
    "RestoreInstance": "restore_s",
    "MigrateInstance": "migrate_s",
    "WakeInstance": "wake_s",
    "ProbeJobs": "console_s",
    "DrainNode": "drain_s",
    "UndrainNode": "drain_s",
    "CreateNode": "create_node_s",
    "SuspendJob": "slurm_call_s",
    "ResumeJob": "slurm_call_s",
    "RequeueJob": "slurm_call_s",
    "DeleteNode": "slurm_call_s",
    "SetAddress": "slurm_call_s",
}
_PER_MB = ("suspend", "restore", "migrate")


def learned(records: Iterable[Record]) -> dict[str, float]:
    """Fields of StepCosts, of those steps that succeeded at least once.

    A transfer's whole time becomes its fixed part: it holds for instances of the same size. How
    long a boot takes is counted from the end of the call that began it to the first registration.
    """
    samples: dict[str, list[float]] = {}
    made_s: dict[str, float] = {}  # when the call ended that made the instance of a node
    for record in records:
        if record.kind == "outcome" and not record.body["problem"]:
            kind, _, rest = str(record.body["key"]).partition(":")
            if kind in _FIELDS:
                elapsed_s = float(str(record.body["elapsed_s"]))
                samples.setdefault(_FIELDS[kind], []).append(elapsed_s)
            if kind == "CreateInstance":
                made_s[rest.partition(":")[0]] = record.at_s
        for node in _registered(record):
            begun_s = made_s.pop(node.name, None)
            if begun_s is not None:
                booted_s = max(0.0, record.at_s - begun_s)
                samples.setdefault("boot_s", []).append(booted_s)
    return _medians(samples)


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    found = {name: round(median(times), 4) for name, times in samples.items()}
    for call in _PER_MB:
        if f"{call}_s" in found:
            found[f"{call}_s_per_mb"] = 0.0
    return {field.name: found[field.name] for field in fields(StepCosts) if field.name in found}


def _registered(record: Record) -> Iterator[Node]:
    if record.kind == "change" and record.body.get("t") == ch.NodeSeen.__name__:
        change = decode(record.body)
        assert isinstance(change, ch.NodeSeen)
        if change.node.slurmd_start_s > 0.0 and change.node.responding:
            yield change.node


def as_yaml(costs: dict[str, float]) -> str:
    """A file for `--costs`."""
    lines = ["# Learned from a daemon's journal (`backfill replay --journal FILE --learn OUT`)."]
    for name, value in costs.items():
        lines.append(
            f"{name}: {value:.6g}" if name.endswith("_per_mb") else f"{name}: {value:.6g}s"
        )
    return "\n".join(lines) + "\n"
