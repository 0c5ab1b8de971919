"""What is decided: steps of our own, refusals, and the plan that carries all with reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from backfill.core.actions import (
    CancelJob,
    CreateInstance,
    DriverAction,
    HoldDevices,
    KeepCheckpoint,
    KickJob,
    LimitJob,
    MakeParent,
    MigrateInstance,
    PlugDevices,
    PutBackCheckpoint,
    RequeueJob,
    RestoreInstance,
    ResumeJob,
    SetAddress,
    SuspendJob,
    TellJob,
    ThawInstance,
    ThrottleInstance,
)
from backfill.core.fleets import Fleet
from backfill.core.lifecycle import ManagedNode
from backfill.core.refusals import Refusal as Refusal


@dataclass(frozen=True, slots=True)
class SetNode:
    """Record a managed node's next phase. Takes effect at once, inside the cycle."""

    node: ManagedNode
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """Nothing of the node is left outside; drop its record."""

    name: str
    reason: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class SetFleet:
    """Record how far an order for a fleet is. Takes effect at once, inside the cycle."""

    fleet: Fleet
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerClaim:
    """Tell the waiting hook that the room is free, or why it is not."""

    job_id: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class EndClaim:
    """The job behind the claim has ended or never came."""

    job_id: str
    reason: str


Action = DriverAction | SetNode | ForgetNode | SetFleet | AnswerClaim | EndClaim


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, what is awaited, and what was refused."""

    actions: tuple[Action, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    watch: frozenset[str] = frozenset()  # Slurm nodes whose next change is awaited eagerly
    wake_at_s: float | None = None  # when to plan again even if nothing happens


def key_of(action: DriverAction) -> str:
    """Identity of an operation: kind, node, generation, and the job or target where it has one."""
    kind = type(action)
    extra = _EXTRAS.get(kind)
    more = "" if extra is None else f":{extra(action)}"
    return f"{kind.__name__}:{action.name}:{action.generation}{more}"


# What tells two actions of one kind about one node apart.
_EXTRAS: dict[type, Callable[[Any], object]] = {
    **dict.fromkeys(
        (SuspendJob, ResumeJob, LimitJob, RequeueJob, CancelJob, TellJob, KickJob, HoldDevices, PlugDevices),
        attrgetter("job_id"),
    ),
    MigrateInstance: attrgetter("target"),
    SetAddress: attrgetter("address"),
    ThrottleInstance: lambda action: action.percent or "off",
    MakeParent: attrgetter("image"),
    PutBackCheckpoint: attrgetter("id"),
    KeepCheckpoint: attrgetter("wanted.id"),
}


def subject_of(action: Action) -> str:
    """The node (or job) that an action is about, for the journal and for people."""
    match action:
        case SetNode():
            return action.node.name
        case SetFleet():
            return action.fleet.id
        case AnswerClaim() | EndClaim():
            return action.job_id
        case _:
            return action.name


def lands_on(action: DriverAction) -> str:
    """The host onto whose CPUs the action may bring an instance, or an empty text."""
    match action:
        case CreateInstance():
            return action.spec.host
        case ThawInstance() | RestoreInstance():
            return action.host
        case ThrottleInstance():
            return action.host if action.percent is None else ""
        case MigrateInstance():
            return action.target
        case MakeParent():
            return action.name
        case _:
            return ""
