"""The status of a lab at one moment, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One machine: `pid` of its init on this machine, and per service its pid there (0: down)."""

    pid: int
    services: dict[str, int]


@dataclass(frozen=True, slots=True)
class LabStatus:
    """`phase` is down, starting, up, stopping or failed; `detail` says why where there is a why."""

    name: str
    phase: str
    detail: str
    directory: str
    supervisor_pid: int
    cgroups: str
    domain_type: str
    machines: dict[str, MachineStatus]

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps."""
        return asdict(self)
