"""A job's own machines: how far they are, from the job's submission until nothing of them is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from backfill.core.model.cluster import MachineRequest
from backfill.core.model.fleet import Flavour


class MachinesState(StrEnum):
    """How far a job's own machines are."""

    QUEUED = "queued"  # the job is held, and waits for its turn or for room
    SPAWNING = "spawning"  # they are being made
    SPAWNED = "spawned"  # they take this job and no other, which is let go
    ALLOCATED = "allocated"  # the job is on them
    RECLAIMED = "reclaimed"  # the job needs them no more: they go
    GIVEN_BACK = "given-back"  # nothing of them is left; the job stays held, and its owner knows why
    GONE = "gone"  # nothing of them is left; the record is dropped


# From each state, the states that may follow. Absent pairs are programmer's errors.
_NEXT: dict[MachinesState, frozenset[MachinesState]] = {
    MachinesState.QUEUED: frozenset(
        {MachinesState.SPAWNING, MachinesState.RECLAIMED, MachinesState.GIVEN_BACK, MachinesState.GONE}
    ),
    MachinesState.SPAWNING: frozenset({MachinesState.SPAWNED, MachinesState.RECLAIMED}),
    MachinesState.SPAWNED: frozenset({MachinesState.ALLOCATED, MachinesState.RECLAIMED}),
    MachinesState.ALLOCATED: frozenset({MachinesState.RECLAIMED}),
    MachinesState.RECLAIMED: frozenset({MachinesState.QUEUED, MachinesState.GIVEN_BACK, MachinesState.GONE}),
    MachinesState.GIVEN_BACK: frozenset({MachinesState.GONE}),
    MachinesState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class JobMachines:
    """What one run of a job has as its own machines. Times in epoch seconds.

    `fleet`: the order that makes them; empty while there is none. `after`: what follows when they
    are reclaimed. `failures`: orders in a row that came to nothing through no fault of others.
    `inside`: the job has its nodes already, and these are on their hosts (core/reconcile/inside.py).
    """

    job: str
    restarts: int
    state: MachinesState
    since_s: float
    queued_s: float
    user: str
    size: int
    flavour: Flavour
    request: MachineRequest | None  # None: it could not be read
    image: str = ""  # empty: that of the policy file
    fleet: str = ""
    orders: int = 0  # so many were made for this run
    failures: int = 0
    after: MachinesState = MachinesState.GONE
    spawning_s: float | None = None  # when the first of the present ones was begun
    spawned_s: float | None = None  # when all of them took the job
    released_s: float | None = None  # when the job was let go
    began_s: float | None = None  # when Slurm began it there
    reason: str = ""
    inside: bool = False

    @property
    def what(self) -> str:
        """Return what it is to have, in words."""
        shape = str(self.flavour.resources)
        return f"a machine of {shape}" if self.size == 1 else f"{self.size} machines of {shape}"

    def use(self, now_s: float) -> tuple[float, float]:
        """Return their instance hours and core hours since the first one was begun: what a cloud charges."""
        hours = self.size * max(0.0, now_s - self.spawning_s) / 3600 if self.spawning_s is not None else 0.0
        return hours, hours * self.flavour.cpus

    @property
    def waits(self) -> bool:
        """Return True while others may be made before these."""
        return self.state is MachinesState.QUEUED

    def become(self, state: MachinesState, now_s: float, reason: str, **fields: object) -> JobMachines:
        """Return the record in its next state. AssertionError: no such state may follow."""
        if state is not self.state and state not in _NEXT[self.state]:
            raise AssertionError(f"the machines of job {self.job} may not go from {self.state} to {state}")
        since_s = self.since_s if state is self.state else float(now_s)
        made: JobMachines = replace(self, state=state, since_s=since_s, reason=reason, **fields)  # type: ignore[arg-type]
        return made
