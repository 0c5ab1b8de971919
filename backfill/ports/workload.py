"""Contracts with the workload manager: Slurm itself, and the munge credentials of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from backfill.core.model.cluster import Job, Node, SlurmSettings


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """All of Slurm at one moment. `seen_s`: epoch seconds when reading began."""

    seen_s: float
    nodes: dict[str, Node]
    jobs: dict[str, Job]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A Slurm node to be made: `address` is a bare IP, never a name."""

    name: str
    address: str
    cpus: int
    memory_mb: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PilotSpec:
    """A pilot to be sent: `name` is its job's name, unlike that of any other that lives.

    `directory`: where it works, empty for the user's home; `options`: more of them, for sbatch.
    """

    name: str
    comment: str
    user: str
    partition: str
    script: str
    directory: str
    cpus: int
    limit_s: float
    options: tuple[str, ...] = ()


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
        """Tell that the node stood still and goes on now: its next registration is no sign of a reboot.

        BusyError where that cannot be said now, as under another's drain; unknown node: nothing.
        """

    def set_down(self, name: str, reason: str) -> None:
        """Mark the node DOWN; Slurm then requeues or ends its jobs."""

    def suspend_job(self, job_id: str) -> bool:
        """Stop the job's clock; works while its node does not answer.

        Return False if somebody else's call, or an earlier one, had suspended it.
        """

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

    def hold_job(self, job_id: str) -> None:
        """Let a pending job wait for `release_job`; its owner cannot undo that.

        Of a heterogeneous job all components. BusyError: it has begun. NotFoundError: it has ended.
        """

    def pin_job(self, job_id: str, nodes: Sequence[str]) -> None:
        """Let a pending job start on these nodes alone, and no other job there, whatever it asks for.

        Ends with `unpin_job`, or for each node when that is deleted; the job's end changes nothing.
        Other nodes than before take their place. NotFoundError: no such job or node.
        """

    def pin_inside(self, job_id: str, nodes: Sequence[str]) -> None:
        """Let jobs of the same owner start on these nodes if they name the job's pin, and nobody else.

        The job itself stays where it is. As for `pin_job`; BusyError: it does not run.
        """

    def unpin_job(self, job_id: str) -> None:
        """Open the nodes to others again, and the job, while it waits, to other nodes.

        The nodes are to be drained or gone first. BusyError: the job runs there.
        """

    def release_job(self, job_id: str) -> None:
        """Let a job that is held start. NotFoundError: it has ended."""

    def revoke_job(self, job_id: str, why: str) -> None:
        """End a job that waits and can never run; its owner is told `why`. BusyError: it has begun."""

    def signal_job(self, job_id: str, signal: str) -> None:
        """Send the signal of this name, such as TERM, to all processes of a job, its script's too.

        NotFoundError: it has ended. BusyError: it does not run.
        """

    def tell(self, job_id: str, text: str, over: str = "", *, aloud: bool = False) -> None:
        """Tell the job's owner in AdminComment. RefusedError: something of others is there.

        That stays, and a text with the word for machines of its own has only the word put behind it.

        `over`: only while this sentence stands there; an empty text takes it away. `aloud`: first
        at the terminal of the job's salloc or srun, while it waits or runs. The word for machines
        of its own stays there behind the text, unless that brings one itself.
        """


@runtime_checkable
class Looker(Protocol):
    """A workload manager that keeps what the name of a node meant when it was looked up."""

    def refresh_addresses(self, names: Sequence[str]) -> dict[str, str]:
        """Let it look up anew each NodeAddr that is a name and means something else by now.

        What was found and done, one sentence for each node where all is not well.
        """


@runtime_checkable
class Partitioner(Protocol):
    """A workload manager that works out by itself which nodes its partitions have."""

    def rebuild_partitions(self) -> None:
        """Let it do so anew now; no partition, node or job of anybody's is changed by that."""


class Credentials(Protocol):
    """The controller's side of munge. Calls block for milliseconds and raise DriverError only."""

    def make(self) -> str:
        """Return a credential that every node with our key and a right clock understands."""

    def check(self, credential: str) -> str | None:
        """Return why the controller does not accept this credential; None if it does."""
