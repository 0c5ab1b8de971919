"""What is decided: steps of our own, refusals, and the plan that carries all with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from backfill.core.model.actions import DriverAction
from backfill.core.model.changes import (
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
from backfill.core.model.refusals import Refusal as Refusal

if TYPE_CHECKING:
    from backfill.core.model.operations import HostAllocation


@dataclass(frozen=True, slots=True)
class SetNode:
    """Record a managed node's next phase. Takes effect at once, inside the cycle."""

    node: ManagedNode
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.node.name

    def effect(self, now_s: float) -> NodeManaged:
        """Return what it changes in the world at the moment it is decided."""
        return NodeManaged(self.node)


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

    def effect(self, now_s: float) -> NodeForgotten:
        """Return what it changes in the world at the moment it is decided."""
        return NodeForgotten(self.name, self.generation)


@dataclass(frozen=True, slots=True)
class SetFleet:
    """Record how far an order for a fleet is. Takes effect at once, inside the cycle."""

    fleet: Fleet
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.fleet.id

    def effect(self, now_s: float) -> FleetSet:
        """Return what it changes in the world at the moment it is decided."""
        return FleetSet(self.fleet)


@dataclass(frozen=True, slots=True)
class SetMachines:
    """Record how far a job's own machines are. Takes effect at once, inside the cycle."""

    machines: JobMachines
    reason: str

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.machines.job

    def effect(self, now_s: float) -> MachinesSet:
        """Return what it changes in the world at the moment it is decided."""
        return MachinesSet(self.machines)


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

    def effect(self, now_s: float) -> ClaimAnswered:
        """Return what it changes in the world at the moment it is decided."""
        return ClaimAnswered(self.job_id, now_s)


@dataclass(frozen=True, slots=True)
class EndClaim:
    """The job behind the claim has ended or never came; or has left these hosts, where some are named."""

    job_id: str
    reason: str
    hosts: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Whom it is about."""
        return self.job_id

    def effect(self, now_s: float) -> ClaimEnded:
        """Return what it changes in the world at the moment it is decided."""
        return ClaimEnded(self.job_id, now_s, self.hosts)


Action = DriverAction | SetNode | ForgetNode | SetFleet | SetMachines | AnswerClaim | EndClaim
# What was known, before a step, of the node whose record it sets or drops, or of the claim that it answers.
Before: TypeAlias = "ManagedNode | HostAllocation | None"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, what is awaited, and what was refused."""

    actions: tuple[Action, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    watch: frozenset[str] = frozenset()  # Slurm nodes whose next change is awaited eagerly
    wake_at_s: float | None = None  # when to plan again even if nothing happens
    before: tuple[Before, ...] = field(default=(), compare=False, repr=False)  # for each action

    def records_before(self) -> dict[str, ManagedNode | None]:
        """Return the records of the nodes that it changes, as they were before it; None: there was none."""
        found: dict[str, ManagedNode | None] = {}
        for step, known in zip(self.actions, self.before, strict=True):
            if isinstance(step, SetNode | ForgetNode):
                found.setdefault(step.subject, known if isinstance(known, ManagedNode) else None)
        return found
