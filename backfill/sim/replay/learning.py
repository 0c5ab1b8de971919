"""Learns step costs from a daemon's journal: the medians of what its calls took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from statistics import median

from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.drivers.simulated.costs import StepCosts
from backfill.ports.storage import Record

_FIELDS = {
    "CreateInstance": "create_s",
    "DeleteInstance": "delete_s",
    "PauseInstance": "pause_s",
    "ThawInstance": "thaw_s",
    "SuspendInstance": "suspend_s",
    "RestoreInstance": "restore_s",
    "MigrateInstance": "migrate_s",
    "ProbeJobs": "console_s",
    "DrainNode": "drain_s",
    "UndrainNode": "undrain_s",
    "CreateNode": "create_node_s",
    "SuspendJob": "slurm_call_s",
    "ResumeJob": "slurm_call_s",
    "LimitJob": "slurm_call_s",
    "RequeueJob": "slurm_call_s",
    "DeleteNode": "slurm_call_s",
    "SetAddress": "slurm_call_s",
}
_TELLING = ("NodeManaged", "OperationStarted", "NodeSeen")
_PER_MB = ("suspend", "restore", "migrate")


def learned(records: Iterable[Record]) -> dict[str, float]:
    """Fields of StepCosts, of those steps that succeeded at least once.

    A transfer's whole time becomes its fixed part: it holds for instances of the same size. A move
    does not take longer because it waited for another one between the same hosts. A guest is awake
    when the next step begins: it may be asked several times, and has to be seen by Slurm. How
    long a boot takes is counted from the end of the call that began it to the first registration,
    and a drain is over when the node is seen to take jobs again, which may be before its call ends.
    """
    book = _Book()
    for record in records:
        book.read(record)
    return _medians(book.samples)


class _Book:
    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}
        self._made_s: dict[str, float] = {}  # when the call ended that made the node's instance
        self._undrains_s: dict[str, float] = {}  # since when the node's drain is being lifted
        self._phases: dict[str, Phase] = {}
        self._wakes: dict[str, tuple[str, float]] = {}  # by node that is woken: what, since when
        self._lanes: dict[str, frozenset[str]] = {}  # by instance that moves: between which hosts
        self._moved_s: dict[frozenset[str], float] = {}  # when the last move between them ended

    def read(self, record: Record) -> None:
        body = record.body
        if record.kind == "outcome" and not body["problem"]:
            self._outcome(record)
        elif record.kind == "intent":
            self._intent(record.subject, record.at_s, body)
        elif record.kind == "change" and body.get("t") in _TELLING:
            self._change(record)

    def _intent(self, name: str, at_s: float, body: Mapping[str, object]) -> None:
        match body.get("t"):
            case "MigrateInstance":
                self._lanes[name] = frozenset({str(body["host"]), str(body["target"])})
            case "WakeInstance":
                booting = self._phases.get(name) is Phase.BOOTING
                self._wakes.setdefault(name, ("wake_s" if booting else "wake_again_s", at_s))
            case "UndrainNode" | "ResumeJob" if name in self._wakes:
                self._note(*self._wakes.pop(name), at_s)
            case "DeleteInstance":
                self._wakes.pop(name, None)
            case _:
                pass

    def _change(self, record: Record) -> None:
        match decode(record.body):
            case ch.NodeManaged(node):
                self._phases[node.name] = node.phase
            case ch.OperationStarted(key) if key.startswith("UndrainNode:"):
                self._undrains_s[key.split(":")[1]] = record.at_s
            case ch.NodeSeen(node) if node.responding:
                if node.slurmd_start_s > 0.0:
                    self._note("boot_s", self._made_s.pop(node.name, None), record.at_s)
                if not node.drained:
                    self._note("undrain_s", self._undrains_s.pop(node.name, None), record.at_s)
            case _:
                pass

    def _outcome(self, record: Record) -> None:
        kind, name, *_ = f"{record.body['key']}:".split(":")
        elapsed_s = float(str(record.body["elapsed_s"]))
        field = _FIELDS.get(kind)
        if field == "undrain_s":
            self._note(field, self._undrains_s.pop(name, None), record.at_s)
        elif field == "migrate_s":
            self._note(field, self._turn_began_s(name, record.at_s, elapsed_s), record.at_s)
        elif field is not None:
            self.samples.setdefault(field, []).append(elapsed_s)
        if kind == "CreateInstance":
            self._made_s[name] = record.at_s

    def _turn_began_s(self, name: str, ended_s: float, elapsed_s: float) -> float:
        """Return when a move really began: between the same two hosts they take turns."""
        lane = self._lanes.get(name, frozenset())
        free_s = self._moved_s.get(lane, 0.0)
        self._moved_s[lane] = ended_s
        return max(ended_s - elapsed_s, free_s)

    def _note(self, field: str, since_s: float | None, at_s: float) -> None:
        """One more sample, if it is known since when."""
        if since_s is not None:
            self.samples.setdefault(field, []).append(max(0.0, at_s - since_s))


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    found = {name: round(median(times), 4) for name, times in samples.items()}
    for call in _PER_MB:
        if f"{call}_s" in found:
            found[f"{call}_s_per_mb"] = 0.0
    return {field.name: found[field.name] for field in fields(StepCosts) if field.name in found}


def as_yaml(costs: dict[str, float]) -> str:
    """Return a file for `--costs`."""
    lines = ["# Learned from a daemon's journal (`backfill replay --journal FILE --learn OUT`)."]
    for name, value in costs.items():
        lines.append(f"{name}: {value:.6g}" if name.endswith("_per_mb") else f"{name}: {value:.6g}s")
    return "\n".join(lines) + "\n"
