"""Every contract with the outside on one page, and the errors that drivers may raise."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backfill.core.cluster import Job, Node, SlurmSettings
from backfill.core.fleet import Host, Instance, InstanceSpec


class DriverError(Exception):
    """An outside system did not do what we asked. `str()` is one sentence for the operator.

    `subject` is what it is about (a node, a job, a host), `remedy` the next step for a person.
    """

    retry = True  # whether the same call may succeed later without anybody's help

    def __init__(self, subject: str, problem: str, remedy: str = "") -> None:
        self.subject, self.problem, self.remedy = subject, problem, remedy
        super().__init__(f"{subject}: {problem}" + (f"; {remedy}" if remedy else ""))


class NotFoundError(DriverError):
    """The subject does not exist (any more)."""

    retry = False


class AlreadyThereError(DriverError):
    """The subject exists and is not what we would have made."""

    retry = False


class BusyError(DriverError):
    """The subject is in a state, or in somebody's use, that forbids the call now."""


class UnreachableError(DriverError):
    """The outside system did not answer in time; whether it acted is unknown."""


class NoCapacityError(DriverError):
    """There is no room for what was asked."""


class RefusedError(DriverError):
    """The outside system understood and said no: permission, or not supported."""

    retry = False


class UnreadableError(DriverError):
    """A fact that we need could not be read: it is unknown, which is never the same as "no"."""


class BadOutputError(DriverError):
    """The outside system answered something that we cannot read; nothing was changed by us."""


def unreadable(subject: str, error: OSError, path: object = None) -> UnreadableError:
    """What is to be said of a file that the system did not let us use: its path and a next step."""
    where = path or error.filename or "a file"
    why = error.strerror or type(error).__name__
    return UnreadableError(subject, f"cannot use {where}: {why}", _remedy(error.errno))


def _remedy(number: int | None) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return f"let uid {os.geteuid()}, as which this runs, into it, or run this as root"
    if number in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT):
        return "see to the file system there, and mount it anew"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    return "see what lies there"


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """All of Slurm at one moment. `seen_s`: epoch seconds when reading began."""

    seen_s: float
    nodes: dict[str, Node]
    jobs: dict[str, Job]


@dataclass(frozen=True, slots=True)
class HostObservation:
    """One host and our instances on it. `seen_s`: epoch seconds when reading began."""

    seen_s: float
    host: Host
    instances: dict[str, Instance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A Slurm node to be made: `address` is a bare IP, never a name."""

    name: str
    address: str
    cpus: int
    memory_mb: int
    features: tuple[str, ...]


class WorkloadManager(Protocol):
    """Slurm. Calls block, are safe from several threads, and raise DriverError only.

    Every call is idempotent: asking for what already is returns without error.
    """

    def settings(self) -> SlurmSettings:
        """Read version and configuration."""

    def observe(self) -> ClusterObservation:
        """Read all nodes and all jobs that are pending, active or ended lately."""

    def observe_nodes(self, names: Sequence[str]) -> ClusterObservation:
        """Read these nodes and every job on them, fresh and fast; absent nodes are unknown."""

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Read these jobs fresh; ids that Slurm no longer knows are absent from the answer."""

    def read_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Read these nodes fresh; names that Slurm does not know are absent from the answer."""

    def create_node(self, spec: NodeSpec) -> None:
        """Make the node known, so that its slurmd may register. AlreadyThereError: not ours."""

    def delete_node(self, name: str) -> None:
        """Remove the node. BusyError while a job holds it."""

    def drain(self, name: str, reason: str) -> None:
        """Take no new jobs; `reason` starts with OUR_REASON. RefusedError: another's drain."""

    def undrain(self, name: str, *, heard: bool = False) -> bool:
        """Lift our drain (RefusedError: another's). True: as it was `heard`, jobs may come now."""

    def nudge(self, name: str) -> None:
        """Let the scheduler look at a node that was released a moment ago, when it answers."""

    def set_address(self, name: str, address: str) -> None:
        """Look for the node's slurmd at this bare IP; NOWHERE: what is sent to it fails at once."""

    def vouch(self, name: str) -> None:
        """The node stood still and goes on now: its next registration is no sign of a reboot.

        BusyError where that cannot be said now, as under another's drain; unknown node: nothing.
        """

    def set_down(self, name: str, reason: str) -> None:
        """Mark the node DOWN; Slurm then requeues or ends its jobs."""

    def suspend_job(self, job_id: str) -> None:
        """Stop the job's clock; works while its node does not answer."""

    def resume_job(self, job_id: str) -> None:
        """Let a suspended job go on."""

    def set_time_limit(self, job_id: str, limit_s: float) -> None:
        """Let the job run for so long in all, rounded up to a minute, whatever its partition says.

        Time for which Slurm showed it as suspended does not count. NotFoundError: it has ended.
        """

    def requeue_job(self, job_id: str) -> None:
        """Back to PENDING and eligible at once. RefusedError for a --no-requeue job."""

    def cancel_job(self, job_id: str) -> None:
        """End the job."""

    def tell(self, job_id: str, text: str, over: str = "", *, aloud: bool = False) -> None:
        """Tell the job's owner in AdminComment. RefusedError: something of others is there.

        `over`: only while this sentence stands there; an empty text takes it away. `aloud`: first
        at the terminal of the job's salloc or srun, while it waits or runs.
        """


class InstanceProvider(Protocol):
    """A hypervisor pool. Calls block, are safe from several threads, raise DriverError only.

    Every call is idempotent and touches only instances with our cluster's tag.
    """

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts it serves."""

    def observe(self, host: str) -> HostObservation:
        """Read one host. An unreachable host is an answer (reachable=False), not an error."""

    def read(self, host: str, name: str) -> Instance | None:
        """Read one instance fresh; None when the host does not have it."""

    def create(self, spec: InstanceSpec) -> None:
        """Make disk and seed and start it. Same name and tag already there: nothing to do."""

    def delete(self, host: str, name: str) -> None:
        """End it and remove its disk, seed and saved memory. Gone already: nothing to do."""

    def pause(self, host: str, name: str) -> None:
        """Stop its CPUs; returns when the hypervisor confirms that they stand still."""

    def thaw(self, host: str, name: str) -> None:
        """Let a paused instance's CPUs go on. Callers must have checked the fence."""

    def suspend(self, host: str, name: str) -> float:
        """Write memory to disk and free it; works from running and from paused.

        Returns how much was written, MB; 0 when it was suspended already.
        """

    def restore(self, host: str, name: str) -> None:
        """Bring a suspended instance back into memory, paused."""

    def migrate(self, host: str, name: str, target: str) -> None:
        """Move it, in the state it is in, to `target`. On error the source still has it.

        Where a guest cannot run while its memory is sent, one that ran is paused after an error.
        """

    def cancel_move(self, host: str, name: str) -> None:
        """Stop a move of it that is under way; it goes on here. Not moving: nothing to do.

        BusyError when it is too late: the guest is about to go on at the target.
        """

    def wake(self, host: str, name: str, now_s: float) -> float:
        """Set the guest's clock to `now_s`, make slurmd register; returns the correction in s."""

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """Count the processes of Slurm jobs in a running guest: (going, stopped by a signal)."""

    def console(self, host: str, name: str) -> str:
        """The last lines that the guest wrote to its console, for people."""

    def close(self) -> None:
        """Give back connections."""


@dataclass(frozen=True, slots=True)
class StateRun:
    """What a run of the states did on one node, or in a test run would do.

    `changed`: (state, what was or would be different). No answer is never a success. `looked`: a
    look showed that all is as the states say, so that they need not be run.
    """

    node: str
    answered: bool
    problem: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    looked: bool = False

    @property
    def ok(self) -> bool:
        """Whether all states hold now (of a test run: whether they could be tried)."""
        return self.answered and not self.problem


class Provisioner(Protocol):
    """What configures nodes. Calls block, are safe from several threads, raise DriverError only."""

    def enrol(self, node: str, generation: int, address: str) -> dict[str, bytes]:
        """Make this generation's key, and return the files that its first boot needs, by path.

        Keys of the node's other generations are void from then on.
        """

    def expel(self, node: str, generation: int) -> None:
        """Forget this generation's key: whoever has it is heard no more. Gone already: fine."""

    def enrolled(self) -> dict[str, int]:
        """Every node that may be configured, with its generation; 0 for bare metal."""

    def apply(self, nodes: Sequence[str], test: bool, must_run: Collection[str] = ()) -> dict[str, StateRun]:
        """See that the states hold. `test`: change nothing; `must_run`: where no look is enough."""

    def close(self) -> None:
        """Give back connections."""


class Credentials(Protocol):
    """The controller's side of munge. Calls block for milliseconds and raise DriverError only."""

    def make(self) -> str:
        """A credential that every node with our key and a right clock understands."""

    def check(self, credential: str) -> str:
        """Why the controller does not accept this credential; empty when it does."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal. `kind` names the event, `body` is plain JSON data."""

    at_s: float
    kind: str
    subject: str
    body: dict[str, object]
    id: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Records of a journal whose ids are between these two, both left out; of one subject or all.

    `before_id` 0: there is no upper end. `newest`: the latest come first.
    """

    after_id: int = 0
    before_id: int = 0
    subject: str = ""
    newest: bool = False


class Journal(Protocol):
    """Append-only memory of the daemon; what was appended survives a SIGKILL."""

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none."""

    def read(
        self, after_id: int = 0, subject: str | None = None, types: Collection[str] = ()
    ) -> Iterable[Record]:
        """Records in order of their ids; with `types` those whose body is of one of them (`t`)."""

    def page(self, window: Window, most: int, most_bytes: int) -> list[Record]:
        """Some of these records, the next ones in order of their ids, or the latest first.

        At most `most`, and no more after their bodies have together reached `most_bytes`; empty
        when there are none. No append waits for it.
        """

    def close(self) -> None:
        """Flush and give back the file."""


class Clock(Protocol):
    """Time that never jumps. Epoch seconds; the simulator has its own."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""

    def ahead(self) -> float:
        """By how much that is ahead of the machine's clock, which drivers and guests go by.

        It changes only when somebody sets that clock; below zero after a step forward.
        """

    def reading(self) -> tuple[str, float]:
        """What tells this boot of the machine from others, and how long it is up, s."""
