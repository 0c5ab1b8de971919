"""The messages in the daemon's inbox: pictures, results, waiting hooks, queries of people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue

from backfill.core.model.actions import DriverAction
from backfill.core.model.changes import Change
from backfill.engine.policyfile import Reading
from backfill.ports.pools import PoolObservation
from backfill.ports.provider import HostObservation
from backfill.ports.workload import ClusterObservation


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """Slurm was read completely."""

    seen: ClusterObservation


@dataclass(frozen=True, slots=True)
class NodesPicture:
    """Some nodes were read; `seen` is None when that failed."""

    names: tuple[str, ...]
    seen: ClusterObservation | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HostPicture:
    """A host was read."""

    seen: HostObservation


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A source could not be read."""

    source: str
    problem: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """An action ended: what was seen afterwards, and the problem if it failed."""

    action: DriverAction
    changes: tuple[Change, ...]
    problem: str = ""
    retry: bool = True
    elapsed_s: float = 0.0


def _to_nobody(line: str) -> None:
    """Nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook reports: `allocated` waits until `reply` is called with a line.

    `ended` and `arrived` (somebody has just submitted a job) do not wait.

    `peer` is the address of a hook on a host, empty for one on this machine. `reply` never blocks.
    """

    event: str
    job_id: str
    nodes: tuple[str, ...]
    peer: str = ""
    reply: Callable[[str], None] = field(default=_to_nobody, compare=False)


@dataclass(frozen=True, slots=True)
class HookGone:
    """The waiting hook went away (scancel, or its own timeout)."""

    call: HookCall


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Query:
    """Something to be run in the daemon's one thread; the answer goes to `reply`.

    `ask` returns the answer, or a generator that returns it and is gone on with whenever there is
    nothing else to do. `wanted`: whether somebody still waits for it.
    """

    ask: Callable[[], object]
    reply: SimpleQueue[object] = field(default_factory=SimpleQueue)
    wanted: Callable[[], bool] = _always


@dataclass(frozen=True, slots=True)
class Reread:
    """The policy file shall be read again, changed or not (SIGHUP)."""


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """The policy file was read again."""

    reading: Reading


@dataclass(frozen=True, slots=True)
class AddressNews:
    """Nodes whose NodeAddr is a name were looked at: a sentence for each that is not well."""

    found: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PoolNews:
    """The pool outside was asked; `seen` is None when it gave no answer."""

    seen: PoolObservation | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the daemon."""

    why: str


Message = (
    ClusterPicture
    | NodesPicture
    | HostPicture
    | ReadFailed
    | CallResult
    | HookCall
    | HookGone
    | Query
    | Reread
    | PolicyRead
    | AddressNews
    | PoolNews
    | Stop
)
