"""What is decided: steps of our own, refusals, and the plan that carries all with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.actions import DriverAction, Head
from backfill.core.model.changes import (
    Change,
    ClaimAnswered,
    ClaimEnded,
    FleetSet,
    MachinesSet,
    NodeForgotten,
    NodeManaged,
)
from backfill.core.model.fleet import Fleet
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import ManagedNode
from backfill.core.model.operations import OperationStarted
from backfill.core.model.refusals import Refusal as Refusal


@dataclass(frozen=True, slots=True)
class SetNode:
    """Record a managed node's next phase. Takes effect at once, inside the cycle."""

    node: ManagedNode
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """Nothing of the node is left outside; drop its record."""

    name: str
    reason: str
    generation: int = 0

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.name


@dataclass(frozen=True, slots=True)
class SetFleet:
    """Record how far an order for a fleet is. Takes effect at once, inside the cycle."""

    fleet: Fleet
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.fleet.id


@dataclass(frozen=True, slots=True)
class SetMachines:
    """Record how far a job's own machines are. Takes effect at once, inside the cycle."""

    machines: JobMachines
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.machines.job


@dataclass(frozen=True, slots=True)
class AnswerClaim:
    """Tell the waiting hook that the room is free, or why it is not."""

    job_id: str
    ok: bool
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.job_id


@dataclass(frozen=True, slots=True)
class EndClaim:
    """The job behind the claim has ended or never came."""

    job_id: str
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.job_id


Action = DriverAction | SetNode | ForgetNode | SetFleet | SetMachines | AnswerClaim | EndClaim


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, what is awaited, and what was refused."""

    actions: tuple[Action, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    watch: frozenset[str] = frozenset()  # Slurm nodes whose next change is awaited eagerly
    wake_at_s: float | None = None  # when to plan again even if nothing happens


def effect_of(action: Action, now_s: float) -> Change:
    """Return what an action changes in the world at the moment it is decided."""
    if isinstance(action, Head):
        return OperationStarted(action.key, now_s, action.lands_on)
    match action:
        case SetNode():
            return NodeManaged(action.node)
        case SetFleet():
            return FleetSet(action.fleet)
        case SetMachines():
            return MachinesSet(action.machines)
        case ForgetNode():
            return NodeForgotten(action.name, action.generation)
        case AnswerClaim():
            return ClaimAnswered(action.job_id, now_s)
        case EndClaim():
            return ClaimEnded(action.job_id, now_s)
