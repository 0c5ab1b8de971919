"""Two hosts that live inside the libvirt library, for tests of the driver without a hypervisor."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvirt

from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor, OnEvent
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import (
    Hardware,
    ImageFiles,
    LibvirtConfig,
    LibvirtLimits,
    NumaTerms,
    Surroundings,
)
from backfill.ports.errors import RefusedError
from backfill.ports.hostbook import HostBook
from tests.contract.hiding import hidden
from tests.contract.instance_rig import CARRY, CLUSTER, HIDE, IMAGES, NETWORK, SAVE_PAUSED, STRANGERS

NODE = "<node><cpu><nodes>1</nodes><mhz>1</mhz></cpu></node>"
STRANGER = (
    "<domain type='test'><name>{name}</name><memory unit='MiB'>64</memory><os><type>hvm</type></os>"
    "<metadata><instance xmlns='urn:backfill:instance:1' cluster='other' node='{name}'"
    " generation='1' cpus='1' memory_mb='64' created_s='1.0'/></metadata></domain>"
)


class Cable:
    """A connection that can be cut; everything else goes to the real one."""

    def __init__(self, real: Any, cut: set[str], uri: str) -> None:
        self._real, self._cut, self._uri = real, cut, uri

    def isAlive(self) -> int:  # noqa: N802 - libvirt's own name
        return 0 if self._uri in self._cut else int(self._real.isAlive())

    def getHostname(self) -> str:  # noqa: N802 - as above; otherwise all of them are this machine
        return f"{Path(self._uri).stem}.site"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class TestHypervisor(Hypervisor):
    """The test driver lacks statistics, migrations, paused restores, cables and flags of undefine."""

    __test__ = False

    def _totals(self, connection: Any) -> Resources:
        _model, memory_mb, cpus, *_rest = connection.getInfo()
        return Resources(cpus, memory_mb)

    def _refuse_if_leaving(self, domain: Any, name: str) -> None:
        assert domain.name() == name

    def restore(self, name: str, path: Path, document: str | None = None) -> None:
        if document is not None:
            # It has to write to the file, which a checkpoint may share; a real libvirtd only reads it.
            own = path.with_name(f"{path.name}.own")
            shutil.copyfile(path, own)
            own.replace(path)
            self._link.call(name, lambda connection: connection.saveImageDefineXML(str(path), document))
        self._link.call(name, lambda connection: connection.restore(str(path)))
        self._on(name, lambda domain: domain.suspend())

    def _throttle(self, domain: Any, percent: int | None) -> None:
        raise RefusedError(domain.name(), "the test driver's machines have no CPU quota")

    def set_link(self, name: str, up: bool) -> None:
        """The test driver's cards have no cable that could be pulled."""
        assert self.find(name) is not None, up

    def _own_disks(self, domain: Any, name: str) -> None:
        """The test driver's machines have no emulator that could own a disk."""

    def _has_sent_all(self, domain: Any) -> bool:
        """Nor one that could be left behind in the middle of a save."""
        assert domain.name()
        return False

    def _keeps_region(self, domain: Any) -> bool:
        """Nor has any of them memory of a region."""
        assert domain.name()
        return False

    def _undefine(self, domain: Any) -> None:
        domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)


class WithoutWeights(TestHypervisor):
    """A host that has no control group for CPU weights, and says so as a German libvirtd does."""

    __test__ = False

    def start(self, name: str) -> int | None:
        if "<cputune>" in self.document(name):
            self._link.call(name, _refuse_weights)
        return super().start(name)


def _refuse_weights(_connection: object) -> None:
    error = libvirt.libvirtError("")
    code, said = libvirt.VIR_ERR_CONFIG_UNSUPPORTED, "CPU-Gewichte gibt es auf diesem Rechner nicht"
    error.err = (code, libvirt.VIR_FROM_QEMU, said, 2, None, None, None, -1, -1)
    raise error


class TestDriverRig:
    """Two hosts: libvirt's default test host, shared by all connections, and one of a file."""

    __test__ = False
    image = "small"
    abilities = frozenset({STRANGERS, IMAGES, CARRY, SAVE_PAUSED, HIDE})

    def __init__(
        self,
        directory: Path,
        kind: type[TestHypervisor] = TestHypervisor,
        directories: dict[str, str] | None = None,
        numa: NumaTerms | None = None,
    ) -> None:
        self._kind = kind
        (directory / "shared").mkdir()
        (directory / "node.xml").write_text(NODE)
        for name in ("vmlinuz", "initrd", "disk.raw", "munge.key"):
            (directory / name).write_bytes(b"\0" * 512)
        self.events: list[tuple[str, str]] = []
        self.config = LibvirtConfig(
            cluster=CLUSTER,
            uris={"hv1": "test:///default", "hv2": f"test://{directory}/node.xml"},
            directory=str(directory / "shared"),
            bridge="br0",
            surroundings=Surroundings("10.77.0.1", "10.77.0.1:6817", str(directory / "munge.key")),
            images={
                "small": ImageFiles(
                    str(directory / "vmlinuz"),
                    str(directory / "initrd"),
                    str(directory / "disk.raw"),
                    "console=ttyS0",
                )
            },
            nodes={"hv1": "bm1"},
            directories=directories or {},
            hardware=Hardware(domain_type="test"),
            limits=LibvirtLimits(connect_s=5, call_s=5),
            networks={NETWORK: "br1"},
            numa=numa,
        )
        self._cut: set[str] = set()
        # The test host lives as long as a connection to it.
        self.keeper = libvirt.open("test:///default")
        self.provider = LibvirtProvider(self.config, self._event, self._hypervisor)

    def _event(self, host: str, name: str) -> None:
        self.events.append((host, name))

    def _hypervisor(
        self, host: str, uri: str, limits: LibvirtLimits, on_event: OnEvent | None, book: HostBook | None
    ) -> Hypervisor:
        return self._kind(host, uri, limits, on_event, book, self._open)

    def _open(self, uri: str) -> Cable:
        if uri in self._cut:
            raise libvirt.libvirtError("the cable is cut")
        return Cable(libvirt.open(uri), self._cut, uri)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 180
        while not holds():
            assert time.monotonic() < deadline_s
            time.sleep(0.005)

    def booted(self, name: str) -> None:
        """Test guests have nothing to boot."""

    @contextmanager
    def unreachable(self, host: str) -> Iterator[None]:
        self._cut.add(self.config.uris[host])
        try:
            yield
        finally:
            self._cut.clear()

    @contextmanager
    def hidden(self, host: str, name: str) -> Iterator[str]:
        with hidden(self.provider._pool.store_on(host).memory(name)) as path:
            yield path

    @contextmanager
    def stranger(self, host: str, name: str) -> Iterator[None]:
        assert host == "hv1"
        domain = self.keeper.defineXML(STRANGER.format(name=name))
        domain.create()
        try:
            yield
            assert domain.isActive()
        finally:
            domain.destroy()
            domain.undefine()

    def end(self) -> None:
        for name in self.provider.observe("hv1").instances:
            self.provider.delete("hv1", name)
        self.provider.close()
        self.keeper.close()
