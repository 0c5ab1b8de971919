"""The simulated hypervisors behind the InstanceProvider port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from backfill.core.model.fleet import CloneMethod, CloneParent, Flavour, Instance, InstanceSpec, InstanceState
from backfill.core.model.readiness import Fact, GuestReport, Stated
from backfill.drivers.simulated.clock import WallClock
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.faults import Faults
from backfill.drivers.simulated.hypervisor.hardware import SimHost, SimInstance, SimMachine
from backfill.drivers.simulated.hypervisor.holder import SimulatedHolder
from backfill.drivers.simulated.hypervisor.keeper import SimulatedKeeper
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)
from backfill.ports.provider import HostObservation

_IN_MEMORY = (InstanceState.RUNNING, InstanceState.PAUSED)
_ENDED = (InstanceState.OFF, InstanceState.CRASHED)


class SimulatedProvider(SimulatedKeeper, SimulatedHolder):
    """InstanceProvider over the simulation; every call acts at once."""

    def __init__(
        self,
        events: EventQueue,
        machines: Machines,
        hosts: dict[str, SimHost],
        faults: Faults,
        lock: threading.RLock,
        cluster: str,
    ) -> None:
        SimulatedKeeper.__init__(self, self._reachable, machines, lock)
        SimulatedHolder.__init__(self)
        self.images: frozenset[str] | None = None  # those that it knows; None: every one
        self.unlike: dict[str, str] = {}  # by instance, what is not as its states say
        self.boot_s = 5.0
        self.fork_s = 1.2  # instead of that, for an instant clone
        self.ailments: dict[str, tuple[Fact, ...]] = {}  # by instance: what it cannot prove
        self.ailing: tuple[Fact, ...] = ()  # what none can
        self.announced: dict[int, float] = {}  # by job: when its features say that its room goes
        self.commands: list[tuple[int, str, tuple[str, ...]]] = []  # run for a job: its number, as whom, what
        self.watch: Callable[[SimInstance], None] = lambda instance: None
        self.woken: Callable[[SimMachine], None] = lambda machine: None
        self._events = events
        self._machines = machines
        self._hosts = hosts
        self._faults = faults
        self._cluster = cluster
        self._moves: dict[tuple[str, str, str], None] = {}  # under way: from where, its name, and to where
        self.wall = WallClock(events)

    @contextmanager
    def _call(self, call: str, host: str, *subjects: str) -> Iterator[SimHost]:
        with self._lock, self._faults.around(call, host, *subjects):
            yield self._reachable(host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of all simulated hosts."""
        return tuple(self._hosts)

    # --- reading --------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self.wall.at(self._events.now_s)

    def observe(self, host: str) -> HostObservation:
        """One host with our instances; unreachable is an answer."""
        found = self._known(host)
        try:
            with self._call("observe_host", host):
                ours = {n: self._shown(i) for n, i in found.instances.items() if self._ours(i)}
                ours |= {i.name: i for i in self._arriving(host) if i.name not in found.instances}
                seen = self._faults.misread_host(host, ours)
                return HostObservation(self._now_s, self._with_functions(found), seen)
        except DriverError as error:
            dark = replace(found.view(), reachable=False, problem=str(error))
            return HostObservation(self._now_s, dark)

    def read(self, host: str, name: str) -> Instance | None:
        """One instance, or None."""
        with self._call("read", host, name) as found:
            instance = found.instances.get(name)
            if instance is not None and self._ours(instance):
                return self._shown(instance)
            return next((i for i in self._arriving(host) if i.name == name), None)

    def console(self, host: str, name: str) -> str:
        """Return the console text of a guest in this state."""
        with self._call("console", host, name) as found:
            machine = self._instance(found, name).machine
            return f"{name} login: " if machine.booted else f"{name}: Linux version; booting ..."

    # --- birth and death ------------------------------------------------------------------

    def create(self, spec: InstanceSpec) -> None:
        """Define and start; the guest reaches slurmd after `boot_s` of running."""
        self._check(spec)
        if instant := spec.method is CloneMethod.INSTANT:
            self.make_parent(spec.host, spec.image, spec.flavour)
        with self._call("create", spec.host, spec.name, spec.image) as host:
            if self._is_there(host, spec):
                return
            self._need_network(host, spec)
            self._need_room(host, spec)
            machine = SimMachine(spec.tag.node, host.name, metal=False, cpus=spec.flavour.cpus)
            machine.powered = host.powered
            instance = SimInstance(spec, host.name, InstanceState.RUNNING, machine, self._events.now_s)
            host.bind(instance)
            host.instances[spec.name] = instance
            boots = self._faults.boots(spec.name, spec.image, spec.host)
            boot_s = self.fork_s if instant else self.boot_s
            self._machines.start_boot(machine, boot_s if boots else None)
            self.watch(instance)

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        """End it, if it is of that life; what ran inside is gone."""
        with self._call("delete", host, name) as found:
            instance = found.instances.get(name)
            if instance is not None and self._ours(instance) and _is_of(instance, generation):
                if self.losses is not None:
                    self.losses.instance_goes(instance)
                self._machines.destroy(instance.machine)
                del found.instances[name]
                self.plugged.pop(name, None)
                self._held.pop(name, None)

    # --- pause, suspend, migrate ----------------------------------------------------------

    def pause(self, host: str, name: str) -> None:
        """Bring it from RUNNING to PAUSED."""
        with self._call("pause", host, name) as found:
            instance = self._instance(found, name)
            if instance.state is not InstanceState.PAUSED:
                self._need(instance, InstanceState.RUNNING)
                self._change(instance, InstanceState.PAUSED)

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        """PAUSED to RUNNING."""
        with self._call("thaw", host, name) as found:
            instance = self._instance(found, name)
            if instance.state is not InstanceState.RUNNING:
                self._need(instance, InstanceState.PAUSED)
                machine = instance.machine
                if self.losses is not None and not machine.frozen:
                    self.losses.goes_on(machine, machine.stood_in_s(self._events.now_s))
                self._change(instance, InstanceState.RUNNING)
                self.watch(instance)

    def throttle(self, host: str, name: str, percent: int | None) -> None:
        """Its jobs stand still, it answers as ever: a small share is rounded down, a whole one no limit."""
        with self._call("throttle", host, name) as found:
            self._need(instance := self._instance(found, name), *_IN_MEMORY)
            self._machines.throttle(instance.machine, on=percent is not None and percent < 100)

    def freeze(self, host: str, name: str) -> bool:
        """Its jobs stand still from here on."""
        with self._call("freeze", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            ran = not instance.machine.frozen
            self._machines.freeze(instance.machine, on=True)
            return ran

    def release(self, host: str, name: str, now_s: float, ended: Collection[int]) -> float:
        """Those of `ended` are gone before any goes on."""
        with self._call("release", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            machine = instance.machine
            numbers = {str(number) for number in ended}
            over = [run for run in machine.runs if run.job in numbers]
            if over and not machine.frozen:
                raise RefusedError(name, "its jobs were not frozen, so that none can be ended unrun")
            lag_s = self._machines.set_clock(machine)
            if self.losses is not None and machine.frozen:
                self.losses.goes_on(machine, lag_s, over)
            for run in over:
                self._machines.kill(run)
            self._machines.freeze(machine, on=False)
            return lag_s

    def announce(self, host: str, name: str, job: int, ends_s: float) -> None:
        """Write it down."""
        with self._call("announce", host, name) as found:
            self._need(self._instance(found, name), InstanceState.RUNNING)
            self.announced[job] = ends_s

    def run_for(self, host: str, name: str, job: int, user: str, command: Sequence[str]) -> None:
        """Write it down."""
        with self._call("run_for", host, name) as found:
            self._need(self._instance(found, name), InstanceState.RUNNING)
            self.commands.append((job, user, tuple(command)))

    def give_memory(self, host: str, name: str, keep_mb: int | None) -> int:
        """Let the host use so much less at once."""
        with self._call("give_memory", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            before_mb, instance.machine.kept_mb = instance.rss_mb, keep_mb
            return max(0, before_mb - instance.rss_mb)

    def suspend(self, host: str, name: str) -> float:
        """Bring it from RUNNING or PAUSED to SUSPENDED; its memory is free. Return MB."""
        with self._call("suspend", host, name) as found:
            instance = self._instance(found, name)
            self._need_known(instance)
            if instance.state is InstanceState.SUSPENDED:
                return 0.0
            self._need(instance, *_IN_MEMORY)
            self._refuse_if_plugged(host, name)
            if instance.state is InstanceState.PAUSED and not found.saves_paused:
                raise RefusedError(name, "it is paused and would have to run to be suspended")
            self._change(instance, InstanceState.SUSPENDED)
            return float(instance.spec.flavour.memory_mb)

    def restore(self, host: str, name: str) -> None:
        """SUSPENDED to PAUSED."""
        with self._call("restore", host, name) as found:
            instance = self._instance(found, name)
            if instance.state not in _IN_MEMORY:
                self._need(instance, InstanceState.SUSPENDED)
                self._need_room(found, instance.spec)
                found.bind(instance)
                self._change(instance, InstanceState.PAUSED)

    def migrate(self, host: str, name: str, target: str) -> None:
        """Move it in the state it is in; moved already: nothing to do."""
        with self._call("migrate", host, name, target) as source:
            there = self._reachable(target)
            if host == target or (name not in source.instances and name in there.instances):
                self._instance(there, name)
                return
            instance = self._instance(source, name)
            self._need(instance, *_IN_MEMORY, InstanceState.SUSPENDED, *_ENDED)
            if name in there.instances:
                raise AlreadyThereError(name, f"host {target} has an instance of this name")
            if instance.state in _IN_MEMORY:
                self._need_room(there, instance.spec)
                there.bind(instance)
            del source.instances[name]
            there.instances[name] = instance
            instance.host = target
            self._machines.move(instance.machine, target)
            self.watch(instance)

    def under_way(self, host: str, name: str, target: str, *, on: bool) -> None:
        """Show it as arriving at `target` for as long as its memory is sent there."""
        with self._lock:
            if on:
                self._moves[host, name, target] = None
            else:
                self._moves.pop((host, name, target), None)

    def _arriving(self, host: str) -> Iterator[Instance]:
        """Return what is being received: what is on disk is copied unseen."""
        for source, name, target in self._moves:
            instance = self._hosts[source].instances.get(name)
            if target != host or instance is None or not self._ours(instance):
                continue
            if instance.state in _IN_MEMORY:
                yield replace(instance.view(), host=host, state=InstanceState.MIGRATING)

    def cancel_move(self, host: str, name: str) -> None:
        """Cancel nothing: a move is shown under way, but acts at its end, and at once."""
        with self._call("cancel_move", host, name) as found:
            self._instance(found, name)

    def wake(self, host: str, name: str, now_s: float) -> float:
        """Set the guest's clock and make its slurmd register."""
        with self._call("wake", host, name) as found:
            instance = self._instance(found, name)
            self._need(instance, InstanceState.RUNNING)
            if not instance.machine.booted:
                raise BusyError(name, "the guest does not answer: it has not booted")
            lag_s = self._machines.set_clock(instance.machine)
            instance.machine.unheard_s = None
            self.woken(instance.machine)
            return lag_s + now_s - self._events.now_s

    def prove(
        self, host: str, name: str, now_s: float, credential: str, register: bool
    ) -> tuple[GuestReport, str]:
        """Wake it, and report a guest in which everything is as it should, but for its ailments."""
        with self._lock:
            correction_s = self.wake(host, name, now_s)
            instance = self._instance(self._reachable(host), name)
            flavour = instance.spec.flavour
            facts = (Fact("munge:to the guest", True), *self.ailing, *self.ailments.get(name, ()))
            address = instance.spec.address.split("/")[0]
            report = GuestReport(
                correction_s,
                0.0,
                0.0,
                "the simulated clock",
                flavour.cpus,
                flavour.memory_mb,
                (address,),
                facts,
            )
            return report, credential

    def close(self) -> None:
        """Nothing is held."""

    # --- look-up --------------------------------------------------------------------------

    def _known(self, host: str) -> SimHost:
        found = self._hosts.get(host)
        if found is None:
            raise NotFoundError(host, "this provider has no such host")
        return found

    def _reachable(self, host: str) -> SimHost:
        found = self._known(host)
        if not found.answers:
            raise UnreachableError(host, found.problem or "its hypervisor does not answer")
        return found

    def _ours(self, instance: SimInstance) -> bool:
        return instance.spec.tag.cluster == self._cluster

    def _check(self, spec: InstanceSpec) -> None:
        if spec.tag.cluster != self._cluster:
            raise RefusedError(spec.name, f"its tag names cluster '{spec.tag.cluster}', not ours")
        self.need_image(spec.image)

    def _is_there(self, host: SimHost, spec: InstanceSpec) -> bool:
        """Return True if it exists; what is left of an instance that ended is cleared away."""
        old = host.instances.get(spec.name)
        if old is None:
            return False
        self._need_known(old)
        if self._ours(old) and old.state in _ENDED:
            self._machines.destroy(old.machine)
            del host.instances[spec.name]
            return False
        if old.spec.tag != spec.tag:
            raise AlreadyThereError(
                spec.name, f"host {host.name} has an instance of this name with another tag"
            )
        return True

    def _instance(self, host: SimHost, name: str) -> SimInstance:
        instance = host.instances.get(name)
        if instance is None or not self._ours(instance):
            raise NotFoundError(name, f"host {host.name} has no such instance of ours")
        return instance

    def _need(self, instance: SimInstance, *states: InstanceState) -> None:
        self._need_known(instance)
        if instance.state not in states:
            wanted = " or ".join(states)
            raise BusyError(instance.spec.name, f"is {instance.state}, not {wanted}")

    def _need_known(self, instance: SimInstance) -> None:
        if instance.shown is InstanceState.UNKNOWN:
            raise UnreadableError(instance.spec.name, instance.unreadable)

    def _need_network(self, host: SimHost, spec: InstanceSpec) -> None:
        if spec.network and spec.network not in host.networks:
            raise RefusedError(spec.name, f"host {host.name} has no network {spec.network}")

    def _need_room(self, host: SimHost, spec: InstanceSpec) -> None:
        if spec.flavour.memory_mb > host.free_memory_mb:
            raise NoCapacityError(
                host.name,
                f"{spec.name} needs {spec.flavour.memory_mb} MB and {host.free_memory_mb} MB are free",
            )

    def _change(self, instance: SimInstance, state: InstanceState) -> None:
        instance.state = state
        self._machines.update(instance.machine, on=state is InstanceState.RUNNING)

    # --- parents of instant clones, and looks into guests ---------------------------------------

    def need_image(self, image: str) -> None:
        """RefusedError unless the image is known."""
        if self.images is not None and image not in self.images:
            raise RefusedError(image, "is no image that the provider knows")

    def make_parent(self, host: str, image: str, flavour: Flavour) -> None:
        """Make a parent at once."""
        self.need_image(image)
        with self._call("make_parent", host) as found:
            made = CloneParent(image, flavour.cpus, flavour.memory_mb, flavour.disk_gb, made=True)
            found.parents = [p for p in found.parents if not p.suits(image, flavour)] + [made]

    def cancel_parents(self, host: str) -> None:
        """Remove the unfinished parents that a test has put there."""
        with self._call("cancel_parents", host) as found:
            found.parents = [parent for parent in found.parents if parent.made]

    def differs(self, host: str, name: str, stated: Stated) -> str | None:
        """Nothing does, but for what stands in `unlike`, and where another list was meant."""
        with self._call("differs", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            if stated.listed != f"{name}.g{instance.spec.tag.generation}":
                return "its states come to something else now than when it was made"
            return self.unlike.get(name)

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """One process for every job that computes there; none is ever stopped by a signal."""
        with self._call("job_processes", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            return sum(1 for run in instance.machine.runs if run.since_s is not None), 0


def _is_of(instance: SimInstance, generation: int | None) -> bool:
    return generation in (None, instance.spec.tag.generation)
