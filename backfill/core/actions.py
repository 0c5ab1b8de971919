"""Everything that a driver may be asked to do, as frozen values, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.checkpoint_actions import KeepCheckpoint as KeepCheckpoint
from backfill.core.checkpoint_actions import PutBackCheckpoint as PutBackCheckpoint
from backfill.core.device_actions import HoldDevices as HoldDevices
from backfill.core.device_actions import PlugDevices as PlugDevices
from backfill.core.device_actions import ReturnDevices as ReturnDevices
from backfill.core.device_actions import UnplugDevices as UnplugDevices
from backfill.core.fleet import InstanceSpec
from backfill.core.lifecycle import Cause, HeldJob
from backfill.core.parent_actions import CancelParents as CancelParents
from backfill.core.parent_actions import MakeParent as MakeParent


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Make the node known to Slurm, drained until it has proven itself."""

    name: str
    generation: int
    address: str  # bare IP
    cpus: int
    memory_mb: int
    features: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Remove the node from Slurm."""

    name: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Let the node take no new jobs."""

    name: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class UndrainNode:
    """Release the node to jobs. Its slurmd, on `host`, reports at once, unless just `heard`."""

    name: str
    generation: int
    reason: str
    host: str = ""
    heard: bool = False


@dataclass(frozen=True, slots=True)
class SetAddress:
    """Tell Slurm where the node's slurmd is, or, by NOWHERE, that nothing shall reach it."""

    name: str
    generation: int
    address: str  # bare IP
    reason: str


@dataclass(frozen=True, slots=True)
class DownNode:
    """Mark the node DOWN, so that Slurm requeues what it believes to run there."""

    name: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Stop the job's clock in Slurm."""

    name: str  # the node
    generation: int
    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Let the job's clock in Slurm go on."""

    name: str
    generation: int
    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LimitJob:
    """Let the job run for `limit_s` in all: it stands still, and Slurm's clock goes on."""

    name: str
    generation: int
    job_id: str
    limit_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """Put the job back into the queue, eligible at once, if it is still as it was seen.

    `restarts`: how often it was requeued before (None: not known). `host`: nothing of the node may
    be there any more; empty: that cannot be asked. `aside`: its copy stands still meanwhile.
    """

    name: str
    generation: int
    job_id: str
    reason: str
    restarts: int | None = None
    host: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True)
class CancelJob:
    """End a job that may not be requeued and whose copy is lost, if it is still as it was seen."""

    name: str
    generation: int
    job_id: str
    reason: str
    restarts: int | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Make and start the instance."""

    name: str
    generation: int
    spec: InstanceSpec
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteInstance:
    """End the instance and remove what it kept; `last_words`: save its console's end first.

    `cause`: why the work in it, `held`, may be destroyed, which is asked again directly before.
    None: there is none, which is asked as well.
    """

    name: str
    generation: int
    host: str
    reason: str
    last_words: bool = False
    off: bool = False  # its host is off for good, so that there is nothing to end there
    cause: Cause | None = None
    held: tuple[HeldJob, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseInstance:
    """Stop its CPUs at once."""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThrottleInstance:
    """Leave its CPUs `percent` of the time; None: all of it again."""

    name: str
    generation: int
    host: str
    percent: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SuspendInstance:
    """Write its memory to disk and free it. `expected_s`: by what was learned; 0: not known."""

    name: str
    generation: int
    host: str
    reason: str
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RestoreInstance:
    """Bring it back from disk, still stopped."""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class MigrateInstance:
    """Move it to another host in the state it is in."""

    name: str
    generation: int
    host: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class CancelMove:
    """Stop a move of it that takes too long: it goes on where it is."""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThawInstance:
    """Let its CPUs go on, if Slurm still holds every job of `held` here with the same count."""

    name: str
    generation: int
    host: str
    held: tuple[HeldJob, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WakeInstance:
    """Set the guest's clock and let it prove itself; `register`: slurmd reports again, too.

    `stood`: it stood still before, which Slurm must not take for a reboot.
    """

    name: str
    generation: int
    host: str
    reason: str
    register: bool = True
    stood: bool = False


@dataclass(frozen=True, slots=True)
class ProbeJobs:
    """Look into the guest: do the processes of its jobs go on?"""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class KickJob:
    """Suspend and resume the job in Slurm, which makes stopped processes go on."""

    name: str
    generation: int
    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TellJob:
    """Leave a sentence for the job's owner in Slurm.

    `over`: only in the place of this one; `aloud`: at the owner's terminal, too.
    """

    name: str
    generation: int
    job_id: str
    text: str
    reason: str
    over: str = ""
    aloud: bool = False


DriverAction = (
    CreateNode
    | DeleteNode
    | DrainNode
    | UndrainNode
    | SetAddress
    | DownNode
    | SuspendJob
    | ResumeJob
    | LimitJob
    | RequeueJob
    | CancelJob
    | CreateInstance
    | DeleteInstance
    | PauseInstance
    | ThrottleInstance
    | SuspendInstance
    | KeepCheckpoint
    | PutBackCheckpoint
    | RestoreInstance
    | MigrateInstance
    | CancelMove
    | ThawInstance
    | WakeInstance
    | ProbeJobs
    | KickJob
    | TellJob
    | MakeParent
    | CancelParents
    | HoldDevices
    | ReturnDevices
    | UnplugDevices
    | PlugDevices
)

# Giving a host back is right even when our picture of Slurm is old.
# What may be done although it cannot be written down first: the hypervisor shows it to whoever
# comes after us, and it can be undone.
SAFE_UNWRITTEN = (PauseInstance, ThrottleInstance)
SAFE_WHEN_BLIND = (CancelMove, PauseInstance, SuspendInstance, ThrottleInstance, CancelParents, UnplugDevices)


def unwritten_too(action: DriverAction) -> bool:
    """Whether it may be done although nothing can be written down now."""
    lifted = isinstance(action, ThrottleInstance) and action.percent is None
    return isinstance(action, SAFE_UNWRITTEN) and not lifted
