"""Real guests behind Nova's libvirt driver: what is in memory survives pause, suspend and moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import libvirt
import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.settings import CloudPlace
from backfill.lab.cloud import guests, second
from backfill.lab.cloud.handle import CloudHandle
from backfill.lab.spec import LIBVIRT_PORT
from tests.contract.instance_rig import spec
from tests.real.cloud_rig import cloud_with_guests
from tests.real.openstack_rig import SHAPE, OpenStackRig, connect, nova, wait
from tests.real.tenant_rig import LIST

pytestmark = [pytest.mark.real, pytest.mark.soak]
LIMIT_S = 300.0
COUNT = "COUNT "


class GuestRig(OpenStackRig):
    """The project `east` as one pool, its servers in the zone of real guests."""

    image = guests.COUNTER
    cloud_name, places, zones = "east", {"pool": CloudPlace("east")}, (guests.ZONE,)

    def __init__(self, cloud: CloudHandle, **shape_too: Any) -> None:
        shape = replace(SHAPE, flavours=("tiny",), zones=self.zones, config_drive=True, **shape_too)
        super().__init__(cloud.clouds_yaml, places=self.places, shape=shape)
        self.cloud = cloud
        # As seen from the cloud's network, in which the test is.
        first, other = f"127.0.0.1:{LIBVIRT_PORT}", f"{second.ADDRESS}:{LIBVIRT_PORT}"
        self.libvirts = [libvirt.open(f"qemu+tcp://{at}/system") for at in (first, other)]

    def end(self) -> None:
        for hypervisor in self.libvirts:
            hypervisor.close()
        super().end()

    def state(self, host: str = "pool") -> InstanceState | None:
        """What the driver says of it."""
        seen = self.provider.read(host, "vn1")
        return None if seen is None else seen.state

    def domains(self, number: int = 0) -> list[libvirt.virDomain]:
        """The guests of one of the hosts as its hypervisor sees them."""
        return list(self.libvirts[number].listAllDomains())

    def domain(self) -> libvirt.virDomain:
        """The one guest."""
        (found,) = [*self.domains(0), *self.domains(1)]
        return found

    def counts(self) -> list[int]:
        """The numbers on the console, from the file that QEMU writes."""
        (server,) = nova(self.clouds, self.cloud_name, "GET", LIST)["servers"]
        log = self.cloud.dir / "nova/instances" / server["id"] / "console.log"
        lines = log.read_text(errors="replace").replace("\r", "").split("\n")[:-1]
        return [int(line[len(COUNT) :]) for line in lines if line.startswith(COUNT)]

    def counting(self) -> None:
        """Wait until it has booted and counts."""
        wait(lambda: len(self.counts()) > 3, LIMIT_S)

    def goes_on(self, after: int) -> None:
        """Wait for numbers beyond this one; a guest that began anew would begin with 1."""
        wait(lambda: self.counts()[-1:] not in ([], [after]), LIMIT_S)
        seen = self.counts()
        assert seen[-1] > after
        assert seen == list(range(seen[0], seen[0] + len(seen)))


class HostsRig(GuestRig):
    """The two compute hosts with real guests, seen by an administrator."""

    cloud_name, zones = "admin", ("",)
    places = {"hv1": CloudPlace("admin", guests.HOST), "hv2": CloudPlace("admin", second.HOST)}  # noqa: RUF012


@pytest.fixture(scope="module")
def cloud() -> Iterator[CloudHandle]:
    made = cloud_with_guests()
    with made.network():
        yield made


@pytest.fixture
def rig(cloud: CloudHandle) -> Iterator[GuestRig]:
    made = GuestRig(cloud)
    yield made
    made.end()


def test_a_counter_goes_on_after_pause_and_suspend(rig: GuestRig) -> None:
    """Through our driver; that it stood still in between is what libvirt and the console say."""
    rig.provider.create(spec(rig))
    wait(lambda: rig.state() is InstanceState.RUNNING, LIMIT_S)
    rig.counting()
    assert COUNT in rig.provider.console("pool", "vn1")

    rig.provider.pause("pool", "vn1")
    assert rig.domain().state()[0] == libvirt.VIR_DOMAIN_PAUSED
    stopped = rig.counts()
    assert all(rig.counts() == stopped for _ in range(10))
    rig.provider.thaw("pool", "vn1")
    rig.goes_on(stopped[-1])

    rig.provider.suspend("pool", "vn1")
    before = rig.counts()[-1]
    assert rig.domain().state()[0] == libvirt.VIR_DOMAIN_SHUTOFF
    assert rig.domain().hasManagedSaveImage()
    rig.provider.restore("pool", "vn1")
    assert rig.state() is InstanceState.PAUSED
    assert not rig.domain().isActive()  # its memory waits for the thaw
    rig.provider.thaw("pool", "vn1")
    rig.goes_on(before)

    rig.provider.delete("pool", "vn1")
    assert rig.domains() == []


@pytest.fixture
def admin(cloud: CloudHandle) -> Iterator[HostsRig]:
    made = HostsRig(cloud)
    yield made
    made.end()


def test_a_counter_goes_on_when_its_guest_moves_live(admin: HostsRig) -> None:
    """There while it runs, back while it is paused: one guest at any time, and no number twice."""
    admin.provider.create(spec(admin))
    wait(lambda: admin.state("hv1") is InstanceState.RUNNING, LIMIT_S)
    admin.counting()
    before = admin.counts()[-1]
    admin.provider.migrate("hv1", "vn1", "hv2")
    wait(lambda: admin.counts()[-1:] != [], LIMIT_S)
    arrived = admin.counts()[-1]
    assert arrived >= before
    assert (admin.state("hv1"), admin.state("hv2")) == (None, InstanceState.RUNNING)
    assert [len(admin.domains(number)) for number in (0, 1)] == [0, 1]
    admin.goes_on(arrived)

    admin.provider.pause("hv2", "vn1")
    before = admin.counts()[-1]
    admin.provider.migrate("hv2", "vn1", "hv1")
    assert admin.state("hv1") is InstanceState.PAUSED
    assert admin.domain().state()[0] == libvirt.VIR_DOMAIN_PAUSED
    admin.provider.thaw("hv1", "vn1")
    admin.goes_on(before)
    admin.provider.delete("hv1", "vn1")
    assert [admin.domains(number) for number in (0, 1)] == [[], []]


def test_a_guest_that_is_off_moves_with_its_disk(admin: HostsRig) -> None:
    """Cold: it is off on the other host, and boots there."""
    admin.provider.create(spec(admin))
    wait(lambda: admin.state("hv1") is InstanceState.RUNNING, LIMIT_S)
    admin.counting()
    (server,) = nova(admin.clouds, "admin", "GET", LIST)["servers"]
    path = f"/servers/{server['id']}/action"
    nova(admin.clouds, "admin", "POST", path, {"os-stop": None})
    wait(lambda: admin.state("hv1") is InstanceState.OFF, LIMIT_S)
    admin.provider.migrate("hv1", "vn1", "hv2")
    assert (admin.state("hv1"), admin.state("hv2")) == (None, InstanceState.OFF)
    nova(admin.clouds, "admin", "POST", path, {"os-start": None})
    wait(lambda: admin.state("hv2") is InstanceState.RUNNING, LIMIT_S)
    wait(lambda: len(admin.domains(1)) == 1 and admin.domains(1)[0].isActive() == 1, LIMIT_S)
    admin.counting()


def test_a_guest_boots_from_a_volume_and_its_memory_survives(cloud: CloudHandle) -> None:
    """Its only disk is Cinder's, through a suspend and back; with the guest the volume goes."""
    rig = GuestRig(cloud, volume_gb=1)
    try:
        rig.provider.create(spec(rig))
        wait(lambda: rig.state() is InstanceState.RUNNING, LIMIT_S)
        (volume,) = connect(rig.clouds, "east").block_storage.volumes()
        disks = re.findall(r"<disk type='file' device='disk'>.*?</disk>", rig.domain().XMLDesc(), re.DOTALL)
        assert [volume.id in disk for disk in disks] == [True]
        rig.counting()
        rig.provider.suspend("pool", "vn1")
        before = rig.counts()[-1]
        rig.provider.restore("pool", "vn1")
        rig.provider.thaw("pool", "vn1")
        rig.goes_on(before)
        rig.provider.delete("pool", "vn1")
        assert rig.domains() == []
        wait(lambda: not list(connect(rig.clouds, "east").block_storage.volumes()), LIMIT_S)
    finally:
        rig.end()
