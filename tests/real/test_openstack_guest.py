"""A real guest behind Nova's libvirt driver: what its memory holds survives pause and suspend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libvirt
import pytest

from backfill.core.fleet import InstanceState
from backfill.drivers.openstack.settings import Place
from backfill.lab.cloud import guests
from backfill.lab.cloud.handle import Cloud
from backfill.lab.spec import LIBVIRT_PORT
from tests.contract.instance_rig import spec
from tests.real.cloud_rig import cloud_with_guests
from tests.real.openstack_rig import SHAPE, OpenStackRig, nova, wait
from tests.real.tenant_rig import LIST

pytestmark = [pytest.mark.real, pytest.mark.soak]
LIMIT_S = 300.0
COUNT = "COUNT "


class GuestRig(OpenStackRig):
    """The project `east` as one pool, its servers in the zone of real guests."""

    image = guests.COUNTER

    def __init__(self, cloud: Cloud) -> None:
        shape = replace(SHAPE, flavours=("tiny",), zones=(guests.ZONE,), config_drive=True)
        super().__init__(cloud.clouds_yaml, places={"pool": Place("east")}, shape=shape)
        self.cloud = cloud
        self.libvirt = libvirt.open(f"qemu+tcp://127.0.0.1:{LIBVIRT_PORT}/system")

    def end(self) -> None:
        self.libvirt.close()
        super().end()

    def state(self) -> InstanceState | None:
        """What the driver says of it."""
        seen = self.provider.read("pool", "vn1")
        return None if seen is None else seen.state

    def domain(self) -> libvirt.virDomain:
        """The one guest as its hypervisor sees it."""
        (found,) = self.libvirt.listAllDomains()
        return found

    def counts(self) -> list[int]:
        """The numbers on the console, from the file that QEMU writes."""
        (server,) = nova(self.clouds, "east", "GET", LIST)["servers"]
        log = self.cloud.dir / "nova/instances" / server["id"] / "console.log"
        lines = log.read_text(errors="replace").replace("\r", "").split("\n")[:-1]
        return [int(line[len(COUNT) :]) for line in lines if line.startswith(COUNT)]

    def goes_on(self, after: int) -> None:
        """Wait for numbers beyond this one; a guest that began anew would begin with 1."""
        wait(lambda: bool(self.counts()) and self.counts()[-1] != after, LIMIT_S)
        seen = self.counts()
        assert seen[-1] > after
        assert seen == list(range(seen[0], seen[0] + len(seen)))


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    made = cloud_with_guests()
    with made.network():
        yield made


@pytest.fixture
def rig(cloud: Cloud) -> Iterator[GuestRig]:
    made = GuestRig(cloud)
    yield made
    made.end()


def test_a_counter_goes_on_after_pause_and_suspend(rig: GuestRig) -> None:
    """Through our driver; that it stood still in between is what libvirt and the console say."""
    rig.provider.create(spec(rig))
    wait(lambda: rig.state() is InstanceState.RUNNING, LIMIT_S)
    wait(lambda: len(rig.counts()) > 3, LIMIT_S)
    assert COUNT in rig.provider.console("pool", "vn1")

    rig.provider.pause("pool", "vn1")
    assert rig.domain().state()[0] == libvirt.VIR_DOMAIN_PAUSED
    stopped = rig.counts()
    assert all(rig.counts() == stopped for _ in range(10))
    rig.provider.thaw("pool", "vn1")
    rig.goes_on(stopped[-1])

    before = rig.counts()[-1]
    rig.provider.suspend("pool", "vn1")
    assert rig.domain().state()[0] == libvirt.VIR_DOMAIN_SHUTOFF
    assert rig.domain().hasManagedSaveImage()
    rig.provider.restore("pool", "vn1")
    assert rig.state() is InstanceState.PAUSED
    assert not rig.domain().isActive()  # its memory waits for the thaw
    rig.provider.thaw("pool", "vn1")
    rig.goes_on(before)

    rig.provider.delete("pool", "vn1")
    assert rig.libvirt.listAllDomains() == []
