"""Contracts that only some drivers fulfil; ask with `isinstance`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from backfill.core.model.devices import Holding, Sharing, VirtualFunction, Wanted
from backfill.core.model.fleet import Checkpoint, Flavour, Leak
from backfill.core.model.readiness import GuestReport, Stated
from backfill.ports.workload import PilotSpec


@runtime_checkable
class DeviceHolder(Protocol):
    """A provider whose instances can hold virtual functions and shared memory regions."""

    def virtual_functions(self, host: str) -> tuple[VirtualFunction, ...]:
        """All that the host has, held or not."""

    def holdings(self) -> tuple[Holding, ...]:
        """Return the holdings of all instances; the record survives a crash, and goes with the instance."""

    def hold(self, wanted: Wanted, sharing: Sharing) -> Holding:
        """Allocate and attach; the same again: nothing to do. NoCapacityError: nothing is given."""

    def give_back(self, host: str, name: str) -> None:
        """Detach everything and let others have it. It holds nothing: nothing to do."""

    def unplug(self, host: str, name: str) -> None:
        """Take its devices out of a running guest; it keeps its right to them."""

    def plug(self, host: str, name: str) -> None:
        """Put what it holds into a running guest; on another host than before, others like it."""

    def room_for(self, host: str, name: str) -> str | None:
        """Say why `host` could not give it what it holds elsewhere; None: it could."""

    def hook(self, host: str, name: str, when: str) -> None:
        """Let the guest do what it must `before-move` or `after-move`; DriverError: it did not."""


@runtime_checkable
class Prover(Protocol):
    """A provider that can look into its instances."""

    def prove(
        self, host: str, name: str, now_s: float, credential: str, register: bool
    ) -> tuple[GuestReport, str]:
        """Set the guest's clock to `now_s`, and let it prove all that it was told at its boot.

        `credential` was made at the controller and is to be understood in the guest; the second
        value was made in the guest, for the controller. Both empty: munge is not to be proven.
        `register`: slurmd reports to Slurm again. One call, harmless when repeated.
        """


@runtime_checkable
class StateTeller(Protocol):
    """A provisioner that knows what the states of a node come to, without running them."""

    def stated(self, nodes: Mapping[str, int]) -> dict[str, Stated]:
        """Of these nodes, by generation, what it would be now; absent: only a run can tell.

        DriverError: the states do not render.
        """


@runtime_checkable
class StateSeer(Protocol):
    """A provider that can look whether an instance is what its states come to."""

    def differs(self, host: str, name: str, stated: Stated) -> str | None:
        """Return the first thing that is not so, in one sentence; None: all is. Nothing is changed."""


@runtime_checkable
class MemoryGiver(Protocol):
    """A provider whose running instances can give memory back to their host."""

    def give_memory(self, host: str, name: str, keep_mb: int | None) -> int:
        """Let the guest keep `keep_mb`, None: all that it was promised.

        Returns how much less the host uses for it now, MB, as the hypervisor shows it: it may be
        nothing. BusyError unless it runs, RefusedError where it has no device for that.
        """


@runtime_checkable
class ParentKeeper(Protocol):
    """A provider whose instant clones go on from parents that `Host.parents` tells of."""

    def make_parent(self, host: str, image: str, flavour: Flavour) -> None:
        """Boot one, try it out and freeze it; there already: nothing to do.

        BusyError: it was given up meanwhile. DriverError: it is no good, nothing of it is left.
        """

    def cancel_parents(self, host: str) -> None:
        """End whatever runs there to become a parent, another daemon's remains included.

        Nothing of it runs when this returns. Parents that are made, and their clones, stay.
        """


@runtime_checkable
class LeakFinder(Protocol):
    """A provider that can find what interrupted or foreign hands left behind."""

    def leaks(self, older_s: float) -> tuple[Leak, ...]:
        """Return leaks that nobody has touched for so long. DriverError: not certain, a host is silent."""

    def remove_leak(self, name: str, older_s: float) -> None:
        """Remove one of them. NotFoundError when it is none any more."""


@runtime_checkable
class Abandoner(Protocol):
    """A provider that keeps something of an instance elsewhere than on its host."""

    def abandon(self, host: str, name: str) -> None:
        """Forget the instance and its files: `host` is off for good, as people know. Idempotent.

        BusyError when the host answers.
        """


@runtime_checkable
class Throttler(Protocol):
    """A provider whose instances can go on with a share of their CPUs."""

    def throttle(self, host: str, name: str, percent: int | None) -> None:
        """Leave it `percent` of its CPUs' time, None: all of it. Idempotent, seen by `read`.

        BusyError unless it is in memory, RefusedError where the host cannot limit CPUs.
        """


@runtime_checkable
class GuestFence(Protocol):
    """A provider whose guests let nothing of a job run on after a stop before it is said which may.

    `Instance.frozen` shows, until `release`, that the jobs of a guest were frozen before its stop.
    After a stop without that, `thaw` can shut it in: its link stays down, and nothing that it shares
    is served, until `release`.
    """

    def freeze(self, host: str, name: str) -> bool:
        """Freeze all processes of jobs in a running guest; it is stopped directly after. Idempotent.

        Returns True if they are known to have run until this call. False: they were frozen before, or
        an earlier call failed, so that nobody knows.
        DriverError: they may be frozen or not, and the next `release` lets them go on all the same.
        """

    def release(self, host: str, name: str, now_s: float, ended: Collection[int]) -> float:
        """Set a running guest's clock to `now_s`, then end all that is of the jobs `ended` (by their
        numbers) before an instruction of it runs, then let all else go on. Idempotent.

        Returns by how many seconds the clock was set forward; 0 where the guest has no fence.

        RefusedError where `ended` has to run before it can be ended, as nothing was frozen.
        """


@runtime_checkable
class JobWarner(Protocol):
    """A provider that can reach the jobs in its running guests."""

    def announce(self, host: str, name: str, job: int, ends_s: float) -> None:
        """Let the Machine/Job Features of the job with this number name its shutdown.

        `ends_s`: epoch seconds by the machine's clock. Idempotent: a later one takes the place.
        DriverError where the guest's files cannot be written.
        """

    def run_for(self, host: str, name: str, job: int, user: str, command: Sequence[str]) -> None:
        """Run a command in the guest as this user, with SLURM_JOB_ID set, and let it go on alone.

        DriverError where there is no such user or program.
        """


@runtime_checkable
class PilotSender(Protocol):
    """A workload manager through which pilots are sent as an ordinary user's jobs."""

    def submit_pilot(self, pilot: PilotSpec) -> str:
        """Submit it unless a job of that name and user lives already; returns the job's id.

        Slurm lets no two of one name and user work at the same time, so that a call of which the
        outcome is unknown can be repeated. RefusedError: no such user, script or partition, or root.
        """

    def withdraw_pilot(self, job_id: str) -> None:
        """End the job if it waits, and has never begun; whatever else it does it goes on."""


@runtime_checkable
class CheckpointKeeper(Protocol):
    """Saved states of instances, kept like data. As for instances: blocking, safe, idempotent."""

    def keep(self, host: str, wanted: Checkpoint, quota_mb: float | None) -> Checkpoint:
        """Keep a suspended instance's memory and disk; the same id again: nothing to do.

        BusyError unless it is suspended, NoCapacityError when the quota or the disk is full.
        """

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All of them, the oldest first; a damaged one has a `problem`."""

    def verify(self, identity: str) -> None:
        """Read it all again. DamagedError names what is missing or damaged."""

    def rehearse(self, host: str, identity: str) -> None:
        """Verify it, and load each part into memory on `host` once: never run, then thrown away.

        BadOutputError: it cannot be restored there.
        """

    def put_back(self, host: str, name: str, identity: str) -> None:
        """Give the instance, at rest on `host` or gone, this state; it is suspended afterwards.

        What a call that was cut off has left is the old state, or an instance that is off: never half of
        either. The same call again finishes it.
        A checkpoint that cannot be verified is refused before the old state is given up: DamagedError
        where it is of no use for good.
        """

    def drop(self, identity: str) -> None:
        """Remove it with all its parts. Gone already: nothing to do."""

    def tend(self) -> None:
        """Finish what was interrupted; called now and then."""
