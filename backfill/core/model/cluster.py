"""What Slurm shows: nodes, jobs, partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address

from backfill.core.model.company import Company
from backfill.core.model.refusals import Reason


class NodeBase(StrEnum):
    """Base state of a node; everything else Slurm shows is a flag (slurm.h, NODE_STATE_*)."""

    UNKNOWN = "UNKNOWN"
    DOWN = "DOWN"
    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    ERROR = "ERROR"
    MIXED = "MIXED"
    FUTURE = "FUTURE"


class JobState(StrEnum):
    """Base state of a job; CONFIGURING, COMPLETING and REQUEUED are flags (slurm.h, JOB_*)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


ACTIVE = frozenset({JobState.RUNNING, JobState.SUSPENDED})


ENDED = frozenset(JobState) - ACTIVE - {JobState.PENDING}


# Drain reasons that we set start so; a drain with any other reason belongs to somebody else.
OUR_REASON = "backfill:"

# How those begin that slurmstepd sets, as root: it names nobody who could be told from an admin
# (slurmstepd/mgr.c, step_terminate_monitor.c, 22.05 to 26.05).
_OF_SLURMSTEPD = (
    "Kill task failed",
    "Job step not running",
    "Job not running",
    "SlurmdSpoolDir is full",
    "switch_g_job_postfini failed",
)


# Where slurmctld finds nobody: what it sends there fails at once instead of waiting for an answer.
NOWHERE = "255.255.255.255"


@dataclass(frozen=True, slots=True)
class Node:
    """A Slurm node as last seen. Memory in MB, times in epoch seconds."""

    name: str
    base: NodeBase
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_by: str = ""  # the user who set it; empty: slurmctld itself, or it is not known
    address: str = ""
    cpus: int = 0
    cpus_allocated: int = 0
    memory_mb: int = 0
    memory_allocated_mb: int = 0  # always 0 where Slurm does not count memory (SelectTypeParameters)
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    boot_time_s: float = 0.0
    slurmd_start_s: float = 0.0
    planned_s: float = 0.0  # when Slurm means to use it next (a job, a reservation); 0: not known
    maintenance_s: float = 0.0  # when its next maintenance begins, or began; 0: none is known

    @property
    def drained(self) -> bool:
        return "DRAIN" in self.flags

    @property
    def standing(self) -> tuple[NodeBase, int, frozenset[str]]:
        """What says how free it is. For when it is planned is no part of it: that moves all the time."""
        return self.base, self.cpus_allocated, self.flags - {"PLANNED"}

    @property
    def drained_by_us(self) -> bool:
        """A drain without a reason on a dynamic node is ours too.

        scontrol refuses to drain without a reason, but slurmctld forgets ours when a node that
        was created drained registers for the first time (measured on 22.05).
        """
        forgotten = self.reason == "" and any(f.startswith("DYNAMIC") for f in self.flags)
        return self.drained and (self.reason.startswith(OUR_REASON) or forgotten)

    @property
    def drained_by_others(self) -> bool:
        return self.drained and not self.drained_by_us

    @property
    def drained_by_people(self) -> bool:
        """True if somebody drained it by hand or by a script; False where Slurm itself did, for a fault."""
        return self.drained_by_others and bool(self.reason_by) and not self.reason.startswith(_OF_SLURMSTEPD)

    @property
    def hidden(self) -> bool:
        """True while nothing that slurmctld sends can reach its slurmd, by our own doing."""
        return self.address == NOWHERE

    @property
    def named(self) -> bool:
        """True when its NodeAddr is a name, which slurmctld looks up once and then keeps."""
        try:
            ip_address(self.address)
        except ValueError:
            return self.address != ""
        return False

    @property
    def responding(self) -> bool:
        """True when slurmctld can talk to its slurmd now."""
        return self.base in (NodeBase.IDLE, NodeBase.ALLOCATED, NodeBase.MIXED) and not (
            self.flags & {"NOT_RESPONDING", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"}
        )

    @property
    def silent(self) -> bool:
        """True while it is in service and does not answer slurmctld."""
        if "NOT_RESPONDING" not in self.flags:
            return False
        in_service = self.base in (NodeBase.IDLE, NodeBase.ALLOCATED, NodeBase.MIXED)
        return in_service and not self.flags & {"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"}

    @property
    def state_text(self) -> str:
        """The state as Slurm writes it, base first: `IDLE+DRAIN`."""
        return "+".join([self.base.value, *sorted(self.flags)])


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A job's own machines. None: as the job says, or as the policy file says for all.

    `per_node`: how many machines stand for one node of the job; the other values are of each.
    `sriov`: virtual functions, `regions`: memory shared with its fellows on the host, MB each.
    """

    per_node: int = 1
    cpus: int | None = None
    memory_mb: int | None = None
    disk_gb: float | None = None
    image: str | None = None
    network: str | None = None
    sriov: int = 0
    regions: tuple[int, ...] = ()
    company: Company = Company.ANY
    # job_submit.lua holds it until the daemon does: that it is held by its user (JobHeldUser) is
    # then no wish of his. A job that he holds himself is left alone until he releases it.
    held: bool = False
    # Names of the machines within its allocation that take its owner's jobs, and of which run of it (its
    # restart count). Only we write that.
    at: tuple[str, ...] = ()
    run: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A Slurm job (one array task, one het component) as last seen. Memory in MB per node."""

    id: str  # as Slurm shows it: 12, 12_3, 12+1
    raw_id: int  # the number that scontrol takes; unsplit array tasks share their array's
    partition: str
    state: JobState
    flags: frozenset[str] = frozenset()
    qos: str = ""
    user: str = ""
    account: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    num_nodes: int = 1
    cpus: int = 1
    memory_mb: int = 0
    priority: int = 0
    submit_s: float = 0.0
    eligible_s: float = 0.0
    start_s: float = 0.0
    time_limit_s: float | None = None
    restarts: int = 0
    requeue: bool = True
    reason: str = ""
    required_nodes: tuple[str, ...] = ()
    features: str = ""
    deadline_s: float = 0.0  # it must have ended by then (sbatch --deadline); 0: none
    exclusive: bool = False  # it shares its nodes with no other job, whoever's, however little it needs
    interactive: bool = False  # no batch script: salloc or srun waits at somebody's terminal
    comment: str = ""
    machines: MachineRequest | None = None  # of its own; None: it asks for none
    memory_by_cpu: bool = False  # it got more where it has more CPUs; False: as much everywhere, or unknown
    machines_fault: Reason | None = None  # why what it asks for as such cannot be read
    # Where and when Slurm expects a pending job to start. It changes all the time and is no news.
    planned_s: float = field(default=0.0, compare=False)
    planned_nodes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def active(self) -> bool:
        """True while it holds its nodes with work on them."""
        return self.state in ACTIVE and "COMPLETING" not in self.flags

    @property
    def holds_nodes(self) -> bool:
        """True while Slurm gives its nodes to nobody else: active or still completing."""
        return bool(self.nodes) and (self.state in ACTIVE or "COMPLETING" in self.flags)


@dataclass(frozen=True, slots=True)
class SlurmVersion:
    """A release such as 22.05.8."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02d}.{self.patch}"

    @property
    def major(self) -> tuple[int, int]:
        return (self.year, self.month)


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """What of slurm.conf decides whether we may work at all. Times in seconds.

    `raw` and, by the partition's name, `partitions_raw`: all values as Slurm shows them.
    """

    version: SlurmVersion
    cluster: str
    slurmd_timeout_s: int
    max_node_count: int
    select_type: str
    partitions: tuple[str, ...] = ()
    prolog_slurmctld: str = ""
    prolog: str = ""
    raw: dict[str, str] = field(default_factory=dict)
    partitions_raw: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Return every SlurmctldHost as slurm.conf has it, the first one first: `name` or `name(address)`."""
        found = {int(at[1]): value for key, value in self.raw.items() if (at := _CONTROLLER.fullmatch(key))}
        return tuple(found[number] for number in sorted(found))

    @property
    def private(self) -> frozenset[str]:
        """Return what PrivateData keeps from users, such as `jobs`; `cloud` is another matter there."""
        words = frozenset(self.raw.get("PrivateData", "").lower().split(","))
        return _ALL_PRIVATE if "all" in words else words & _ALL_PRIVATE

    @property
    def hook_limit(self) -> tuple[str, int] | None:
        """Return the key and the seconds after which Slurm kills a prolog; None: never.

        From 26.05 on PrologTimeout counts first, and scontrol shows PrologEpilogTimeout only where
        prologs and epilogs have the same limit.
        """
        for key in HOOK_LIMITS:
            if found := re.match(r"\d+", self.raw.get(key, "")):
                return (key, int(found[0])) if int(found[0]) else None
        return None


_CONTROLLER = re.compile(r"SlurmctldHost\[(\d+)\]")
# The one that counts is first.
HOOK_LIMITS = ("PrologTimeout", "PrologEpilogTimeout")

_ALL_PRIVATE = frozenset(
    {"accounts", "events", "jobs", "nodes", "partitions", "reservations", "usage", "users"}
)


def end_s(job: Job) -> float | None:
    """Return when a job that runs ends at the latest by its time limit; None: unknown."""
    if job.time_limit_s is None or job.start_s <= 0.0:
        return None
    return job.start_s + job.time_limit_s


def left_s(jobs: Iterable[Job], stopped_s: float) -> float:
    """Return the longest that one of these jobs, stopped at `stopped_s`, may still run by its limit."""
    ends = [end - stopped_s for job in jobs if (end := end_s(job)) is not None]
    return max(0.0, *ends) if ends else 0.0
