"""What one hypervisor is asked about devices: which it has, and into and out of a running guest."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import libvirt

from backfill.core.devices import VirtualFunction
from backfill.drivers.libvirt.device_xml import from_node_device
from backfill.drivers.libvirt.link import Link
from backfill.ports.errors import DriverError

_COUNT_EVERY_S = 60.0
_SHARED = "/dev/shm"  # noqa: S108 - where libvirt puts the memory that guests share
_AS_POOL = f"""
<pool type='dir'><name>backfill-regions</name><target><path>{_SHARED}</path></target></pool>
"""


class DeviceCalls(ABC):
    """A part of `Hypervisor`."""

    host: str
    _link: Link
    _counted: tuple[float, int] = (float("-inf"), 0)  # when, and how many

    @abstractmethod
    def _on(self, name: str, work: Callable[[Any], Any], limit_s: float | None = None) -> Any:
        """Do this with the named domain, waiting at most `limit_s` seconds."""

    def virtual_functions(self) -> list[VirtualFunction]:
        """All virtual functions of the host's network and other cards."""

        def work(connection: Any) -> list[VirtualFunction]:
            devices = connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV)
            found = (from_node_device(self.host, device.XMLDesc()) for device in devices)
            return [function for function in found if function is not None]

        return self._link.call(self.host, work)

    def function_count(self) -> int:
        """How many of them there are; counted anew once a minute."""
        at_s, count = self._counted
        now_s = time.monotonic()
        if now_s - at_s > _COUNT_EVERY_S:
            with contextlib.suppress(DriverError):  # a libvirtd that does not know its devices
                count = len(self.virtual_functions())
            self._counted = (now_s, count)
        return count

    def shared_files(self) -> list[str]:
        """Names of all files of the host's shared memory, ours or not."""

        def work(connection: Any) -> list[str]:
            with _shared_memory(connection) as pool:
                pool.refresh()
                return [str(file.name()) for file in pool.listAllVolumes()]

        return self._link.call(self.host, work)

    def remove_shared_file(self, name: str) -> None:
        """Give that memory back to the host. NotFoundError: there is no such file."""

        def work(connection: Any) -> None:
            with _shared_memory(connection) as pool:
                pool.storageVolLookupByName(name).delete()

        self._link.call(self.host, work)

    def live_document(self, name: str) -> str:
        """The domain document as it is now, with everything that was attached to it."""
        return str(self._on(name, lambda domain: domain.XMLDesc()))

    def attach(self, name: str, device: str) -> None:
        """Plug a device into the running guest."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        self._on(name, lambda domain: domain.attachDeviceFlags(device, live))

    def detach(self, name: str, device: str) -> None:
        """Ask the running guest to let go of a device; it may take a moment."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        self._on(name, lambda domain: domain.detachDeviceFlags(device, live))


@contextmanager
def _shared_memory(connection: Any) -> Iterator[Any]:
    """The host's shared memory as libvirt's storage: the only way to it from another machine."""
    pool = _somebodys(connection)
    if pool is not None:
        yield pool
        return
    pool = connection.storagePoolCreateXML(_AS_POOL)
    try:
        yield pool
    finally:
        pool.destroy()  # libvirt forgets it, and touches no file


def _somebodys(connection: Any) -> Any:
    """The storage pool that is there already; None: there is none."""
    try:
        return connection.storagePoolLookupByTargetPath(_SHARED)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_POOL:
            return None
        raise
