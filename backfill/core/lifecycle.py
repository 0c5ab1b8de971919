"""The phases of a managed node, and the one table of which may follow which."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from backfill.core.readiness import GuestReport


class Phase(StrEnum):
    """Where one of our nodes is in its life. Ours, unlike the states that others report."""

    BOOTING = "booting"  # being made, or made and not yet proven
    READY = "ready"  # proven; Slurm may give it jobs
    DRAINING = "draining"  # no new jobs; goes when the last one ends
    EVICTING = "evicting"  # its host is wanted: stop it, then tell Slurm
    THROTTLED = "throttled"  # its host is wanted, and it goes on with next to no CPU
    PARKED = "parked"  # stopped; its jobs are suspended in Slurm and wait
    MOVING = "moving"  # on its way to another host
    RETURNING = "returning"  # being brought back to work, step by step
    REMOVING = "removing"  # instance and node are being taken away
    FAILED = "failed"  # taken away after a failure; tried again after a back-off
    GIVEN_UP = "given-up"  # failed too often; a person has to look


# One table: from each phase, the phases that may follow. Absent pairs are programmer's errors.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.BOOTING: frozenset({Phase.READY, Phase.EVICTING, Phase.REMOVING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.EVICTING, Phase.REMOVING}),
    Phase.DRAINING: frozenset({Phase.READY, Phase.EVICTING, Phase.REMOVING}),
    Phase.EVICTING: frozenset({Phase.THROTTLED, Phase.PARKED, Phase.MOVING, Phase.RETURNING, Phase.REMOVING}),
    Phase.THROTTLED: frozenset({Phase.EVICTING, Phase.RETURNING, Phase.REMOVING}),
    Phase.PARKED: frozenset({Phase.MOVING, Phase.RETURNING, Phase.REMOVING}),
    Phase.MOVING: frozenset({Phase.PARKED, Phase.RETURNING, Phase.EVICTING, Phase.REMOVING}),
    Phase.RETURNING: frozenset({Phase.READY, Phase.EVICTING, Phase.PARKED, Phase.REMOVING}),
    Phase.REMOVING: frozenset({Phase.FAILED, Phase.GIVEN_UP, Phase.EVICTING}),
    Phase.FAILED: frozenset({Phase.BOOTING, Phase.GIVEN_UP}),
    Phase.GIVEN_UP: frozenset({Phase.BOOTING}),
}

# Phases in which the instance may be using its host's CPUs with our consent.
ON_CPU = frozenset({Phase.BOOTING, Phase.READY, Phase.DRAINING, Phase.RETURNING})
# Phases in which no instance exists, or none will in a moment.
ABSENT = frozenset({Phase.REMOVING, Phase.FAILED, Phase.GIVEN_UP})


class Rung(StrEnum):
    """One kind of eviction, cheapest first."""

    THROTTLE = "throttle"
    PAUSE = "pause"
    SUSPEND = "suspend"
    MIGRATE = "migrate"
    REQUEUE = "requeue"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class JobLimit:
    """The time limit of a job, or of one component of it, as it was before we raised it."""

    id: str
    limit_s: float = field(metadata={"span": True})


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job frozen together with its instance: the fence compares Slurm's word with this."""

    id: str
    restarts: int
    ours: bool = True  # we suspended it in Slurm, or will; False: somebody else had, before us
    refused: str = ""  # Slurm's words when it would not suspend it: its time limit runs meanwhile
    stopped_s: float = 0.0  # since when that has been so, epoch seconds
    limits: tuple[JobLimit, ...] = ()  # its own, and those of its other components
    # False: of which run of the job the copy is was lost with the journal; it waits as it is.
    sure: bool = True


class Cause(StrEnum):
    """Why the work on a node may be destroyed. There is no other reason (core/condemn.py)."""

    STALE = "stale"  # Slurm shows another run of a job than the one that stands still here
    ENDED = "ended"  # Slurm shows that every job that stands still here has ended
    MISSING = "missing"  # Slurm shows none of these jobs, and never showed that they ended
    FORGOTTEN = "forgotten"  # Slurm does not know the node
    LOST = "lost"  # its hypervisor shows that nothing of it runs or is kept
    VANISHED = "vanished"  # its hypervisor does not show it at all, and no other does
    REBOOTED = "rebooted"  # somebody booted its guest anew while its memory was on disk
    SILENT = "silent"  # neither Slurm nor its hypervisor gets an answer from the guest
    HALF = "half"  # a checkpoint was put back here, and could not be put back elsewhere
    OLD = "old"  # an earlier generation of a node that was removed
    LADDER = "ladder"  # the policy's ladder names requeue
    RECLAIMED = "reclaimed"  # its room's owner wants it back, for scale.reclaim_within_s
    HOST_OFF = "host-off"  # a person says that its host is off for good


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What was found against the work on a node, since when, and how often it was read again."""

    cause: Cause
    since_s: float
    read_s: float = 0.0  # when the latest of these readings began
    times: int = 0


@dataclass(frozen=True, slots=True)
class ManagedNode:
    """A Slurm node that we own together with its instance. Times in epoch seconds."""

    name: str
    address: str  # CIDR
    host: str
    generation: int
    phase: Phase
    since_s: float  # when the phase began
    created_s: float
    reason: str = ""
    held: tuple[HeldJob, ...] = ()
    rung: int = 0  # index into the ladder while evicting, parked or moving
    rung_kind: Rung | None = None  # what that rung was; the ladder may change meanwhile
    rung_since_s: float = 0.0
    target: str = ""  # host it moves to
    proven_s: float = 0.0  # when it last proved itself; 0 before the first time
    proof_s: float = 0.0  # when the first report of this phase came
    report: GuestReport | None = None  # the last one
    woken_s: float = 0.0  # when clock and slurmd were last set right after a stop
    idle_since_s: float = 0.0  # since when no job was on it; 0 while one is
    drained_s: float = 0.0  # when it was first seen stopped and drained, while evicting
    suspended_s: float = 0.0  # when its jobs were last suspended in Slurm
    probed_s: float = 0.0  # when its jobs' processes were last looked at
    stuck_s: float = 0.0  # since when they were all found stopped; 0: they go on
    kicked: tuple[str, ...] = ()  # jobs that we suspend for that reason, only to resume them
    checkpoint: str = ""  # id of the checkpoint that was ordered and is not kept yet
    checkpoint_s: float = 0.0  # when it was ordered
    checkpoint_of: tuple[str, ...] = ()  # all nodes of that order
    restoring: bool = False  # that checkpoint is to be put back, not made
    put_back: bool = False  # that has been done here
    failures: int = 0
    not_before_s: float = 0.0  # of the next try of a boot, or of a return
    returns: int = 0  # so many in a row came to nothing
    evictions: int = 0
    doomed: bool = False  # once stopped it is not brought back: it is removed
    fail: bool = False  # removal counts as a failure
    suspicion: Suspicion | None = None
    condemned: Cause | None = None  # why its work is destroyed
    condemned_s: float = 0.0  # since when
    unconfirmed: str = ""  # why that was not done: what Slurm or its hypervisor said at last
    fleet: str = ""  # id of the order of which it is a member
    image: str = ""  # master image; empty: that of the policy file
    devices: tuple[str, ...] = ()  # what it offers of that of which its host has few


def inherit(node: ManagedNode, known: ManagedNode | None) -> ManagedNode:
    """The record with the report that the one before has: a report is never taken back."""
    if known is None or known.generation != node.generation or node.report is not None:
        return node
    return replace(node, report=known.report)


class InvalidTransitionError(AssertionError):
    """A phase followed another that the table does not allow: a programmer's error."""

    def __init__(self, node: ManagedNode, to: Phase) -> None:
        super().__init__(
            f"{node.name} (generation {node.generation}) may not go from {node.phase} to {to}; "
            f"it was {node.phase} because: {node.reason or 'no reason was kept'}"
        )


def check_transition(node: ManagedNode, to: Phase) -> None:
    """Raise InvalidTransitionError unless the table allows `node` to become `to`."""
    if to is not node.phase and to not in TRANSITIONS[node.phase]:
        raise InvalidTransitionError(node, to)
