"""Contracts with what makes and configures instances: hypervisor pools, and provisioners."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backfill.core.model.fleet import Host, Instance, InstanceSpec


@dataclass(frozen=True, slots=True)
class HostObservation:
    """One host and our instances on it. `seen_s`: epoch seconds when reading began."""

    seen_s: float
    host: Host
    instances: dict[str, Instance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeedFile:
    """A file that a machine has from its first boot on; root's, and for root only unless `mode` says more."""

    content: bytes
    mode: int = 0o400


class InstanceProvider(Protocol):
    """A hypervisor pool. Calls block, are safe from several threads, raise DriverError only.

    Every call is idempotent and touches only instances with our cluster's tag. A host that is not
    among `hosts`, and a change of an instance that is not there, is a NotFoundError that names it.
    """

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts it serves."""

    def observe(self, host: str) -> HostObservation:
        """Read one host. An unreachable host is an answer (reachable=False), not an error."""

    def read(self, host: str, name: str) -> Instance | None:
        """Read one instance fresh; None when the host does not have it."""

    def create(self, spec: InstanceSpec) -> None:
        """Make disk and seed and start it. Same name and tag already there: nothing to do."""

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        """End it and remove its disk, seed and saved memory. Gone already: nothing to do.

        `generation`: the life that is meant; what is of another one stays, with all that it has.
        """

    def pause(self, host: str, name: str) -> None:
        """Stop its CPUs; returns when the hypervisor confirms that they stand still.

        BusyError, which says so, when it is suspended.
        """

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        """Let a paused instance's CPUs go on. Callers must have checked the fence.

        `shut`: nothing gets out of its guest until `GuestFence.release`, where the provider has that.
        BusyError, which says so, when it is suspended.
        """

    def suspend(self, host: str, name: str) -> float:
        """Write memory to disk and free it; works from running and from paused.

        Returns how much was written, MB; 0 when it was suspended already.
        """

    def restore(self, host: str, name: str) -> None:
        """Bring a suspended instance back into memory, paused."""

    def migrate(self, host: str, name: str, target: str) -> None:
        """Move it, in the state it is in, to `target`. On error the source still has it.

        Where a guest cannot run while its memory is sent, one that ran is paused after an error.
        """

    def cancel_move(self, host: str, name: str) -> None:
        """Stop a move of it that is under way; it goes on here. Not moving: nothing to do.

        BusyError when it is too late: the guest is about to go on at the target.
        """

    def wake(self, host: str, name: str, now_s: float) -> float:
        """Set the guest's clock to `now_s`, make slurmd register; returns the correction in s.

        BusyError when it does not run.
        """

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """Count the processes of Slurm jobs in a running guest: (going, stopped by a signal).

        BusyError when it does not run: no answer is not the same as none.
        """

    def console(self, host: str, name: str) -> str:
        """Return the last lines that the guest wrote to its console, for people."""

    def close(self) -> None:
        """Give back connections."""


@dataclass(frozen=True, slots=True)
class StateRun:
    """The result of a run of the states on one node; of a test run, what it would do.

    `changed`: (state, what was or would be different). No answer is never a success. `looked`: a
    look showed that all is as the states say, so that they need not be run.
    """

    node: str
    answered: bool
    problem: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    looked: bool = False

    @property
    def ok(self) -> bool:
        """Return True if all states hold now (of a test run: whether they could be tried)."""
        return self.answered and not self.problem


class Provisioner(Protocol):
    """A configuration manager of nodes. Calls block, are safe from several threads, raise DriverError
    only.
    """

    def enrol(self, node: str, generation: int, address: str) -> dict[str, SeedFile]:
        """Make this generation's key, and return the files that its first boot needs, by path.

        Keys of the node's other generations are void from then on.
        """

    def expel(self, node: str, generation: int) -> None:
        """Forget this generation's key: whoever has it is heard no more. Gone already: fine."""

    def enrolled(self) -> dict[str, int]:
        """Every node that may be configured, with its generation; 0 for bare metal."""

    def apply(self, nodes: Sequence[str], test: bool, must_run: Collection[str] = ()) -> dict[str, StateRun]:
        """See that the states hold. `test`: change nothing; `must_run`: where no look is enough."""

    def close(self) -> None:
        """Give back connections."""
