"""Every way in which the world can change, as plain values; `World.apply` takes nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.cluster import Job, Node
from backfill.core.model.fleet import Fleet, Host, Instance
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import Cause, ManagedNode
from backfill.core.model.operations import AlreadySuspended as AlreadySuspended
from backfill.core.model.operations import OperationDone as OperationDone
from backfill.core.model.operations import OperationStarted as OperationStarted
from backfill.core.model.pilots import PoolPicture
from backfill.core.model.readiness import GuestReport


@dataclass(frozen=True, slots=True)
class MemoryWritten:
    """A suspend wrote `written_mb` in `took_s`; `expected_s` was predicted, 0: nothing was."""

    host: str
    name: str
    at_s: float
    written_mb: float
    took_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """The ordered checkpoint of a node is on disk."""

    name: str
    generation: int
    at_s: float
    id: str
    size_mb: float


@dataclass(frozen=True, slots=True)
class CheckpointPutBack:
    """A node's instance has the state of the ordered checkpoint."""

    name: str
    generation: int
    at_s: float
    id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: it is now `now_s` (epoch seconds)."""

    now_s: float


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The machine's clock was set. Our time goes on: it is now `ahead_s` ahead of that clock."""

    at_s: float
    ahead_s: float


@dataclass(frozen=True, slots=True)
class ClockRead:
    """Our time, and how long the machine was up then, in seconds of this `boot` of it.

    `began`: a daemon started here. All that was written before it is in a time to which `moved_s`
    has to be added to have it in ours. There had been none for at most `away_s`.
    """

    at_s: float
    boot: str
    uptime_s: float
    began: bool = False
    moved_s: float = 0.0
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """An outside system was read completely; the reading began at `seen_s`.

    With `from_s` it stands for several readings without news, the first of them then.
    """

    source: str  # "slurm" or a host's name
    seen_s: float
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourcesSeen:
    """Hosts were read completely, none of them before `seen_s`: told together, and late.

    `sources`: which ones; with `all_but` all that are known but these.
    """

    sources: tuple[str, ...]
    seen_s: float
    all_but: bool = False


@dataclass(frozen=True, slots=True)
class Barred:
    """We may not act but to give hosts back, because of `by`; with an empty text we may again."""

    by: str  # "journal", "lease"
    at_s: float
    problem: str


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """An outside system could not be read."""

    source: str
    at_s: float
    problem: str
    odd: bool = False  # it was read, and what it showed is not believed


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
class PrioritiesSeen:
    """Jobs of which nothing is new but the priority; `priorities` in the order of `ids`."""

    ids: tuple[str, ...]
    priorities: tuple[int, ...]
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
    """The hypervisor confirmed at `seen_s` that a known instance's CPUs stand still.

    `ran_s`: when its jobs were last known to run, if anybody knows.
    """

    host: str
    name: str
    seen_s: float
    ran_s: float | None = None


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
    """The job that claimed hosts has ended or never came; or has left these of them, where some are named."""

    job_id: str
    at_s: float
    hosts: tuple[str, ...] = ()


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
class Destroyed:
    """The end of the work on a node was decided at `at_s`. Counted against the limits."""

    name: str
    generation: int
    at_s: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Asked directly before, Slurm or the hypervisor did not bear out why work was to end."""

    name: str
    generation: int
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Woken:
    """A guest's clock was set and its slurmd told to register; it was `correction_s` off."""

    name: str
    generation: int
    at_s: float
    correction_s: float


@dataclass(frozen=True, slots=True)
class CopiesEnded:
    """A guest ended what stood still in it of these jobs, before an instruction of that ran."""

    name: str
    generation: int
    at_s: float
    jobs: tuple[str, ...]


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
class WorkLost:
    """A run of a job on a node of ours came to nothing, for `cause`: so much work was in vain.

    `workload`: the policy file's name for such jobs, or empty. `number`: what Slurm tells the job that its id
    is, another than Slurm shows of an array's task; 0: it is not known. For people only.
    """

    job_id: str
    restarts: int
    name: str
    at_s: float
    workload: str
    cause: str
    core_s: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class PoolRead:
    """The pool outside was asked; `picture` is all that is known of it now."""

    picture: PoolPicture


@dataclass(frozen=True, slots=True)
class PilotTold:
    """A pilot's Machine/Job Features name `ends_s` as the time at which its room goes."""

    job_id: str
    restarts: int
    at_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class PayloadEnded:
    """A run of a payload in the pilot with this job has ended, by the pool's account. For people only.

    `run`: the pool's name for it; `where`: on which node. `done`: the pool has its result, so that what
    it had worked was not in vain.
    """

    run: str
    job_id: str
    where: str
    at_s: float
    worked_s: float
    done: bool


@dataclass(frozen=True, slots=True)
class FleetSet:
    """An order for a fleet is new or different; one that is GONE is dropped."""

    fleet: Fleet


@dataclass(frozen=True, slots=True)
class MachinesSet:
    """A job's own machines are new or further; those that are GONE are dropped."""

    machines: JobMachines


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
    | ClockSet
    | ClockRead
    | SourceSeen
    | SourcesSeen
    | Barred
    | SourceFailed
    | NodeSeen
    | NodeGone
    | NodesRead
    | JobSeen
    | JobGone
    | PrioritiesSeen
    | HostSeen
    | InstanceSeen
    | InstanceStopped
    | InstanceGone
    | Claimed
    | ClaimAnswered
    | ClaimEnded
    | NodeManaged
    | NodeForgotten
    | Destroyed
    | Unconfirmed
    | OperationStarted
    | OperationDone
    | Woken
    | CopiesEnded
    | Proven
    | Probed
    | LastWords
    | WorkLost
    | Kicked
    | AlreadySuspended
    | MemoryWritten
    | CheckpointKept
    | CheckpointPutBack
    | HoldSet
    | FleetSet
    | MachinesSet
    | PoolRead
    | PilotTold
    | PayloadEnded
)
