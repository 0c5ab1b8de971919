"""Every way in which the world can change, as plain values; `World.apply` takes nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.cluster import Job, Node
from backfill.core.disk_changes import CheckpointKept as CheckpointKept
from backfill.core.disk_changes import CheckpointPutBack as CheckpointPutBack
from backfill.core.disk_changes import MemoryWritten as MemoryWritten
from backfill.core.fleet import Host, Instance
from backfill.core.fleets import Fleet
from backfill.core.lifecycle import ManagedNode
from backfill.core.readiness import GuestReport


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: it is now `now_s` (epoch seconds)."""

    now_s: float


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """An outside system was read completely; the reading began at `seen_s`.

    With `from_s` it stands for several readings without news, the first of them then.
    """

    source: str  # "slurm" or a host's name
    seen_s: float
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """An outside system could not be read."""

    source: str
    at_s: float
    problem: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A Slurm node is new or different; the reading began at `seen_s`."""

    node: Node
    seen_s: float


@dataclass(frozen=True, slots=True)
class NodeGone:
    """Slurm no longer knows the node."""

    name: str
    seen_s: float


@dataclass(frozen=True, slots=True)
class NodesRead:
    """These nodes, and all jobs on them, were read; what differed came as changes of its own."""

    names: tuple[str, ...]
    seen_s: float


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job is new or different."""

    job: Job
    seen_s: float


@dataclass(frozen=True, slots=True)
class JobGone:
    """Slurm no longer knows the job."""

    id: str
    seen_s: float


@dataclass(frozen=True, slots=True)
class HostSeen:
    """A host is new or different."""

    host: Host
    seen_s: float


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """An instance is new or different. The key is (host, name): two hosts may both show one."""

    instance: Instance
    seen_s: float


@dataclass(frozen=True, slots=True)
class InstanceStopped:
    """The hypervisor confirmed at `seen_s` that a known instance's CPUs stand still."""

    host: str
    name: str
    seen_s: float


@dataclass(frozen=True, slots=True)
class InstanceGone:
    """The host no longer has the instance."""

    host: str
    name: str
    seen_s: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """Slurm gave these hosts' nodes to a job, and a hook may be waiting for the room.

    `nodes`: nodes of ours that it was given, where the hook waits for the job's devices.
    """

    job_id: str
    hosts: tuple[str, ...]
    at_s: float
    waiting: bool
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimAnswered:
    """The waiting hook was answered or went away; the claim itself stays while the job does."""

    job_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ClaimEnded:
    """The job that claimed hosts has ended or never came."""

    job_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeManaged:
    """A managed node was made, or its record replaced. The new phase must be a legal one."""

    node: ManagedNode


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A managed node is over: nothing of it is left outside. Its generation is never used again."""

    name: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class OperationStarted:
    """An action was handed to a driver."""

    key: str
    at_s: float
    host: str  # the host whose CPUs it may bring to use, or ""


@dataclass(frozen=True, slots=True)
class OperationDone:
    """A driver finished an action. `problem` is empty on success."""

    key: str
    at_s: float
    problem: str = ""
    retry: bool = True


@dataclass(frozen=True, slots=True)
class Woken:
    """A guest's clock was set and its slurmd told to register; it was `correction_s` off."""

    name: str
    generation: int
    at_s: float
    correction_s: float


@dataclass(frozen=True, slots=True)
class Proven:
    """A guest was asked to prove itself, and this is its report; whether it holds is judged."""

    name: str
    generation: int
    at_s: float
    report: GuestReport


@dataclass(frozen=True, slots=True)
class Probed:
    """A guest was looked into: `stuck` when every process of its jobs is stopped by a signal."""

    name: str
    generation: int
    at_s: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class Kicked:
    """A job on the node was suspended and resumed in Slurm, because its processes stood still."""

    name: str
    generation: int
    at_s: float


@dataclass(frozen=True, slots=True)
class LastWords:
    """The end of a failed guest's console, saved before it was removed. For people only."""

    name: str
    generation: int
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class FleetSet:
    """An order for a fleet is new or different; one that is GONE is dropped."""

    fleet: Fleet


@dataclass(frozen=True, slots=True)
class HoldSet:
    """A person pushed instances off a host or a node, or allowed them again (`backfill evict`).

    With `keep` (`backfill reclaim`) so many may stay on the host, and the others go for good.
    `off`: they say that nothing runs on the host any more and nothing will.
    """

    subject: str
    at_s: float
    on: bool
    reason: str
    keep: int | None = None
    off: bool = False


Change = (
    Tick
    | SourceSeen
    | SourceFailed
    | NodeSeen
    | NodeGone
    | NodesRead
    | JobSeen
    | JobGone
    | HostSeen
    | InstanceSeen
    | InstanceStopped
    | InstanceGone
    | Claimed
    | ClaimAnswered
    | ClaimEnded
    | NodeManaged
    | NodeForgotten
    | OperationStarted
    | OperationDone
    | Woken
    | Proven
    | Probed
    | LastWords
    | Kicked
    | MemoryWritten
    | CheckpointKept
    | CheckpointPutBack
    | HoldSet
    | FleetSet
)
