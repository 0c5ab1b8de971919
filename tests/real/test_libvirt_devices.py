"""Shared memory regions in real guests: seen by the guest, shared by a job, given back, moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.core.model.devices import Sharing, Wanted
from backfill.drivers.libvirt.settings import Hardware
from backfill.engine.execute.devices import move_with_devices
from backfill.lab.cluster import Lab
from backfill.ports.errors import NoCapacityError, RefusedError
from tests.contract.instance_devices import InstanceDevicesContract
from tests.contract.instance_memory import InstanceMemoryContract
from tests.contract.instance_rig import CLUSTER, EVERYTHING, born
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]
# As when a silent agent is asked again and again, and then does everything at once.
_AT_ONCE = """
for run in 1 2 3 4 5 6; do /usr/local/sbin/backfill-devices plugged root 1 2>&1 & done
wait
ls /run/backfill/regions
"""
_COUNT = "grep -l 0x1110 /sys/bus/pci/devices/*/device 2>/dev/null | wc -l"


class DeviceRig(LibvirtRig):
    abilities = EVERYTHING

    def regions(self, host: str, name: str) -> int:
        """How many ivshmem devices (1af4:1110) the guest sees."""
        return int(self.in_guest(host, name, _COUNT))

    def shared_files(self, host: str) -> list[str]:
        """What the host keeps in memory for guests that share it."""
        listed = self.lab.run(host, ["ls", "/dev/shm"], check=True).stdout.split()
        return sorted(name for name in listed if name.startswith("backfill-"))

    def rights(self, host: str, region: str) -> list[str]:
        """Mode and size of the file behind a region."""
        argv = ["stat", "-c", "%a %s %u", f"/dev/shm/{region}"]
        return self.lab.run(host, argv, check=True).stdout.split()


@pytest.fixture(scope="module", params=HYPERVISORS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running_lab("libvirt-dev", request.param) as up:
        yield up


@pytest.fixture(params=["q35"])
def rig(lab: Lab, request: pytest.FixtureRequest) -> Iterator[DeviceRig]:
    kind = lab.domain_type
    hardware = Hardware(domain_type=kind, machine=request.param, balloon=True, slots=2, slot_mb=8)
    made = DeviceRig(lab, hardware=hardware)
    yield made
    made.end()


class TestRealDevices(InstanceDevicesContract, InstanceMemoryContract):
    """The contract with real guests, which see devices come and go and have a balloon."""


def test_the_guest_sees_its_region_until_it_is_given_back(rig: DeviceRig) -> None:
    """While it is plugged the memory cannot be written, and that is said before anything is done.

    Two instances of one job share one region; another job is refused while the rule is one job. Whoever
    was there before, by the name that older versions had, keeps nobody from it.
    """
    host = born(rig)
    rig.booted("vn1")
    trapped = f"backfill-{CLUSTER}-7-{host}"
    trap = f"/dev/shm/{trapped}"
    for argv in (["mkdir", trap], ["touch", f"{trap}/full"], ["chown", "-R", "1000", trap]):
        rig.lab.run(host, argv, check=True)
    held = rig.provider.hold(Wanted("vn1", host, "7", "ann", regions=(4,)), Sharing.ONE_JOB)
    user = rig.provider._pool.on(host).qemu_user()
    assert user is not None
    private = ["600", str(4 << 20), str(user[0])]
    assert rig.rights(host, held.regions[0].id) == private
    rig.until(lambda: rig.regions(host, "vn1") == 1)
    assert rig.in_guest(host, "vn1", _AT_ONCE).split() == ["1"]
    hypervisor = rig.provider._pool.on(host)
    assert hypervisor.keeps_region("vn1")
    with pytest.raises(RefusedError, match="devices are plugged"):
        rig.provider.suspend(host, "vn1")
    born(rig, "vn2")
    rig.booted("vn2")
    with pytest.raises(NoCapacityError, match="job 7 holds"):
        rig.provider.hold(Wanted("vn2", host, "8", "ann", regions=(4,)), Sharing.ONE_JOB)
    theirs = rig.provider.hold(Wanted("vn2", host, "7", "ann", regions=(4,)), Sharing.ONE_JOB)
    assert {h.regions for h in rig.provider.holdings()} == {theirs.regions}
    assert rig.rights(host, held.regions[0].id) == private
    rig.provider.give_back(host, "vn1")
    assert not hypervisor.keeps_region("vn1")
    rig.until(lambda: rig.regions(host, "vn1") == 0)
    assert rig.regions(host, "vn2") == 1
    assert rig.shared_files(host) == sorted([theirs.regions[0].id, trapped])
    rig.provider.delete(host, "vn2")
    assert rig.provider.holdings() == ()
    assert rig.shared_files(host) == [trapped]
    rig.lab.run(host, ["rm", "-r", trap], check=True)


def test_memory_that_is_shared_no_more_is_given_back_to_every_host(rig: DeviceRig) -> None:
    """After a move the source keeps nothing; what a crash left goes with the next one that does.

    What another cluster's or nobody's files are called may look like ours: they stay.
    """
    source, target = born(rig), rig.provider.hosts[1]
    rig.booted("vn1")
    wanted = Wanted("vn1", source, "7_3", "ann", regions=(4,))
    held = rig.provider.hold(wanted, Sharing.ANYONE)
    assert held.regions[0].id in rig.shared_files(source)
    theirs = [f"backfill-{CLUSTER}-2-8-{source}", f"backfill-other-{CLUSTER}-8-{source}"]
    for name in (*theirs, f"backfill-{CLUSTER}-6-{source}", f"backfill-{CLUSTER}-5-{source}-{'0a' * 16}"):
        rig.lab.run(source, ["touch", f"/dev/shm/{name}"], check=True)
    move_with_devices(rig.provider, source, "vn1", target)
    assert rig.shared_files(source) == theirs
    rig.provider.give_back(target, "vn1")
    assert rig.shared_files(target) == []
    rig.lab.run(source, ["rm", *(f"/dev/shm/{name}" for name in theirs)], check=True)


@pytest.mark.parametrize("rig", ["pc"], indirect=True)
def test_a_holding_outlives_the_driver_and_libvirtd(rig: DeviceRig) -> None:
    """Another daemon sees it, plugs nothing twice, and gives it back."""
    host = born(rig)
    rig.booted("vn1")
    wanted = Wanted("vn1", host, "7", "ann", regions=(4,))
    held = rig.provider.hold(wanted, Sharing.ANYONE)
    rig.kill_libvirtd(host)
    rig.revive_libvirtd(host)
    other = DeviceRig(rig.lab, hardware=rig.config.hardware)
    try:
        assert other.provider.hold(wanted, Sharing.ANYONE) == held
        assert rig.regions(host, "vn1") == 1
        other.provider.give_back(host, "vn1")
        assert rig.provider.holdings() == ()
    finally:
        other.provider.close()


def test_a_host_without_such_cards_has_no_functions(rig: DeviceRig) -> None:
    """The question itself works: libvirt's node devices answer for the host."""
    assert rig.provider.virtual_functions(rig.provider.hosts[0]) == ()
