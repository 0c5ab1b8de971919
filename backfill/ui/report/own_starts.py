"""Machines of jobs, from the request to the job in them, by the steps of Slurm-V and Multiverse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.job_machines import JobMachines, MachinesState
from backfill.core.model.plan import SetMachines, SetNode

_LENDING = (act.HoldDevices.__name__, act.PlugDevices.__name__)


@dataclass(frozen=True, slots=True)
class OwnStart:
    """The machines of one run of a job; epoch seconds, 0 for what was not reached."""

    job: str
    restarts: int
    what: str
    inside: bool
    state: MachinesState
    reason: str
    queued_s: float
    spawning_s: float = 0.0  # their order began
    created_s: float = 0.0  # the last of them was made
    registered_s: float = 0.0  # Slurm had met the last of them
    spawned_s: float = 0.0  # the last of them was proven, and kept for the job
    lent_s: float = 0.0  # the last device was in its guest
    begun_s: float = 0.0  # the job ran in them, or knew of them

    @property
    def steps(self) -> tuple[tuple[str, float | None], ...]:
        """Seconds of each step; None for one that was not reached, or that there was not."""
        ready_s = self.lent_s or self.spawned_s
        return (
            ("submission", _between(self.queued_s, self.spawning_s)),
            ("transfer + creation", _between(self.spawning_s, self.created_s)),
            ("boot", _between(self.created_s, self.registered_s)),
            ("propagation", _between(self.registered_s, self.spawned_s)),
            ("hotplug", _between(self.spawned_s, self.lent_s)),
            ("start", _between(ready_s, self.begun_s)),
        )

    @property
    def total_s(self) -> float | None:
        """From the request to the job in them."""
        return _between(self.queued_s, self.begun_s)


def _between(since_s: float, until_s: float) -> float | None:
    return max(0.0, until_s - since_s) if since_s and until_s else None


class OwnStarts:
    """Feed it the journal's entries in order; read `found`."""

    def __init__(self) -> None:
        self.found: list[OwnStart] = []
        self._now: dict[str, int] = {}  # job -> index of its latest
        self._whose: dict[str, str] = {}  # node -> job
        self._met: set[tuple[str, int]] = set()  # nodes that Slurm has met, by generation
        self._lives: dict[str, int] = {}

    def add(self, at_s: float, value: object) -> None:
        """Take one decoded entry."""
        match value:
            case SetMachines(machines=own):
                self._turn(at_s, own)
            case SetNode(node=node) if node.job:
                self._whose[node.name] = node.job
                self._lives[node.name] = node.generation
            case ch.NodeSeen(node=node) if node.name in self._whose and node.slurmd_start_s > 0:
                life = node.name, self._lives[node.name]
                if node.responding and life not in self._met:
                    self._met.add(life)
                    self._note(node.name, registered_s=at_s)
            case _:
                pass

    def done(self, at_s: float, key: str, problem: str) -> None:
        """Note that a call has ended."""
        kind, name, *_ = key.split(":")
        if problem:
            return
        if kind == act.CreateInstance.__name__:
            self._note(name, created_s=at_s)
        elif kind in _LENDING:
            self._note(name, lent_s=at_s)

    def _turn(self, at_s: float, own: JobMachines) -> None:
        index = self._now.get(own.job)
        if index is None or self.found[index].restarts != own.restarts:
            index = self._now[own.job] = len(self.found)
            start = OwnStart(own.job, own.restarts, own.what, own.inside, own.state, own.reason, own.queued_s)
            self.found.append(start)
        known = self.found[index]
        if own.state is MachinesState.QUEUED and known.spawning_s:  # all of them are made anew
            known = replace(known, spawning_s=0.0, created_s=0.0, registered_s=0.0, spawned_s=0.0, lent_s=0.0)
        self.found[index] = replace(
            known,
            state=own.state,
            reason=own.reason,
            spawning_s=own.spawning_s or known.spawning_s,
            spawned_s=own.spawned_s or known.spawned_s,
            begun_s=known.begun_s or (at_s if own.state is MachinesState.ALLOCATED else 0.0),
        )

    def _note(self, node: str, **times: Any) -> None:
        index = self._now.get(self._whose.get(node, ""))
        if index is not None and not self.found[index].begun_s:
            self.found[index] = replace(self.found[index], **times)
