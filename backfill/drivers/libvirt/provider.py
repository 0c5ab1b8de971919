"""The InstanceProvider of a pool of libvirt hosts: the driver's face."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from backfill.core.model.devices import Holding, Sharing, VirtualFunction, Wanted
from backfill.core.model.fleet import (
    Checkpoint,
    CloneParent,
    Flavour,
    Host,
    Instance,
    InstanceSpec,
    InstanceState,
    Leak,
)
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.readiness import GuestReport, Stated
from backfill.drivers.libvirt import fencing, leaks, making, saving
from backfill.drivers.libvirt.binding import numa_nodes
from backfill.drivers.libvirt.checkpoints import keeping, trials
from backfill.drivers.libvirt.clones import building, parents
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor, OnEvent
from backfill.drivers.libvirt.connection.states import instance_state
from backfill.drivers.libvirt.devices import balloon, plugging
from backfill.drivers.libvirt.guest import agent
from backfill.drivers.libvirt.guest.agent import Ask
from backfill.drivers.libvirt.guest.keys import KeyHandover, key_place, read_key
from backfill.drivers.libvirt.guest.report import mount_to_prove
from backfill.drivers.libvirt.migration import moving
from backfill.drivers.libvirt.pool import Pool, SeedFiles, no_files
from backfill.drivers.libvirt.proving import HostProofs, HostTerms, prove
from backfill.drivers.libvirt.settings import LibvirtConfig, LibvirtLimits
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import BusyError, DriverError, NotFoundError, UnreadableError
from backfill.ports.hostbook import HostBook
from backfill.ports.provider import HostObservation

_Answer = TypeVar("_Answer")
MakeHypervisor = Callable[[str, str, LibvirtLimits, OnEvent | None, HostBook | None], Hypervisor]


class LibvirtProvider:
    """See `backfill.ports.provider.InstanceProvider`. Connections open on first use.

    `on_event(host, name)` is called from libvirt's thread when an instance's state changed: a hint
    to look again, nothing more. It must return at once.
    """

    def __init__(
        self,
        config: LibvirtConfig,
        on_event: OnEvent | None = None,
        make_hypervisor: MakeHypervisor = Hypervisor,
        seed_files: SeedFiles = no_files,
        book: HostBook | None = None,
    ) -> None:
        self._config = config
        self._pool = Pool(
            config,
            Store(config.directory, config.cluster),
            {
                host: make_hypervisor(host, uri, config.limits, on_event, book)
                for host, uri in config.uris.items()
            },
            seed_files,
        )
        # Whoever asks for no events only looks: nothing is made on his behalf.
        self._proofs = None
        if on_event is not None:
            self._proofs = HostProofs(self._prove, lambda host: on_event(host, ""))
        self._keys = None
        if on_event is not None and config.surroundings.slurm_key:
            self._keys = KeyHandover(lambda: read_key(config.surroundings), self._give_key)

    def _prove(self, host: str) -> str | None:
        root, offset_s = self._pool.store_on(host).root, self._config.clock_offset_s
        terms = HostTerms(root, offset_s, self._config.guest_filter)
        return self._pool.on(host).aside(lambda connection: prove(connection, host, terms))

    def _give_key(self, host: str, name: str, key: bytes) -> None:
        place, limit_s = key_place(self._config.surroundings), self._config.limits.agent_s
        self._ask_guest(host, name, lambda ask: agent.give_key(ask, name, place, key, limit_s))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in the order of the configuration."""
        return tuple(self._pool.hypervisors)

    def observe(self, host: str) -> HostObservation:
        """Read one host; one that does not answer is an answer."""
        seen_s = time.time()
        hypervisor = self._pool.on(host)
        node = self._config.nodes.get(host)
        try:
            totals, domains = hypervisor.survey()
            numa = numa_nodes(self._pool, host)
        except DriverError as error:
            if self._proofs is not None:
                self._proofs.forget(host)
            return HostObservation(seen_s, Host(host, node, NOTHING, False, str(error)))
        instances = {}
        for domain in domains:
            instance = self._pool.instance(host, domain)
            if instance is not None:
                instances[instance.name] = instance
        if self._keys is not None:
            self._keys.look(host, instances.values())
        capacity = _less(totals, self._config.reserved_on(host))
        active = frozenset(domain.name for domain in domains if domain.active)
        there: tuple[CloneParent, ...] | None = None
        # Where its parents cannot be seen none is made and none is cloned; all else goes on.
        with contextlib.suppress(UnreadableError):
            there = parents.seen(self._pool, host, active)
        seen = Host(
            host,
            node,
            capacity,
            busy=hypervisor.meter.busy,
            parents=there,
            functions=hypervisor.function_count(),
            unproven="" if self._proofs is None else self._proofs.problem(host),
            networks=tuple(self._config.networks),
            numa=numa,
        )
        return HostObservation(seen_s, seen, instances)

    def read(self, host: str, name: str) -> Instance | None:
        """Read one instance fresh."""
        domain = self._pool.on(host).find(name)
        return None if domain is None else self._pool.instance(host, domain)

    def create(self, spec: InstanceSpec) -> None:
        """Make it and boot it; the same one already there is fine."""
        making.create(self._pool, spec)

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        """End it and remove all that it has; gone already is fine."""
        making.delete(self._pool, host, name, generation)

    def abandon(self, host: str, name: str) -> None:
        """Forget what was on a host that is off for good."""
        making.abandon(self._pool, host, name)

    def make_parent(self, host: str, image: str, flavour: Flavour) -> None:
        """Boot, try out and freeze what instant clones go on from."""
        making.make_parent(self._pool, host, image, flavour)

    def cancel_parents(self, host: str) -> None:
        """Give up what is to become a parent there."""
        building.cancel_parents(self._pool, host)

    def pause(self, host: str, name: str) -> None:
        """Stop its CPUs. BusyError while it is on its way to another host."""
        seen = self._pool.on(host).pause(name, self._config.cluster)
        if instance_state(*seen, saved=False) is not InstanceState.PAUSED:
            _, instance = self._pool.need(host, name)
            raise BusyError(name, f"it is {instance.state} on {host} and cannot be paused")

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        """Let a paused instance's CPUs go on; `shut`: without a network until `release`."""
        fencing.thaw(self._pool, host, name, shut=shut)

    def freeze(self, host: str, name: str) -> bool:
        """Freeze all jobs in the running guest; True if they ran until now."""
        return fencing.freeze(self._pool, host, name)

    def release(self, host: str, name: str, now_s: float, ended: Collection[int]) -> float:
        """Set the clock, end these jobs, let all others go on, and give it its network back."""
        return fencing.release(self._pool, host, name, now_s, ended)

    def throttle(self, host: str, name: str, percent: int | None) -> None:
        """Leave its CPUs a share of the time; None: all of it."""
        saving.throttle(self._pool, host, name, percent)

    def give_memory(self, host: str, name: str, keep_mb: int | None) -> int:
        """Let the guest keep so much; returns how much less the host uses, MB."""
        return balloon.give_memory(self._pool, host, name, keep_mb)

    def suspend(self, host: str, name: str) -> float:
        """Memory to the shared directory, RAM freed; returns MB."""
        return saving.suspend(self._pool, host, name)

    def restore(self, host: str, name: str) -> None:
        """Memory back into RAM, paused."""
        saving.restore(self._pool, host, name)

    def migrate(self, host: str, name: str, target: str) -> None:
        """Move it to `target` in the state it is in."""
        moving.migrate(self._pool, host, name, target)

    def cancel_move(self, host: str, name: str) -> None:
        """Stop its way to another host; it goes on here."""
        moving.cancel(self._pool, host, name)

    def virtual_functions(self, host: str) -> tuple[VirtualFunction, ...]:
        """All that the host has, by libvirt's node devices."""
        return plugging.virtual_functions(self._pool, host)

    def holdings(self) -> tuple[Holding, ...]:
        """Return the holdings of all instances."""
        return tuple(self._pool.devices.all())

    def hold(self, wanted: Wanted, sharing: Sharing) -> Holding:
        """Allocate and attach."""
        with self._plugging(wanted.instance):
            return plugging.hold(self._pool, wanted, sharing)

    def give_back(self, host: str, name: str) -> None:
        """Detach everything and let others have it."""
        with self._plugging(name):
            plugging.give_back(self._pool, host, name)

    def unplug(self, host: str, name: str) -> None:
        """Take its devices out of a running guest."""
        with self._plugging(name):
            plugging.unplug(self._pool, host, name)

    def plug(self, host: str, name: str) -> None:
        """Put what it holds into a running guest."""
        with self._plugging(name):
            plugging.plug(self._pool, host, name)

    def _plugging(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Two calls about the same guest would take the same port for different devices."""
        return self._pool.one_by_one(f"devices of {name}")

    def room_for(self, host: str, name: str) -> str | None:
        """Say why `host` could not give it what it holds elsewhere; None: it could."""
        return plugging.room_for(self._pool, host, name)

    def hook(self, host: str, name: str, when: str) -> None:
        """Run the image's program for it, if it has one."""
        limit_s = self._pool.config.limits.agent_s
        plugging.need_running(self._pool, host, name)
        self._pool.on(host).with_agent(name, lambda ask: agent.hook(ask, name, when, limit_s), 2 * limit_s)

    def keep(self, host: str, wanted: Checkpoint, quota_mb: float | None) -> Checkpoint:
        """Keep the state of a suspended instance as a checkpoint."""
        return keeping.keep(self._pool, host, wanted, quota_mb)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All checkpoints, the oldest first."""
        return tuple(self._pool.checkpoints.all())

    def verify(self, identity: str) -> None:
        """Compare every file of a checkpoint with its checksum."""
        self._pool.checkpoints.verify(identity)

    def rehearse(self, host: str, identity: str) -> None:
        """Load a checkpoint into memory once, stopped, and throw that away."""
        trials.rehearse(self._pool, host, identity)

    def put_back(self, host: str, name: str, identity: str) -> None:
        """Replace an instance's state by a checkpoint's; it is suspended afterwards."""
        keeping.put_back(self._pool, host, name, identity)

    def drop(self, identity: str) -> None:
        """Remove a checkpoint."""
        self._pool.checkpoints.drop(identity)

    def tend(self) -> None:
        """Finish what an interrupted daemon left unfinished."""
        self._pool.checkpoints.tend()
        trials.clear(self._pool)

    def wake(self, host: str, name: str, now_s: float) -> float:
        """Set the guest's clock and make slurmd report; returns the correction in seconds."""
        limit_s = self._config.limits.agent_s
        return self._ask_guest(host, name, lambda ask: agent.wake(ask, name, now_s, limit_s))

    def prove(
        self, host: str, name: str, now_s: float, credential: str, register: bool
    ) -> tuple[GuestReport, str]:
        """Set the guest's clock and let it prove itself; returns its report and credential."""
        limits, around = self._config.limits, self._config.surroundings
        request = agent.ProofRequest(
            now_s,
            credential,
            register,
            time_server=around.time_server,
            mounts=tuple(mount_to_prove(m) for m in around.mounts),
            salt=self._config.await_salt,
            key_place=key_place(around) if around.slurm_key else "",
            key=read_key(around) if around.slurm_key else b"",
        )
        return self._ask_guest(host, name, lambda ask: agent.prove(ask, name, request, limits.agent_s))

    def differs(self, host: str, name: str, stated: Stated) -> str | None:
        """Return the first difference between the guest and its states; None: there is none."""
        limit_s = self._config.limits.agent_s
        return self._ask_guest(host, name, lambda ask: agent.differs(ask, name, stated, limit_s))

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """Count the processes of Slurm jobs in the guest: (going, stopped)."""
        limit_s = self._config.limits.agent_s
        return self._ask_guest(host, name, lambda ask: agent.job_processes(ask, name, limit_s))

    def announce(self, host: str, name: str, job: int, ends_s: float) -> None:
        """Let the job's features name its shutdown."""
        limit_s = self._config.limits.agent_s
        self._ask_guest(host, name, lambda ask: agent.announce(ask, name, job, ends_s, limit_s))

    def run_for(self, host: str, name: str, job: int, user: str, command: Sequence[str]) -> None:
        """Start a program in the guest as the job's user."""
        limit_s = self._config.limits.agent_s
        self._ask_guest(host, name, lambda ask: agent.run_for(ask, name, job, user, command, limit_s))

    def leaks(self, older_s: float) -> tuple[Leak, ...]:
        """Folders that no instance needs any more."""
        return leaks.leaks(self._pool, older_s)

    def remove_leak(self, name: str, older_s: float) -> None:
        """Remove one of them."""
        leaks.remove_leak(self._pool, name, older_s)

    def console(self, host: str, name: str) -> str:
        """Read the last lines of the guest's console; empty when it has not written yet."""
        self._pool.on(host)
        store = self._pool.store_on(host)
        if not store.exists(name):
            raise NotFoundError(name, "there is no such instance of ours")
        return store.console(name)

    def _ask_guest(self, host: str, name: str, work: Callable[[Ask], _Answer]) -> _Answer:
        _, instance = self._pool.need(host, name)
        if instance.state is not InstanceState.RUNNING:
            raise BusyError(name, f"it is {instance.state} on {host}, its guest cannot answer")
        limits = self._config.limits
        return self._pool.on(host).with_agent(name, work, limits.agent_s + limits.call_s)

    def close(self) -> None:
        """Give back all connections; what was made to prove hosts is gone then."""
        if self._proofs is not None:
            self._proofs.end()
        for hypervisor in self._pool.hypervisors.values():
            hypervisor.close()


def _less(totals: Resources, reserve: Resources) -> Resources:
    left = totals - reserve
    return Resources(max(0, left.cpus), max(0, left.memory_mb))
