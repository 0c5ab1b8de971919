"""The phases of a managed node, and the one table of which may follow which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backfill.core.readiness import GuestReport


class Phase(StrEnum):
    """Where one of our nodes is in its life. Ours, unlike the states that others report."""

    BOOTING = "booting"  # being made, or made and not yet proven
    READY = "ready"  # proven; Slurm may give it jobs
    DRAINING = "draining"  # no new jobs; goes when the last one ends
    EVICTING = "evicting"  # its host is wanted: stop it, then tell Slurm
    THROTTLED = "throttled"  # its host is wanted, and it goes on with next to no CPU
    DISPLACED = "displaced"  # stopped; its jobs are suspended in Slurm and wait
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
    Phase.EVICTING: frozenset(
        {Phase.THROTTLED, Phase.DISPLACED, Phase.MOVING, Phase.RETURNING, Phase.REMOVING}
    ),
    Phase.THROTTLED: frozenset({Phase.EVICTING, Phase.RETURNING, Phase.REMOVING}),
    Phase.DISPLACED: frozenset({Phase.MOVING, Phase.RETURNING, Phase.REMOVING}),
    Phase.MOVING: frozenset({Phase.DISPLACED, Phase.RETURNING, Phase.EVICTING, Phase.REMOVING}),
    Phase.RETURNING: frozenset({Phase.READY, Phase.EVICTING, Phase.DISPLACED, Phase.REMOVING}),
    Phase.REMOVING: frozenset({Phase.FAILED, Phase.GIVEN_UP}),
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
class HeldJob:
    """A job frozen together with its instance: the fence compares Slurm's word with this."""

    id: str
    restarts: int


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
    rung: int = 0  # index into the ladder while evicting, displaced or moving
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
    checkpoint: str = ""  # id of the checkpoint that was ordered and is not kept yet
    checkpoint_s: float = 0.0  # when it was ordered
    checkpoint_of: tuple[str, ...] = ()  # all nodes of that order
    restoring: bool = False  # that checkpoint is to be put back, not made
    put_back: bool = False  # that has been done here
    failures: int = 0
    not_before_s: float = 0.0
    evictions: int = 0
    doomed: bool = False  # once stopped it is not brought back: it is removed
    fail: bool = False  # removal counts as a failure
    fleet: str = ""  # id of the order of which it is a member
    image: str = ""  # master image; empty: that of the policy file
    devices: tuple[str, ...] = ()  # what it offers of that of which its host has few


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
