"""The InstanceProvider contract against the test hypervisors inside the libvirt library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvirt
import pytest

from backfill.core.fleet import InstanceState
from backfill.core.quantities import Resources
from backfill.drivers.libvirt.hypervisor import Hypervisor, OnEvent
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import (
    Hardware,
    ImageFiles,
    LibvirtConfig,
    Limits,
    Surroundings,
)
from backfill.ports import AlreadyThereError, BusyError, RefusedError, UnreachableError
from tests.contract.instance_provider import (
    CLUSTER,
    IMAGES,
    STRANGERS,
    InstanceProviderContract,
    born,
    spec,
    state,
)

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class TestHypervisor(Hypervisor):
    """The test driver lacks statistics, migrations, paused restores and flags of undefine."""

    __test__ = False

    def _totals(self, connection: Any) -> Resources:
        _model, memory_mb, cpus, *_rest = connection.getInfo()
        return Resources(cpus, memory_mb)

    def _refuse_if_leaving(self, domain: Any, name: str) -> None:
        assert domain.name() == name

    def restore(self, name: str, path: Path) -> None:
        self._link.call(name, lambda connection: connection.restore(str(path)))
        self._on(name, lambda domain: domain.suspend())

    def _own_disks(self, domain: Any, name: str, socket: Path) -> None:
        """The test driver's machines have no emulator that could own a disk."""

    def _undefine(self, domain: Any) -> None:
        domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)


class WithoutWeights(TestHypervisor):
    """A host that has no control group for CPU weights, and says so as libvirt does."""

    __test__ = False

    def start(self, name: str) -> int | None:
        if "<cputune>" in self.document(name):
            raise RefusedError(name, "CPU tuning is not available on this host")
        return super().start(name)


class TestDriverRig:
    """Two hosts: libvirt's default test host, shared by all connections, and one of a file."""

    __test__ = False
    image = "small"
    abilities = frozenset({STRANGERS, IMAGES})

    def __init__(self, directory: Path, kind: type[TestHypervisor] = TestHypervisor) -> None:
        self._kind = kind
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
                    str(directory / "vmlinuz"), str(directory / "initrd"),
                    str(directory / "disk.raw"), "console=ttyS0",
                )
            },
            nodes={"hv1": "bm1"},
            hardware=Hardware(domain_type="test"),
            limits=Limits(connect_s=5, call_s=5),
        )  # fmt: skip
        self._cut: set[str] = set()
        # The test host lives as long as a connection to it.
        self.keeper = libvirt.open("test:///default")
        self.provider = LibvirtProvider(self.config, self._event, self._hypervisor)

    def _event(self, host: str, name: str) -> None:
        self.events.append((host, name))

    def _hypervisor(
        self, host: str, uri: str, limits: Limits, on_event: OnEvent | None
    ) -> Hypervisor:
        return self._kind(host, uri, limits, on_event, self._open)

    def _open(self, uri: str) -> Cable:
        if uri in self._cut:
            raise libvirt.libvirtError("the cable is cut")
        return Cable(libvirt.open(uri), self._cut, uri)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 10
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


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


class TestLibvirtTestDriver(InstanceProviderContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[TestDriverRig]:
        made = TestDriverRig(tmp_path)
        yield made
        made.end()


def test_a_host_knows_its_slurm_node(rig: TestDriverRig) -> None:
    """A host of a harvest pool is a Slurm node itself; one of a burst pool is none."""
    assert rig.provider.observe("hv1").host.node == "bm1"
    assert rig.provider.observe("hv2").host.node is None


def test_changes_are_reported_as_hints(rig: TestDriverRig) -> None:
    """Whoever asked for events hears of a change without looking."""
    host = born(rig)
    rig.until(lambda: (host, "vn1") in rig.events)
    rig.events.clear()
    rig.keeper.lookupByName("vn1").suspend()
    rig.until(lambda: (host, "vn1") in rig.events)
    assert state(rig) is InstanceState.PAUSED


def test_a_host_without_cpu_weights_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance runs at ordinary weight, and the operator is told what that means."""
    rig = TestDriverRig(tmp_path, WithoutWeights)
    born(rig)
    assert "hv1 has no CPU weights" in caplog.text
    rig.end()


def test_deletion_leaves_no_file(rig: TestDriverRig) -> None:
    """Disk, seed, memory, console and claims go with the instance."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    folder = Path(rig.config.directory, CLUSTER)
    assert {file.name for file in (folder / "vn1").iterdir()} >= {"disk.qcow2", "memory.save"}
    rig.provider.delete(host, "vn1")
    assert list(folder.iterdir()) == []


def test_an_interrupted_creation_is_begun_anew(rig: TestDriverRig) -> None:
    """A defined but never started domain, or files alone, do not stand in the way."""
    host = born(rig)
    rig.keeper.lookupByName("vn1").destroy()
    assert state(rig) is InstanceState.OFF
    rig.provider.create(spec(rig, generation=2))
    assert state(rig) is InstanceState.RUNNING
    domain = rig.keeper.lookupByName("vn1")
    domain.destroy()
    domain.undefine()
    rig.provider.create(spec(rig, generation=3))
    seen = rig.provider.read(host, "vn1")
    assert seen is not None
    assert seen.tag.generation == 3


def test_a_failed_creation_leaves_nothing(rig: TestDriverRig) -> None:
    """When the hypervisor refuses, definition and files are removed again."""
    Path(rig.config.surroundings.munge_key).unlink()
    with pytest.raises(Exception, match=r"munge\.key"):
        rig.provider.create(spec(rig))
    assert state(rig) is None
    assert not Path(rig.config.directory, CLUSTER, "vn1").exists()


def test_a_restore_is_refused_while_it_runs_elsewhere(rig: TestDriverRig) -> None:
    """The same instance must never be active on two hosts."""
    host, other = born(rig), "hv2"
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    twin = rig.provider._pool.hypervisors[other]
    twin.define("vn1", document)
    twin.start("vn1")
    with pytest.raises(BusyError, match="active on hv2"):
        rig.provider.restore(host, "vn1")
    assert state(rig) is InstanceState.SUSPENDED
    twin.destroy("vn1")
    twin.undefine("vn1")
    rig.provider.restore(host, "vn1")


def test_a_silent_host_forbids_a_start_only_if_it_may_have_it(rig: TestDriverRig) -> None:
    """A dead host must not stop everybody, but one that took part in a migration must."""
    host = born(rig)
    claims = Path(rig.config.directory, CLUSTER, "vn1", "claims")
    rig.provider.suspend(host, "vn1")
    with rig.unreachable("hv2"):
        rig.provider.restore(host, "vn1")
        rig.provider.suspend(host, "vn1")
        claims.write_text("hv1\nhv2\n")
        with pytest.raises(UnreachableError, match="may still be on hv2"):
            rig.provider.restore(host, "vn1")
        rig.provider.create(spec(rig, "vn2"))
    rig.provider.restore(host, "vn1")
    assert claims.read_text() == "hv1\n"


def test_files_stay_while_another_host_has_the_instance(rig: TestDriverRig) -> None:
    """Deleting a left-over definition must not take the disk from under the real one."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    rig.provider._pool.hypervisors["hv2"].define("vn1", document)
    rig.provider._pool.store.claim("vn1", {"hv1", "hv2"})
    rig.provider.delete("hv2", "vn1")
    assert state(rig) is InstanceState.SUSPENDED
    rig.provider.restore(host, "vn1")


def test_a_half_done_move_is_finished_by_the_next_call(rig: TestDriverRig) -> None:
    """Defined on both hosts, as after a crash between two steps: the same call tidies up."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    rig.provider._pool.hypervisors["hv2"].define("vn1", document)
    rig.provider._pool.store.claim("vn1", {"hv1", "hv2"})
    rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is None
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete("hv2", "vn1")


def test_only_one_change_at_a_time(rig: TestDriverRig) -> None:
    """A second change of the same instance is told to come back; a pause is not held up."""
    host = born(rig)
    with rig.provider._pool.changing("vn1"):
        with pytest.raises(BusyError, match="under way"):
            rig.provider.suspend(host, "vn1")
        with pytest.raises(BusyError, match="under way"):
            rig.provider.delete(host, "vn1")
        rig.provider.pause(host, "vn1")
    assert state(rig) is InstanceState.PAUSED


def test_a_living_old_generation_is_named_in_the_refusal(rig: TestDriverRig) -> None:
    """The operator learns which generation stands in the way and what to do."""
    born(rig)
    with pytest.raises(AlreadyThereError, match=r"generation 1 of it is running.*delete"):
        rig.provider.create(spec(rig, generation=2))
    assert state(rig) is InstanceState.RUNNING
