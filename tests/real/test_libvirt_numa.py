"""Instances on NUMA nodes with real libvirt and QEMU: what the kernel holds their threads to.

This machine has one NUMA node. So each host of the lab tells of one that has one CPU only, another
one on each host: what is bound is held to less than the machine then, and a move changes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import libvirt
import pytest

from backfill.core.model.fleet import Checkpoint, CloneMethod, InstanceState
from backfill.drivers.libvirt.connection.cells import HostCell
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import NumaTerms
from backfill.lab.cluster import Lab
from tests.contract.instance_numa import InstanceNumaContract
from tests.contract.instance_rig import born, known, spec, state
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]


def own_cpu(host: str) -> int:
    """The last CPU of this machine for the first host, the first one for the other."""
    every = sorted(os.sched_getaffinity(0))
    return every[-1] if host.endswith("1") else every[0]


class OneCpuHypervisor(Hypervisor):
    """Tells of one small NUMA node, which is the machine's first one with one of its CPUs."""

    def cells(self) -> tuple[HostCell, ...]:
        return (HostCell(0, 1, str(own_cpu(self.host)), 700),)


class BoundRig(LibvirtRig):
    """The real driver that binds, on hosts as above."""

    def __init__(self, lab: Lab, make: type[Hypervisor] = OneCpuHypervisor, memory: str = "strict") -> None:
        super().__init__(lab, numa=NumaTerms(memory))
        self.provider.close()
        self.provider = LibvirtProvider(self.config, lambda *event: self.events.append(event), make)

    def threads(self, host: str, name: str) -> set[str]:
        """The CPUs on which each thread of its emulator may run, as the kernel says."""
        tasks = Path(f"/proc/{self.qemu_pid(host, name)}/task").glob("*/status")
        fields = [dict(line.split(":", 1) for line in t.read_text().splitlines()) for t in tasks]
        return {field["Cpus_allowed_list"].strip() for field in fields}

    def told(self, host: str, name: str) -> tuple[set[Any], Any, dict[str, Any]]:
        """What libvirt says of its CPUs, of its emulator, and of its memory."""
        connection = libvirt.open(self.lab.libvirt_uri(host))
        try:
            domain = connection.lookupByName(name)
            return set(domain.vcpuPinInfo()), domain.emulatorPinInfo(), domain.numaParameters()
        finally:
            connection.close()

    def held(self, host: str, name: str = "vn1") -> None:
        """It is held to the CPU and the NUMA node of its host, in the kernel's eyes and in libvirt's."""
        cpu = own_cpu(host)
        assert self.threads(host, name) == {str(cpu)}
        virtual, emulator, memory = self.told(host, name)
        assert all(pins[cpu] and sum(pins) == 1 for pins in (*virtual, emulator))
        assert (memory["numa_nodeset"], memory["numa_mode"]) == ("0", libvirt.VIR_DOMAIN_NUMATUNE_MEM_STRICT)


@pytest.fixture(scope="module", params=HYPERVISORS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running_lab("libvirt-numa", request.param) as up:
        yield up


@pytest.fixture
def rig(lab: Lab) -> Iterator[BoundRig]:
    made = BoundRig(lab)
    yield made
    made.end()


@pytest.mark.soak
class TestBoundRealLibvirt(InstanceNumaContract):
    @pytest.fixture
    def rig(self, rig: BoundRig) -> BoundRig:
        return rig


@pytest.mark.parametrize("method", [CloneMethod.LINKED, CloneMethod.INSTANT])
def test_all_threads_are_held_wherever_it_goes(rig: BoundRig, method: CloneMethod) -> None:
    """Made, throttled, restored from disk, moved while it stands still and back while it runs."""
    host, other = rig.provider.hosts[:2]
    rig.provider.create(replace(spec(rig), method=method))
    rig.booted("vn1")
    rig.held(host)
    rig.provider.throttle(host, "vn1", 20)
    assert known(rig, host).throttled
    rig.held(host)
    rig.provider.throttle(host, "vn1", None)
    assert not known(rig, host).throttled
    rig.provider.suspend(host, "vn1")
    rig.provider.restore(host, "vn1")
    rig.held(host)
    rig.provider.migrate(host, "vn1", other)
    rig.held(other)
    rig.provider.thaw(other, "vn1")
    rig.provider.throttle(other, "vn1", 20)
    rig.provider.migrate(other, "vn1", host)
    rig.held(host)
    assert known(rig, host).throttled


def test_a_checkpoint_is_held_to_the_host_that_it_is_put_back_on(rig: BoundRig) -> None:
    """Its memory was written under another host's CPUs; a trial there needs none of them either."""
    host, other = rig.provider.hosts[:2]
    born(rig)
    rig.booted("vn1")
    rig.provider.suspend(host, "vn1")
    rig.provider.keep(host, Checkpoint("cp1", "vn1", generation=1, host=host, members=("vn1",)), None)
    rig.until(lambda: all(kept.checksum for kept in rig.provider.checkpoints()))
    rig.provider.delete(host, "vn1")
    rig.provider.rehearse(other, "cp1")
    rig.provider.put_back(other, "vn1", "cp1")
    rig.provider.restore(other, "vn1")
    rig.held(other)
    assert state(rig, host=other) is InstanceState.PAUSED
    rig.provider.drop("cp1")


def test_a_real_host_tells_of_its_numa_nodes(lab: Lab) -> None:
    """Of those that Linux has, with their CPUs and nearly all of their memory."""
    rig = BoundRig(lab, Hypervisor, "preferred")
    seen = rig.provider.observe(rig.provider.hosts[0]).host
    nodes = {int(p.name.removeprefix("node")): p for p in Path("/sys/devices/system/node").glob("node[0-9]*")}
    assert {node.number for node in seen.numa} <= nodes.keys()
    for node in seen.numa:
        words = (nodes[node.number] / "meminfo").read_text().split()
        assert node.memory_mb == int(words[words.index("MemTotal:") + 1]) // 1024
        assert node.cpus == len(list(nodes[node.number].glob("cpu[0-9]*")))
    host = born(rig)
    assert known(rig, host).numa in nodes
    _, _, memory = rig.told(host, "vn1")
    assert memory["numa_mode"] == libvirt.VIR_DOMAIN_NUMATUNE_MEM_PREFERRED
    rig.end()
