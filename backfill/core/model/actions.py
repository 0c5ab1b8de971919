"""Everything that a driver may be asked to do: frozen values with a common head.

Each class says what tells two actions of its kind about one subject apart (`extra`), whose provider
is asked (`asks`) and where it may bring an instance to a CPU (`lands_on`). It belongs to one of the
groups at the end; who matches on a group and forgets a class fails the type check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from backfill.core.model.devices import Sharing, Wanted
from backfill.core.model.fleet import Checkpoint, Flavour, InstanceSpec
from backfill.core.model.lifecycle import Cause, HeldJob
from backfill.core.model.operations import OperationStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every action has: the node (or host) that it is about, which life of it, and why."""

    subject: str
    generation: int
    reason: str

    # Giving a host back is right even when our picture of Slurm is old.
    safe_when_blind: ClassVar[bool] = False

    @property
    def extra(self) -> str:
        """Return what tells it from others of its kind about this subject; empty: there is one at a time."""
        return ""

    @property
    def asks(self) -> str:
        """The host whose provider is asked; empty: Slurm alone is."""
        return ""

    @property
    def lands_on(self) -> str:
        """The host onto whose CPUs it may bring an instance; empty: none."""
        return ""

    @property
    def safe_unwritten(self) -> bool:
        """Return True if it may be done although it cannot be written down first.

        The hypervisor shows it to whoever comes after us, and it can be undone.
        """
        return False

    @property
    def key(self) -> str:
        """Identity of an operation: kind, subject, generation, and what else tells it apart."""
        more = self.extra and f":{self.extra}"
        return f"{type(self).__name__}:{self.subject}:{self.generation}{more}"

    def effect(self, now_s: float) -> OperationStarted:
        """Return what it changes in the world at the moment it is decided."""
        return OperationStarted(self.key, now_s, self.lands_on)


# --- nodes in Slurm ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNode(Head):
    """Make the node known to Slurm, drained until it has proven itself."""

    address: str  # bare IP
    cpus: int
    memory_mb: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode(Head):
    """Remove the node from Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode(Head):
    """Let the node take no new jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainNode(Head):
    """Release the node to jobs. Its slurmd, on `host`, reports at once, unless just `heard`."""

    host: str = ""
    heard: bool = False

    @property
    def asks(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAddress(Head):
    """Tell Slurm where the node's slurmd is, or, by NOWHERE, that nothing shall reach it."""

    address: str  # bare IP

    @property
    def extra(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class DownNode(Head):
    """Mark the node DOWN, so that Slurm requeues what it believes to run there."""


# --- jobs in Slurm -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead(Head):
    """An action about one job on the node."""

    job_id: str

    @property
    def extra(self) -> str:
        return self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendJob(JobHead):
    """Stop the job's clock in Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob(JobHead):
    """Let the job's clock in Slurm go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitJob(JobHead):
    """Let the job run for `limit_s` in all: it stands still, and Slurm's clock goes on."""

    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob(JobHead):
    """Put the job back into the queue, eligible at once, if it is still as it was seen.

    `restarts`: how often it was requeued before (None: not known). `host`: nothing of the node may
    be there any more; empty: that cannot be asked. `aside`: its copy stands still meanwhile.
    """

    restarts: int | None = None
    host: str = ""
    aside: bool = False

    @property
    def asks(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob(JobHead):
    """End a job that may not be requeued and whose copy is lost, if it is still as it was seen."""

    restarts: int | None = None
    host: str = ""

    @property
    def asks(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldJob(JobHead):
    """Let a job wait so that its owner cannot undo it, and tell him by `text` for what."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinJob(JobHead):
    """Let a job that waits have these nodes alone, and no other job there.

    `lives`: the generation of each of them. `inside`: the job has other nodes already, and its owner's
    jobs that name these are let in.
    """

    nodes: tuple[str, ...]
    lives: tuple[int, ...]
    inside: bool = False

    @property
    def extra(self) -> str:
        return ",".join(f"{name}.{life}" for name, life in zip(self.nodes, self.lives, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinJob(JobHead):
    """Take away what keeps a job's nodes from others, and the job from other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob(JobHead):
    """Let a job that we hold begin, and tell its owner by `text` that it may."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMachines(JobHead):
    """Tell a job that runs, by a word in `text`, which machines are within its allocation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndInside(JobHead):
    """End a job in the machines of another, `of`, whose run with so many `restarts` is over.

    That is asked again directly before. `missing`: Slurm has not shown that job for long, so it need not
    show its end.
    """

    of: str
    restarts: int
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeJob(JobHead):
    """End a job that waits for what can never be; the reason is what its owner is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KickJob(JobHead):
    """Suspend and resume the job in Slurm, which makes stopped processes go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnJob(JobHead):
    """Tell the job that its room goes at `ends_s`, by the machine's clock.

    By a `signal` of Slurm's, or in the guest on `host`: by a `command` of `user`'s, or else by the
    Machine/Job Features of the job with this `number`.
    """

    host: str
    number: int
    user: str
    signal: str
    command: tuple[str, ...]
    ends_s: float

    @property
    def asks(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class TellJob(JobHead):
    """Leave a sentence for the job's owner in Slurm.

    `over`: only in the place of this one; `aloud`: at the owner's terminal, too.
    """

    text: str
    over: str = ""
    aloud: bool = False


# --- instances ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHead(Head):
    """An action about an instance on one host."""

    host: str

    @property
    def asks(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance(Head):
    """Make and start the instance."""

    spec: InstanceSpec

    @property
    def asks(self) -> str:
        return self.spec.host

    @property
    def lands_on(self) -> str:
        return self.spec.host


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteInstance(HostHead):
    """End the instance and remove what it kept; `last_words`: save its console's end first.

    `cause`: why the work in it, `held`, may be destroyed, which is asked again directly before.
    None: there is none, which is asked as well. `taken`: the node whose jobs alone push it aside.
    """

    last_words: bool = False
    off: bool = False  # its host is off for good, so that there is nothing to end there
    cause: Cause | None = None
    held: tuple[HeldJob, ...] = ()
    taken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendInstance(HostHead):
    """Write its memory to disk and free it. `expected_s`: by what was learned; 0: not known.

    `freeze`: as for a pause.
    """

    expected_s: float = 0.0
    freeze: bool = False

    safe_when_blind: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreInstance(HostHead):
    """Bring it back from disk, still stopped."""

    @property
    def lands_on(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateInstance(HostHead):
    """Move it to another host in the state it is in."""

    target: str

    @property
    def extra(self) -> str:
        return self.target

    @property
    def lands_on(self) -> str:
        return self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMove(HostHead):
    """Stop a move of it that takes too long: it goes on where it is."""

    safe_when_blind: ClassVar[bool] = True


# --- CPUs of instances, and their guests -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseInstance(HostHead):
    """Stop its CPUs at once. `freeze`: nobody waits, so its guest freezes its jobs first."""

    freeze: bool = False

    safe_when_blind: ClassVar[bool] = True

    @property
    def safe_unwritten(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleInstance(HostHead):
    """Leave its CPUs `percent` of the time; None: all of it again."""

    percent: int | None

    safe_when_blind: ClassVar[bool] = True

    @property
    def extra(self) -> str:
        return "off" if self.percent is None else str(self.percent)

    @property
    def lands_on(self) -> str:
        return self.host if self.percent is None else ""

    @property
    def safe_unwritten(self) -> bool:
        return self.percent is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThawInstance(HostHead):
    """Let its CPUs go on, if Slurm still holds every job of `held` here with the same count.

    But for those of `ended`, jobs by their numbers: its guest ends them before anything of them runs.
    """

    held: tuple[HeldJob, ...]
    ended: tuple[int, ...] = ()

    @property
    def lands_on(self) -> str:
        return self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeInstance(HostHead):
    """Set the guest's clock and let it prove itself; `register`: slurmd reports again, too.

    `stood`: it stood still before, which Slurm must not take for a reboot. `ended`: of these jobs, by
    their numbers, nothing may run on; all others that were frozen with it go on. Where there are some
    nothing else is done: that they have ended has to be known whatever comes next. `copies`: their ids.
    """

    register: bool = True
    stood: bool = False
    ended: tuple[int, ...] = ()
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJobs(HostHead):
    """Look into the guest: do the processes of its jobs go on?"""


# --- devices -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDevices(HostHead):
    """Give the instance what its job asks for, and plug it into the guest."""

    wanted: Wanted
    sharing: Sharing

    @property
    def extra(self) -> str:
        return self.wanted.job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnDevices(HostHead):
    """Take all devices out of the guest and let others have them.

    `of`: whose own machine it is, which may have them wherever it is itself; empty: nobody's.
    """

    of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplugDevices(HostHead):
    """Tell the guest, and take its devices out, so that its memory can be written to disk."""

    safe_when_blind: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugDevices(HostHead):
    """Put into the guest what it holds, and tell it: its job goes on."""

    job_id: str

    @property
    def extra(self) -> str:
        return self.job_id


# --- checkpoints -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCheckpoint(HostHead):
    """Keep the saved memory and the disk of a suspended instance."""

    wanted: Checkpoint
    quota_mb: int | None

    @property
    def extra(self) -> str:
        return self.wanted.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBackCheckpoint(HostHead):
    """Replace the state of a suspended instance by that of a checkpoint."""

    id: str

    @property
    def extra(self) -> str:
        return self.id


# --- parents of instant clones -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeParent(Head):
    """Boot a parent for this image and shape on the host `subject`, try it out and freeze it."""

    image: str
    flavour: Flavour

    @property
    def extra(self) -> str:
        return self.image

    @property
    def asks(self) -> str:
        return self.subject

    @property
    def lands_on(self) -> str:
        return self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelParents(Head):
    """End whatever runs on the host `subject` to become a parent; those that are made stay."""

    safe_when_blind: ClassVar[bool] = True

    @property
    def asks(self) -> str:
        return self.subject


# --- pilots ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitPilot(Head):
    """Send the pilot of a slot, unless Slurm has it already; `subject` is its job's name."""

    slot: int
    limit_s: float
    user: str
    partition: str
    script: str
    directory: str
    cpus: int
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawPilot(Head):
    """Take a pilot out of the queue that has never begun; `subject` is its job's name."""

    job_id: str

    @property
    def extra(self) -> str:
        return self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPilot(HostHead):
    """Let a pilot's Machine/Job Features name when its room goes, by the machine's clock."""

    job_id: str
    number: int
    restarts: int
    ends_s: float

    @property
    def extra(self) -> str:
        return self.job_id


NodeAction = CreateNode | DeleteNode | DrainNode | UndrainNode | SetAddress | DownNode
JobAction = SuspendJob | ResumeJob | LimitJob | RequeueJob | CancelJob | KickJob | WarnJob | TellJob
OwnMachinesAction = HoldJob | PinJob | UnpinJob | ReleaseJob | NameMachines | EndInside | RevokeJob
SlurmAction = NodeAction | JobAction | OwnMachinesAction
InstanceAction = (
    CreateInstance | DeleteInstance | SuspendInstance | RestoreInstance | MigrateInstance | CancelMove
)
GuestAction = PauseInstance | ThrottleInstance | ThawInstance | WakeInstance | ProbeJobs
DeviceAction = HoldDevices | ReturnDevices | UnplugDevices | PlugDevices
CheckpointAction = KeepCheckpoint | PutBackCheckpoint
ParentAction = MakeParent | CancelParents
PilotAction = SubmitPilot | WithdrawPilot | TellPilot
DriverAction = (
    SlurmAction | InstanceAction | GuestAction | DeviceAction | CheckpointAction | ParentAction | PilotAction
)
