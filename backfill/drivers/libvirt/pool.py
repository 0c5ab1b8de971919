"""The hypervisors of one pool, their shared directory, and the rule that an instance runs once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from backfill.core.model.fleet import Instance, InstanceSpec, InstanceState
from backfill.drivers.libvirt.checkpoints.folders import CheckpointFolders
from backfill.drivers.libvirt.connection.domain_xml import Frozen
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.connection.states import instance_state, may_be_restarted, odd
from backfill.drivers.libvirt.devices.book import DeviceBook
from backfill.drivers.libvirt.settings import LibvirtConfig
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import BusyError, NotFoundError, UnreachableError, UnreadableError
from backfill.ports.provider import SeedFile

AT_REST = frozenset({InstanceState.SUSPENDED, InstanceState.OFF, InstanceState.CRASHED})
_Value = TypeVar("_Value")
_MANAGED_SAVE = (
    "somebody, or libvirt-guests as {host} went down, has put its memory into a managed save of libvirt; "
    "on {host} `virsh start --paused {name}` brings it back, standing still until its jobs are compared with "
    "Slurm, and `virsh managedsave-remove {name}` gives its work up; `systemctl mask libvirt-guests` there "
    "prevents it"
)


SeedFiles = Callable[[InstanceSpec], Mapping[str, SeedFile]]


def no_files(spec: InstanceSpec) -> Mapping[str, SeedFile]:
    """Nothing beyond what every guest gets."""
    return {}


class ParentBuilds:
    """Lets those who build a parent of instant clones know that it was cancelled. Thread-safe."""

    def __init__(self) -> None:
        self._cancelled: dict[str, int] = {}  # by host, how often
        self._lock = threading.Lock()

    def begin(self, host: str) -> Callable[[], bool]:
        """Return a function that returns True once `cancel` was called after this."""
        before = self._cancelled.get(host, 0)
        return lambda: self._cancelled.get(host, 0) != before

    def cancel(self, host: str) -> None:
        """Cancel all builds that have begun on `host`."""
        with self._lock:
            self._cancelled[host] = self._cancelled.get(host, 0) + 1


@dataclass(slots=True)
class MoveSlots:
    """A slot for every pair of hosts, whichever the direction.

    Two moves at once between the same two hosts share one network, so together they take as long
    and each stops its guest for longer; and two paused guests that moved at once were seen to hold
    up both libvirtd until their keepalive gave up (31 s, libvirt 9.0).
    """

    _slots: dict[frozenset[str], threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def between(self, name: str, one: str, other: str, patience_s: float) -> Iterator[None]:
        """Inside, no other instance moves between these hosts. BusyError when patience ends."""
        with self._lock:
            slot = self._slots.setdefault(frozenset({one, other}), threading.Lock())
        if not slot.acquire(timeout=patience_s):
            raise BusyError(
                name,
                f"others were moving between {one} and {other} for {patience_s:g} s",
                "it will be tried again",
            )
        try:
            yield
        finally:
            slot.release()


@dataclass(slots=True)
class Pool:
    """State that all operations share. Everything here is safe from several threads."""

    config: LibvirtConfig
    store: Store
    hypervisors: dict[str, Hypervisor]
    # Further files of a new instance's seed, such as keys that are made for it.
    seed_files: SeedFiles = no_files
    move_slots: MoveSlots = field(default_factory=MoveSlots)
    moves_cancelled: set[str] = field(default_factory=set)  # names; until their next move begins
    # Instances that calls under way bring to a host and bind there, by host and name.
    arriving: dict[tuple[str, str], Instance] = field(default_factory=dict)
    trials: set[Path] = field(default_factory=set)  # folders of trials of checkpoints under way here
    parent_builds: ParentBuilds = field(default_factory=ParentBuilds)
    checkpoints: CheckpointFolders = field(init=False)
    devices: DeviceBook = field(init=False)
    _changing: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queues: dict[str, threading.Lock] = field(default_factory=dict)
    _own: dict[str, Store] = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = CheckpointFolders(self.store)
        self.devices = DeviceBook(self.store)
        cluster = self.config.cluster
        self._own = {host: Store(d, cluster) for host, d in self.config.directories.items()}

    def on(self, host: str) -> Hypervisor:
        """Return the hypervisor of `host`. NotFoundError when it is none of ours."""
        if host not in self.hypervisors:
            known = ", ".join(self.hypervisors)
            raise NotFoundError(host, "is no host of this pool", f"its hosts are {known}")
        return self.hypervisors[host]

    def store_on(self, host: str) -> Store:
        """Return the store of instances on `host`, with paths as the host has them."""
        return self._own.get(host, self.store)

    def share(self, host: str, other: str) -> bool:
        """Return True if both have the same files of instances."""
        return self.store_on(host).root == self.store_on(other).root

    @property
    def stores(self) -> list[Store]:
        """All directories of instances, each once; the daemon's own comes last."""
        every = [self.store_on(host) for host in self.hypervisors] + [self.store]
        return list({store.root: store for store in reversed(every)}.values())[::-1]

    def remove_files(self, name: str, but_for: Collection[str]) -> None:
        """Remove what is left of the instance, apart from what these hosts need."""
        needed = {self.store_on(host).root for host in but_for}
        if needed:
            needed.add(self.store.root)
        for store in self.stores:
            if store.root not in needed:
                store.remove(name)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Keep other changes away from this instance. BusyError when one is under way."""
        with self._lock:
            if name in self._changing:
                raise BusyError(name, "another change of it is under way")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)

    @contextmanager
    def one_by_one(self, what: str) -> Iterator[None]:
        """Let those who want the same thing do it one after the other, in order of arrival."""
        with self._lock:
            queue = self._queues.setdefault(what, threading.Lock())
        with queue:
            yield

    def ours(self, domain: Domain | None) -> bool:
        """Return True if it carries our cluster's mark."""
        return (
            domain is not None
            and domain.label is not None
            and domain.label.tag.cluster == self.config.cluster
        )

    def find(self, host: str, name: str) -> Domain | None:
        """Return the domain if it exists and is ours."""
        domain = self.on(host).find(name)
        return domain if self.ours(domain) else None

    def need(self, host: str, name: str) -> tuple[Domain, Instance]:
        """Return the domain and what it means. NotFoundError when it is not there or not ours,
        UnreadableError when it cannot be told what it means."""
        domain = self.find(host, name)
        instance = self.instance(host, domain) if domain is not None else None
        if domain is None or instance is None:
            raise NotFoundError(name, f"there is no such instance of ours on {host}")
        if instance.state is InstanceState.UNKNOWN:
            what = f"what became of it on {host} is not known"
            raise UnreadableError(name, f"{what}: {instance.problem}")
        return domain, instance

    def instance(self, host: str, domain: Domain) -> Instance | None:
        """Return the instance that a domain of ours is; None for anybody else's."""
        if domain.label is None or not self.ours(domain):
            return None
        unknown: list[str] = []
        holding = _unless(unknown, lambda: self.devices.of(domain.name), None)
        restarted = _unless(unknown, lambda: self._restarted(host, domain), False)
        state = self._state(host, domain, unknown)
        return Instance(
            name=domain.name,
            host=host,
            state=state,
            tag=domain.label.tag,
            resources=domain.label.resources,
            rss_mb=domain.rss_mb if domain.active else 0,
            boot_s=domain.label.created_s,
            throttled=domain.throttled,
            frozen=domain.label.frozen is Frozen.YES,
            devices_of="" if holding is None else holding.job,
            plugged=holding is not None and holding.plugged,
            functions=0 if holding is None else len(holding.functions),
            region_mb=0 if holding is None else holding.region_mb,
            numa=domain.label.numa if domain.active else None,
            restarted=restarted,
            problem="; ".join(unknown) or odd(domain.state, domain.reason) or "",
        )

    def _state(self, host: str, domain: Domain, unknown: list[str]) -> InstanceState:
        """Return its state; UNKNOWN with one more reason if its saved memory cannot be looked at.

        One that does not run is either saved or at its end, and only that tells which. What libvirt has
        saved is newer than any memory of ours, and nothing here can bring it back standing still.
        """
        if domain.managed_save:
            unknown.append(_MANAGED_SAVE.format(host=host, name=domain.name))
            return InstanceState.UNKNOWN
        try:
            saved = not domain.active and self._saved(host, domain)
        except UnreadableError as error:
            unknown.append(_told(error))
            return InstanceState.UNKNOWN
        return instance_state(domain.state, domain.reason, domain.persistent, saved)

    def _restarted(self, host: str, domain: Domain) -> bool:
        """Return True if it was booted anew while its memory was on disk."""
        if not may_be_restarted(domain.state, domain.reason) or not self._saved(host, domain):
            return False
        # It may have been saved since it was looked at, or restored: look again, in this order.
        now = self.on(host).find(domain.name)
        runs = now is not None and may_be_restarted(now.state, now.reason)
        return runs and self._saved(host, domain)

    def _saved(self, host: str, domain: Domain) -> bool:
        """Return True if its memory is on disk, and the latest: not what an interrupted move left.

        UnreadableError where neither we nor the host's libvirtd can tell.
        """
        if not self.has_memory(host, domain):
            return False
        claims = self.store.claims(domain.name) if self._own else None
        return claims is None or host in claims

    def has_memory(self, host: str, domain: Domain) -> bool:
        """Return True if a complete memory image is there, as we see it or as libvirtd on `host` does.

        libvirtd keeps its images for itself: where we are not root, it alone can read them.
        """
        try:
            return self._sees_memory(host, domain)
        except UnreadableError:
            told = self.on(host).has_image(domain.name, self.store_on(host).memory(domain.name))
            if told is None:
                raise
            return told

    def _sees_memory(self, host: str, domain: Domain) -> bool:
        """Return True if we see a complete memory image.

        UnreadableError where libvirtd has saved it and we see none: that alone never means that its
        work is lost, unless we have removed it ourselves.
        """
        store, name = self.store_on(host), domain.name
        if store.has_memory(name):
            return True
        if domain.active:
            return False
        store.revalidate(name)
        found = store.has_memory(name)
        if domain.was_saved and not found and not store.lost_memory(name):
            raise UnreadableError(
                name,
                f"libvirtd on {host} says it saved it, but {store.memory(name)} is not a complete image as "
                "seen from here",
                f"see that {host} and this machine have the same directory mounted, or bring the file back",
            )
        return found

    def refuse_if_elsewhere(self, host: str, name: str, everywhere: bool = True) -> None:
        """Raise unless the instance is certainly inactive on all hosts but `host`.

        A host that does not answer forbids the start only if the instance may be there: if it is
        named in the claims, or the claims cannot be read. `everywhere`: ask the hosts without a
        claim as well, as far as they are connected.
        """
        claims = self.store.claims(name)
        for other, hypervisor in self.hypervisors.items():
            claimed = claims is None or other in claims
            asked = claimed or (everywhere and hypervisor.connected)
            if other == host or not asked:
                continue
            try:
                domain = self.find(other, name)
            except UnreachableError as error:
                if claimed:
                    raise UnreachableError(
                        name,
                        f"it may still be on {other}, which does not answer",
                        f"bring {other} back, or make sure that it is off",
                    ) from error
                continue
            if domain is not None and domain.active:
                raise BusyError(name, f"it is active on {other}", "never start it twice")
            if domain is not None and domain.managed_save:
                raise BusyError(name, f"it is in a managed save on {other}", "never start it twice")
        if claims is None or claims - {host}:
            self.store.claim(name, {host})  # every other claim has just been disproved


def _unless(unknown: list[str], look: Callable[[], _Value], otherwise: _Value) -> _Value:
    """Return the answer of `look`; if it cannot tell, `otherwise`, and one more reason in `unknown`."""
    try:
        return look()
    except UnreadableError as error:
        unknown.append(_told(error))
        return otherwise


def _told(error: UnreadableError) -> str:
    return f"{error.problem}; {error.remedy}" if error.remedy else error.problem
