"""Checkpoints of simulated instances: states that are remembered and can be put back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.drivers.simulated.hypervisor.hardware import KeptRun, SimHost, SimInstance, SimMachine
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.losses import Losses
from backfill.ports.errors import BusyError, DamagedError, NoCapacityError, NotFoundError, UnreachableError

_AT_REST = (InstanceState.SUSPENDED, InstanceState.OFF, InstanceState.CRASHED)


class SimulatedKeeper:
    """See `CheckpointKeeper`. Who has lost his work gets it back; who has it goes on with that."""

    def __init__(self, find: Callable[[str], SimHost], machines: Machines, lock: threading.RLock) -> None:
        self._find = find
        self._lock = lock
        self._at_work = machines
        self._kept: dict[tuple[str, str], Checkpoint] = {}
        self._instances: dict[tuple[str, str], SimInstance] = {}
        self._runs: dict[tuple[str, str], tuple[KeptRun, ...]] = {}  # that were inside
        self._new: dict[str, dict[str, SimMachine]] = {}  # by id and node, as they were put back
        self.damaged: set[str] = set()  # ids whose files no longer match their checksums
        self.cut_off: set[str] = set()  # names whose next return ends in the middle: they are off then
        self.losses: Losses | None = None

    def keep(self, host: str, wanted: Checkpoint, quota_mb: float | None) -> Checkpoint:
        """Remember a suspended instance."""
        with self._lock:
            key = (wanted.id, wanted.name)
            if key in self._kept:
                return self._kept[key]
            instance = self._find(host).instances.get(wanted.name)
            if instance is None:
                raise NotFoundError(wanted.name, f"host {host} has no such instance of ours")
            if instance.state is not InstanceState.SUSPENDED:
                raise BusyError(wanted.name, f"it is {instance.state}, not suspended")
            size_mb = float(instance.spec.flavour.memory_mb)
            used_mb = sum(c.size_mb for c in self._kept.values())
            if quota_mb is not None and used_mb + size_mb > quota_mb:
                raise NoCapacityError(wanted.name, f"its checkpoint of {size_mb:.0f} MB does not fit")
            kept = replace(wanted, size_mb=size_mb, checksum="simulated", where=f"{host}:{wanted.id}")
            self._kept[key], self._instances[key] = kept, instance
            self._runs[key] = tuple(
                KeptRun(r.job, r.restart, tuple(m.node for m in r.machines), r.needed_s, r.done_s, r.stopped)
                for r in instance.machine.runs
                if not r.broken
            )
            return kept

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All of them, the oldest first."""
        with self._lock:
            names: dict[str, set[str]] = {}
            for kept in self._kept.values():
                names.setdefault(kept.id, set()).add(kept.name)
            found = (
                replace(kept, whole="simulated" if names[kept.id] >= set(kept.members) else "")
                for kept in self._kept.values()
            )
            return tuple(sorted(found, key=lambda c: (c.created_s, c.id, c.name)))

    def verify(self, identity: str) -> None:
        """Complete, and not in `damaged`."""
        with self._lock:
            found = [c for c in self._kept.values() if c.id == identity]
            if not found:
                raise NotFoundError(identity, "there is no such checkpoint")
            missing = {m for c in found for m in c.members} - {c.name for c in found}
            if missing:
                raise DamagedError(identity, f"it is not complete: {sorted(missing)} is missing")
            if identity in self.damaged:
                raise DamagedError(identity, "it is damaged: its checksum has changed")

    def rehearse(self, host: str, identity: str) -> None:
        """As `verify`, on a host that can be reached."""
        self._find(host)
        self.verify(identity)

    def put_back(self, host: str, name: str, identity: str) -> None:
        """Let the instance be suspended on `host` again."""
        with self._lock:
            self.verify(identity)
            kept = self._instances.get((identity, name))
            if kept is None:
                raise NotFoundError(identity, f"it has no part of {name}")
            found = self._find(host)
            there = found.instances.get(name)
            if there is not None and there.state not in _AT_REST:
                raise BusyError(name, f"it is {there.state} on {host}")
            if there is not None and there is not kept and self.losses is not None:
                self.losses.instance_goes(there)
            if not kept.machine.booted:  # it was lost with its host
                kept = self._instances[identity, name] = _anew(kept)
            kept.state, kept.host = InstanceState.SUSPENDED, host
            kept.machine.host, kept.machine.powered = host, found.powered
            found.instances[name] = kept
            if name in self.cut_off:
                self.cut_off.discard(name)
                kept.state = InstanceState.OFF
                raise UnreachableError(name, "nobody waits for it any more")
            self._new.setdefault(identity, {})[kept.machine.node] = kept.machine
            self._bring_back(identity, name)

    def _bring_back(self, identity: str, name: str) -> None:
        """Bring back copies that are gone when all of their machines are there again."""
        machines = self._new[identity]
        for run in self._runs[identity, name]:
            whole = machines.keys() >= set(run.nodes)
            rest = self._at_work.find(run.job, run.restart)
            if whole and rest is not None and rest.broken:
                self._at_work.kill(rest)  # what was saved takes the place of all memory
                rest = None
            if whole and rest is None:
                self._at_work.reinstate(run, [machines[node] for node in run.nodes])

    def drop(self, identity: str) -> None:
        """Forget it."""
        with self._lock:
            for key in [k for k in self._kept if k[0] == identity]:
                if self.losses is not None:
                    runs = ((run.job, run.restart) for run in self._runs[key])
                    self.losses.checkpoint_goes(runs, identity)
                del self._kept[key], self._instances[key], self._runs[key]
            self._new.pop(identity, None)

    def tend(self) -> None:
        """Nothing is ever unfinished here."""


def _anew(lost: SimInstance) -> SimInstance:
    """Make an instance like one that was lost, whose machine stands still."""
    old = lost.machine
    machine = SimMachine(old.node, old.host, metal=False, cpus=old.cpus, booted=True, booted_s=old.booted_s)
    machine.stopped_at_s, machine.findable = old.stopped_at_s, old.findable
    return SimInstance(lost.spec, lost.host, InstanceState.SUSPENDED, machine, lost.created_s)
