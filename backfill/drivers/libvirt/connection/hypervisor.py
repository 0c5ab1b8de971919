"""One hypervisor as typed verbs; the rest of the driver never sees the library."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import libvirt

from backfill.core.model.devices import VirtualFunction
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.connection import states
from backfill.drivers.libvirt.connection.cables import cards_to_change
from backfill.drivers.libvirt.connection.cells import HostCell, host_cells
from backfill.drivers.libvirt.connection.domain_xml import Frozen, private_folder
from backfill.drivers.libvirt.connection.domains import (
    STATS,
    Domain,
    StaleDomain,
    label_of,
    lookup,
    mark_frozen,
    refuse_if_leaving,
    seen,
    throttle,
    weight_of,
)
from backfill.drivers.libvirt.connection.link import Link, machine_name
from backfill.drivers.libvirt.connection.monitor import has_sent_all, keeps_region, monitor_of, own_disks
from backfill.drivers.libvirt.connection.shared_memory import (
    is_mapped,
    make_private,
    remove_files,
    shared_memory,
)
from backfill.drivers.libvirt.connection.utilisation import CpuMeter
from backfill.drivers.libvirt.devices.device_xml import from_node_device
from backfill.drivers.libvirt.guest.agent import Ask, agent_of
from backfill.drivers.libvirt.migration import transfer
from backfill.drivers.libvirt.ownership import User, qemu_user
from backfill.drivers.libvirt.settings import LibvirtLimits, MoveTerms
from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError, UnreachableError
from backfill.ports.hostbook import HostBook

_Answer = TypeVar("_Answer")
OnEvent = Callable[[str, str], None]
_KIB_PER_MIB = 1024
# From here on qemu.conf can choose a format that has lost memory (decision 42) unless we ask.
_MANY_FORMATS = 11_002_000
# A domain whose job holds its lock must not hold up the picture of all others.
_STATS_FLAGS = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)

_COUNT_EVERY_S = 60.0


class Hypervisor:
    """One host's libvirtd. Every method raises the typed errors of the ports."""

    def __init__(
        self,
        host: str,
        uri: str,
        limits: LibvirtLimits,
        on_event: OnEvent | None = None,
        book: HostBook | None = None,
        opener: Callable[[str], Any] = libvirt.open,
    ) -> None:
        self.host = host
        self._uri = uri
        self._book = HostBook() if book is None else book
        self._limits = limits
        self._on_event = on_event
        self.meter = CpuMeter()
        self._stale = StaleDomain(host)
        self._link = Link(host, uri, limits, self._watch, opener)
        # What may hang on the host's directories must not cost the other its connection.
        self._aside = Link(host, uri, limits, self._recognise, opener)
        # Handles (which mean one UUID for ever) of the domains with our label, by name.
        self._ours: dict[str, tuple[Any, str]] = {}
        self._counted: tuple[float, int] = (float("-inf"), 0)  # virtual functions: when, and how many
        self._told: tuple[Any, str] | None = None  # a connection, and the capabilities it told of

    def close(self) -> None:
        """Give back the connections."""
        self._link.close()
        self._aside.close()

    @property
    def connected(self) -> bool:
        """Return True if the connection is open at this moment; asks nobody."""
        return self._link.connected

    def aside(self, work: Callable[[Any], _Answer]) -> _Answer:
        """Do what may take long, or hang, over a connection of its own."""
        return self._aside.call(self.host, work)

    def survey(self) -> tuple[Resources, list[Domain]]:
        """Totals and all domains, in one go."""

        def work(connection: Any) -> tuple[Resources, list[Domain]]:
            stats = connection.getAllDomainStats(STATS, _STATS_FLAGS)
            domains = self._seen(stats)
            self._ours = {
                domain.name: (handle, domain.label.tag.cluster)
                for (handle, _), domain in zip(stats, domains, strict=True)
                if domain is not None and domain.label is not None
            }
            self.meter.look(connection)
            return self._totals(connection), [domain for domain in domains if domain is not None]

        return self._link.call(self.host, work)

    def domains(self) -> list[Domain]:
        """All domains, ours or not."""

        def work(connection: Any) -> list[Domain]:
            found = self._seen(connection.getAllDomainStats(STATS, _STATS_FLAGS))
            return [domain for domain in found if domain is not None]

        return self._link.call(self.host, work)

    def _seen(self, stats: list[tuple[Any, dict[str, int]]]) -> list[Domain | None]:
        return [self._stale.as_it_is(handle, seen(handle, read)) for handle, read in stats]

    def find(self, name: str) -> Domain | None:
        """One domain, ours or not; None when there is none of this name."""

        def work(connection: Any) -> Domain | None:
            handle = lookup(connection, name)
            if handle is None:
                return None
            stats = connection.domainListGetStats([handle], STATS, _STATS_FLAGS)
            return self._stale.as_it_is(handle, seen(*stats[0])) if stats else None

        return self._link.call(name, work)

    def define(self, name: str, document: str) -> None:
        """Make a domain known without starting it."""
        self._link.call(name, lambda connection: connection.defineXML(document))

    def document(self, name: str) -> str:
        """Return the domain document with which another host can define it."""
        flags = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
        return str(self._on(name, lambda domain: domain.XMLDesc(flags)))

    def migratable_document(self, name: str) -> str:
        """Return the document of the running domain with which another libvirtd can receive it."""
        flags = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
        return str(self._on(name, lambda domain: domain.XMLDesc(flags)))

    def start(self, name: str) -> int | None:
        """Boot a defined domain; returns its CPU weight, None where the host knows no weights."""

        def work(domain: Any) -> int | None:
            domain.create()
            return weight_of(domain)

        weight: int | None = self._on(name, work, self._limits.start_s)
        return weight

    def pause(self, name: str, cluster: str) -> tuple[int, int, bool]:
        """Stop the CPUs of `cluster`'s domain unless they stand still.

        Returns state, reason and persistence afterwards. As few questions as possible: this is
        what a high-priority job waits for. BusyError while it is migrated to another host.
        """

        def work(connection: Any) -> tuple[int, int, bool]:
            handle, owner = self._ours.get(name, (None, ""))
            if handle is not None and owner == cluster and handle.connect() is connection:
                with contextlib.suppress(libvirt.libvirtError):
                    return self._stop(handle, name)  # spares the questions who and whose it is
            handle = lookup(connection, name)
            label = None if handle is None else label_of(handle)
            if label is None or label.tag.cluster != cluster:
                raise NotFoundError(name, f"there is no such instance of ours on {self.host}")
            return self._stop(handle, name)

        return self._link.call(name, work)

    def _stop(self, handle: Any, name: str) -> tuple[int, int, bool]:
        self._refuse_if_leaving(handle, name)
        # What does not run cannot be stopped: the state tells what it does instead.
        with contextlib.suppress(libvirt.libvirtError):
            handle.suspend()
        state, reason = handle.state()
        if state in (states.DomainState.RUNNING, states.DomainState.BLOCKED):
            handle.suspend()  # once more, for the error that says why it does not work
            state, reason = handle.state()
        if state == states.DomainState.PMSUSPENDED:
            handle.pMWakeup()  # asleep it cannot be stopped, and any alarm would wake it later
            raise BusyError(name, "it had sent itself to sleep and is just being woken")
        incoming = states.may_be_incoming(state, reason)
        return int(state), int(reason), not incoming or bool(handle.isPersistent())

    def throttle(self, name: str, percent: int | None) -> None:
        """Leave its CPUs `percent` of the time; None: all of it."""
        self._on(name, lambda domain: self._throttle(domain, percent))

    def set_balloon(self, name: str, memory_mb: int) -> int:
        """Order the guest's balloon to leave it so much; returns what the guest has now, MB."""

        def work(domain: Any) -> int:
            domain.setMemoryFlags(memory_mb * _KIB_PER_MIB, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            return int(domain.memoryStats().get("actual", 0)) // _KIB_PER_MIB

        left_mb: int = self._on(name, work)
        return left_mb

    def resume(self, name: str) -> None:
        """Let the CPUs of a paused domain go on, also of one that sent itself to sleep."""

        def work(domain: Any) -> None:
            if domain.state()[0] == states.DomainState.PMSUSPENDED:
                domain.pMWakeup()
            else:
                domain.resume()

        self._on(name, work)

    def save(self, name: str, path: Path) -> None:
        """Write memory to `path` and end the emulator; on failure the domain is as before.

        Measured: with the flag that asks for a paused restore, a running domain whose save failed
        is left paused. So that flag is given when it is restored.
        """

        def work(domain: Any) -> None:
            if domain.connect().getLibVersion() < _MANY_FORMATS:
                domain.save(str(path))
            else:
                domain.saveParams({"file": str(path), "image_format": "raw"})

        self._on(name, work, self._limits.long_s)

    def saved_document(self, name: str, path: Path) -> str:
        """Return the domain document in the memory image at `path`."""
        secure = libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE
        read: str = self._link.call(name, lambda c: str(c.saveImageGetXMLDesc(str(path), secure)))
        return read

    def restore(self, name: str, path: Path, document: str | None = None) -> None:
        """Start from the memory at `path`, paused; as the machine in `document`, where given."""

        def work(connection: Any) -> None:
            connection.restoreFlags(str(path), document, libvirt.VIR_DOMAIN_SAVE_PAUSED)

        self._link.call(name, work, self._limits.long_s)

    def has_image(self, name: str, path: Path) -> bool | None:
        """Return True if libvirtd there finds a complete memory image at `path`; None: it cannot tell.

        Only its words tell half an image from one that it cannot read. In another language than
        English they tell nothing: then that is not known either.
        """

        def work(connection: Any) -> bool | None:
            try:
                connection.saveImageGetXMLDesc(str(path))
            except libvirt.libvirtError as error:
                return False if "save image is incomplete" in str(error) else None
            return True

        return self._link.call(name, work)

    def destroy(self, name: str) -> None:
        """End the emulator now; not running is fine."""

        def work(connection: Any) -> None:
            domain = lookup(connection, name)
            if domain is None or not domain.isActive():
                return
            try:
                domain.destroy()
            except libvirt.libvirtError as error:
                if domain.isActive():  # otherwise it ended by itself in between
                    self._stale.look(domain, name, error)
                    raise

        self._link.call(name, work, self._limits.start_s)

    def undefine(self, name: str) -> None:
        """Forget an inactive domain; unknown is fine."""

        def work(connection: Any) -> None:
            domain = lookup(connection, name)
            if domain is not None:
                self._undefine(domain)

        self._link.call(name, work)

    def own_disks(self, name: str) -> None:
        """Let the emulator of a guest that stands still take over its disks (see `disks`)."""
        self._on(name, lambda domain: self._own_disks(domain, name))

    def has_sent_all(self, name: str) -> bool:
        """Return True if a guest that stands still was sent to a file or a host already, and stayed.

        libvirt shows no trace of it: it was killed when QEMU had just come to the end.
        """
        told: bool = self._on(name, self._has_sent_all)
        return told

    # --- devices ---------------------------------------------------------------------------

    def virtual_functions(self) -> list[VirtualFunction]:
        """All virtual functions of the host's network and other cards."""

        def work(connection: Any) -> list[VirtualFunction]:
            devices = connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV)
            found = (from_node_device(self.host, device.XMLDesc()) for device in devices)
            return [function for function in found if function is not None]

        return self._link.call(self.host, work)

    def function_count(self) -> int:
        """Return the number of virtual functions; counted anew once a minute."""
        at_s, count = self._counted
        now_s = time.monotonic()
        if now_s - at_s > _COUNT_EVERY_S:
            with contextlib.suppress(DriverError):  # a libvirtd that does not know its devices
                count = len(self.virtual_functions())
            self._counted = (now_s, count)
        return count

    def keeps_region(self, name: str) -> bool:
        """Return True if its emulator has the memory of a region, which libvirt may show no longer."""
        told: bool = self._on(name, self._keeps_region)
        return told

    def shared_files(self) -> list[str]:
        """Names of all files of the host's shared memory, ours or not."""

        def work(connection: Any) -> list[str]:
            with shared_memory(connection) as pool:
                pool.refresh()
                return [str(file.name()) for file in pool.listAllVolumes()]

        return self._link.call(self.host, work)

    def make_shared_file(self, name: str, size_mb: int) -> bool:
        """Make sure that QEMU's user alone can open that memory, before a guest has it.

        Returns False where others go on reading it, as QEMU itself made it for an older build.
        """
        user = self.qemu_user()
        if user is None:
            raise RefusedError(
                name,
                f"libvirt on {self.host} does not say as whom QEMU runs, so that its memory cannot be kept "
                "from other users of the host",
                "name libvirt's system instance in hosts (a uri that ends with /system)",
            )

        def work(connection: Any) -> bool:
            with shared_memory(connection) as pool:
                return make_private(pool, name, size_mb, user, partial(is_mapped, connection, name))

        return self._link.call(self.host, work)

    def remove_shared_files(self, names: Sequence[str], within_s: float) -> list[str]:
        """Give memory back to the host, as much as it does in that time. Returns what stays."""

        def work(connection: Any) -> list[str]:
            with shared_memory(connection) as pool:
                return remove_files(pool, names, within_s)

        return self._link.call(self.host, work)

    def live_document(self, name: str) -> str:
        """Return the domain document as it is now, with everything that was attached to it."""
        return str(self._on(name, lambda domain: domain.XMLDesc()))

    def attach(self, name: str, device: str) -> None:
        """Plug a device into the running guest."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        self._on(name, lambda domain: domain.attachDeviceFlags(device, live))

    def detach(self, name: str, device: str) -> None:
        """Ask the running guest to let go of a device; it may take a moment."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        self._on(name, lambda domain: domain.detachDeviceFlags(device, live))

    def set_link(self, name: str, up: bool) -> None:
        """Plug the cables of the guest's cards in, or pull them; what has none is left as it is.

        What the guest sends while they are out is lost, as from any machine.
        """

        def work(domain: Any) -> None:
            for card in cards_to_change(domain.XMLDesc(), up):
                domain.updateDeviceFlags(card, libvirt.VIR_DOMAIN_AFFECT_LIVE)

        self._on(name, work)

    def set_frozen(self, name: str, frozen: Frozen) -> None:
        """Note in our label that its guest froze its jobs, or let them go on; it goes with the guest."""
        self._on(name, lambda domain: mark_frozen(domain, frozen))

    # --- moves -----------------------------------------------------------------------------

    def migrate(
        self,
        name: str,
        target_uri: str,
        data_uri: str | None,
        stay_paused: bool,
        terms: MoveTerms,
        carriage: transfer.Carriage | None = None,
    ) -> None:
        """Move an active domain to the libvirtd at `target_uri`, which the source contacts itself.

        `data_uri` is where the target receives memory, such as tcp://10.0.0.2. With a `carriage`
        its disk goes along.
        """

        def work(domain: Any) -> None:
            transfer.move(domain, target_uri, data_uri, stay_paused, terms, carriage)

        self._on(name, work, self._limits.long_s)

    def progress(self, name: str) -> transfer.MoveProgress | None:
        """Return the progress of its move to another host; None if it is not leaving."""
        seen: transfer.MoveProgress | None = self._on(name, transfer.progress)
        return seen

    def post_copy(self, name: str) -> None:
        """Let the guest go on at the target now; what it lacks is fetched when it is needed."""
        self._on(name, lambda domain: domain.migrateStartPostCopy())

    def cancel_move(self, name: str) -> None:
        """Stop its way to another host; not leaving is fine. BusyError: it is too late for that."""

        def work(domain: Any) -> None:
            seen = transfer.progress(domain)
            if seen is not None and not seen.cancellable:
                raise BusyError(name, "it is about to go on at the other host", "wait for it")
            if seen is not None:
                domain.abortJob()

        self._on(name, work)

    def abort_job(self, name: str) -> None:
        """Stop a running save or migration; the domain goes on where it was."""
        self._on(name, lambda domain: domain.abortJob())

    # --- the guest, and the host itself ----------------------------------------------------

    def with_agent(self, name: str, work: Callable[[Ask], _Answer], limit_s: float) -> _Answer:
        """Run `work` with a function that asks the guest agent; see `agent.wake`."""
        answer: _Answer = self._on(name, lambda domain: work(agent_of(domain)), limit_s)
        return answer

    def qemu_user(self) -> User | None:
        """As whom QEMU runs there; None where libvirt does not say."""

        def work(connection: Any) -> User | None:
            return qemu_user(self._capabilities(connection))

        return self._link.call(self.host, work, self._limits.start_s)

    def cells(self) -> tuple[HostCell, ...]:
        """Return its NUMA nodes."""

        def work(connection: Any) -> tuple[HostCell, ...]:
            return host_cells(self._capabilities(connection))

        return self._link.call(self.host, work, self._limits.start_s)

    def _capabilities(self, connection: Any) -> str:
        """Ask once: a libvirtd looks at all its emulators before it answers (seconds, when it is
        busy), and until it restarts it says the same."""
        if self._told is None or self._told[0] is not connection:
            self._told = (connection, str(connection.getCapabilities()))
        return self._told[1]

    def _totals(self, connection: Any) -> Resources:
        _map_size, online, _count = connection.getCPUMap()
        # virNodeGetInfo's memory was measured to be far too small on some hosts; the statistics
        # agree with /proc/meminfo.
        memory_kib = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)["total"]
        return Resources(sum(map(bool, online)), int(memory_kib) // _KIB_PER_MIB)

    def _refuse_if_leaving(self, domain: Any, name: str) -> None:
        refuse_if_leaving(domain, name)

    def _throttle(self, domain: Any, percent: int | None) -> None:
        throttle(domain, percent)

    def _own_disks(self, domain: Any, name: str) -> None:
        own_disks(monitor_of(domain), name, private_folder(domain.XMLDesc()) / "disks.sock")

    def _has_sent_all(self, domain: Any) -> bool:
        return has_sent_all(monitor_of(domain))

    def _keeps_region(self, domain: Any) -> bool:
        return keeps_region(monitor_of(domain))

    def _undefine(self, domain: Any) -> None:
        domain.undefineFlags(_UNDEFINE)

    def _on(self, name: str, work: Callable[[Any], Any], limit_s: float | None = None) -> Any:
        return self._link.call(name, lambda connection: work(connection.lookupByName(name)), limit_s)

    run = _on  # for what has a file of its own

    def _recognise(self, connection: Any) -> None:
        """Refuse another machine than the one that was there: all instances would seem gone from it."""
        name = machine_name(connection)
        if name in ("", "localhost"):
            return  # machines without a name of their own cannot be told apart
        if why := self._book.contradiction(self.host, name, alone=True):
            where = self._book.where
            renamed = f"; if only its name is new, remove {where} and restart the daemon" if where else ""
            raise UnreachableError(
                self.host,
                f"at {self._uri} there is a machine that calls itself {name}, but {why}",
                f"put right the host's uri or DNS{renamed}; if the old machine is gone for good, "
                f"`backfill evict {self.host} --off`",
            )
        self._book.met(self.host, name)

    def _watch(self, connection: Any) -> None:
        self._recognise(connection)
        if self._on_event is not None:
            connection.domainEventRegisterAny(
                None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle, None
            )

    def _lifecycle(self, _connection: Any, domain: Any, *_details: Any) -> None:
        if self._on_event is not None:
            self._on_event(self.host, str(domain.name()))
