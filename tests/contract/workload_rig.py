"""What the WorkloadManager contract needs of a cluster, and the words that its tests share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from backfill.core.model.cluster import OUR_REASON, Job, JobState, Node, NodeBase
from backfill.ports.workload import NodeSpec, PilotSpec, WorkloadManager

REASON = f"{OUR_REASON} the test wants it"
STRANGE = "a=b c|d\n NodeName=x State=DOWN é€ \"q' $(id)"
TASKS, CUT, TEXT = "tasks", "cut", "text"
EVERYTHING = frozenset({TASKS, CUT, TEXT})


class Rig(Protocol):
    """A cluster with two bare-metal nodes, idle, and what a test must be able to do around it.

    `abilities` says which parts of the contract it can show: TASKS (job arrays), CUT (a controller
    that does not answer), TEXT (job names with any character in them).
    """

    @property
    def manager(self) -> WorkloadManager: ...

    @property
    def hosts(self) -> tuple[str, str]:
        """Two bare-metal nodes with at least 2 CPUs each."""

    @property
    def abilities(self) -> frozenset[str]: ...

    @property
    def fresh_base(self) -> NodeBase:
        """The base state of a node that was created and whose slurmd has not registered."""

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until `holds`; fails the test when that takes too long."""

    def submit(
        self,
        node: str,
        *,
        name: str = "job",
        requeue: bool = True,
        hold: bool = False,
        tasks: int = 0,
        cpus: int = 1,
        within: str = "",
    ) -> str:
        """Submit a batch job for this node that runs until it is ended; returns its id.

        With `tasks`, an array with the tasks 1..tasks. `within`: it names what `pin_inside` has kept
        for the owner of this job, who is the same.
        """

    def pilot(self, slot: int) -> PilotSpec:
        """A pilot for this slot that may begin on any node and works until it is ended."""

    def finish(self, job_id: str) -> None:
        """Let a running job come to its own end."""

    def ask_for_machines(self, job_id: str, word: str) -> None:
        """Write this as its owner into the comment of the job."""

    def comment_as_site(self, job_id: str, text: str) -> None:
        """Write this into the job's AdminComment."""

    def release_as_owner(self, job_id: str) -> None:
        """Let the owner of a held job try to release it."""

    def register(self, spec: NodeSpec) -> None:
        """Start the slurmd of a node that was created with this `spec`."""

    def silent(self, node: str) -> AbstractContextManager[None]:
        """Inside, the node does not answer Slurm; its jobs still exist."""

    def drained_by_admin(self, node: str, reason: str) -> AbstractContextManager[None]:
        """Inside, somebody else has drained the node for this reason."""

    def cut(self) -> AbstractContextManager[WorkloadManager]:
        """Inside, the controller does not answer; use the manager that it gives, which asks it."""


def spec(name: str = "vn1") -> NodeSpec:
    """A node as the engine would ask for it."""
    number = int(name.removeprefix("vn"))
    return NodeSpec(name, f"10.77.1.{number}", cpus=2, memory_mb=500, features=("backfill",))


def job(rig: Rig, job_id: str) -> Job:
    """The job, which must be known."""
    return rig.manager.read_jobs([job_id])[job_id]


def node(rig: Rig, name: str) -> Node:
    """The node, which must be known."""
    return rig.manager.read_nodes([name])[name]


def await_state(rig: Rig, job_id: str, state: JobState) -> Job:
    """Let time pass until the job is in this state and neither starts nor ends just now."""
    return _await(rig, job_id, lambda seen: seen.state is state and not seen.flags)


def first_seen(rig: Rig, job_id: str, state: JobState) -> Job:
    """Let time pass until the job is in this state, whatever else it does just now."""
    return _await(rig, job_id, lambda seen: seen.state is state)


def _await(rig: Rig, job_id: str, there: Callable[[Job], bool]) -> Job:
    """Return the very reading that showed it: by the next one it may be otherwise again."""
    found: list[Job] = []

    def look() -> bool:
        found.append(job(rig, job_id))
        return there(found[-1])

    rig.until(look)
    return found[-1]


def running(rig: Rig, where: str, *, requeue: bool = True) -> str:
    """A job that runs on this node."""
    job_id = rig.submit(where, requeue=requeue)
    await_state(rig, job_id, JobState.RUNNING)
    return job_id
