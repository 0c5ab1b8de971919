"""Virtual functions of a card that a real kernel runs: found, given to emulators, taken back.

They run inside the machine of `sriov_machine`, which is emulated. A whole guest in it, emulated
once more, takes too long to boot; one that has a kernel and looks at its devices does not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.devices import Sharing, VirtualFunction, Wanted
from backfill.drivers.libvirt.settings import Hardware, LibvirtLimits
from backfill.lab.cluster import Lab
from backfill.ports.errors import NoCapacityError
from tests.contract.instance_rig import born
from tests.real.libvirt_rig import IMAGE, LibvirtRig, running_lab
from tests.real.sriov_machine import CARD

pytestmark = pytest.mark.inside
SYS = Path("/sys")
ADDRESSES = ("0000:01:10.0", "0000:01:10.2")
# All that the guest does: say which functions of the card (8086:10ca) it has, when that changes.
_LOOKING = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t sysfs sysfs /sys
exec </dev/console >/dev/console 2>&1
before=nothing
while :; do
    now=
    for place in /sys/bus/pci/devices/*; do
        read -r id <$place/device && [ $id = 0x10ca ] && now=$now${place##*/},
    done
    [ "$now" = "$before" ] || echo "FUNCTIONS=$now;"
    before=$now
    /bin/busybox sleep 1
done
"""
_PATIENT = LibvirtLimits(connect_s=120, call_s=300, start_s=300, agent_s=300, keepalive_s=60)


class CardRig(LibvirtRig):
    """As ever, but all takes a hundred times as long."""

    def until(self, holds, limit_s: float = 1200.0) -> None:  # type: ignore[no-untyped-def]
        super().until(holds, limit_s)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backfill.lab.cluster.UP_TIMEOUT_S", 900.0)
        with running_lab("sriov") as up:
            yield up


@pytest.fixture
def rig(lab: Lab) -> Iterator[CardRig]:
    # The disk that others boot from lies on a file system without direct access.
    hardware = Hardware(domain_type=lab.domain_type, disk_cache="writeback", slots=1)
    made = CardRig(lab, hardware=hardware, limits=_PATIENT)
    yield made
    made.end()


@pytest.fixture
def looking(rig: CardRig, lab: Lab, tmp_path: Path) -> Iterator[CardRig]:
    """Its guests have nothing but a kernel and a program that looks."""
    tree = tmp_path / "tree"
    for folder in ("bin", "dev", "sys"):
        (tree / folder).mkdir(parents=True)
    (tree / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (tree / "init").write_text(_LOOKING)
    for program in ("bin/busybox", "init"):
        (tree / program).chmod(0o755)
    initrd = lab.shared / "looking"  # where the hosts see it
    names = "\n".join(["bin", "bin/busybox", "dev", "sys", "init"])
    with initrd.open("wb") as output:
        cpio = ["cpio", "-o", "-H", "newc", "--quiet"]
        subprocess.run(cpio, cwd=tree, input=names.encode(), stdout=output, check=True)
    small = replace(rig.config.images[IMAGE], initrd=str(initrd))
    made = CardRig(lab, images={IMAGE: small}, hardware=rig.config.hardware, limits=_PATIENT)
    yield made
    made.end()


def said(rig: CardRig) -> str:
    """Which functions the guest has by its own last word; "?" before its first one."""
    words = re.findall(r"FUNCTIONS=(.*);", rig.console_text("vn1"))
    return words[-1] if words else "?"


def driver_of(address: str) -> str:
    """Who has it: the machine itself, or guests."""
    return (SYS / "bus/pci/devices" / address / "driver").resolve().name


def test_functions_are_found_as_the_kernel_shows_them(rig: CardRig) -> None:
    """By libvirt's node devices as in sysfs, where a function has a link to its card; nothing else is one."""
    expected = [VirtualFunction("bm1", address, CARD) for address in ADDRESSES]
    links = sorted((SYS / "bus/pci/devices").glob("*/physfn"))
    assert [(link.parent.name, link.readlink().name) for link in links] == [(a, CARD) for a in ADDRESSES]
    found = rig.provider.virtual_functions("bm1")
    assert sorted(found, key=lambda function: function.address) == expected
    assert rig.provider.observe("bm1").host.functions == len(expected)


def test_a_function_belongs_to_one_instance_until_that_is_gone(rig: CardRig) -> None:
    """It leaves the machine for a guest's emulator, whatever that guest does; nobody else has it.

    What is held outlives libvirtd and the driver, and an instance that is deleted returns it.
    """
    host = born(rig)
    wanted = Wanted("vn1", host, "7", "ann", functions=1)
    held = rig.provider.hold(wanted, Sharing.ANYONE)
    assert held.functions == ADDRESSES[:1]
    assert [driver_of(address) for address in ADDRESSES] == ["vfio-pci", "igbvf"]
    rig.kill_libvirtd(host)
    rig.revive_libvirtd(host)
    other = CardRig(rig.lab, hardware=rig.config.hardware, limits=_PATIENT)
    try:
        assert other.provider.hold(wanted, Sharing.ANYONE) == held
        born(rig, "vn2")
        with pytest.raises(NoCapacityError, match="1 of 2 virtual functions free, 2 are asked"):
            other.provider.hold(Wanted("vn2", host, "8", "bob", functions=2), Sharing.ANYONE)
        theirs = other.provider.hold(Wanted("vn2", host, "8", "bob", functions=1), Sharing.ANYONE)
        assert theirs.functions == ADDRESSES[1:]
    finally:
        other.provider.close()
    for name in ("vn1", "vn2"):
        rig.provider.delete(host, name)
    rig.until(lambda: [driver_of(address) for address in ADDRESSES] == ["igbvf", "igbvf"])
    assert rig.provider.holdings() == ()


def test_a_guest_sees_its_function_and_lets_go_of_it(looking: CardRig) -> None:
    """It comes into the guest that runs, and leaves it before it is anybody else's."""
    host = born(looking)
    looking.until(lambda: said(looking) == "")
    looking.provider.hold(Wanted("vn1", host, "7", "ann", functions=1), Sharing.ANYONE)
    looking.until(lambda: said(looking).startswith("0000:"))
    assert driver_of(ADDRESSES[0]) == "vfio-pci"
    looking.provider.give_back(host, "vn1")
    looking.until(lambda: said(looking) == "")
    assert driver_of(ADDRESSES[0]) == "igbvf"
    assert looking.provider.holdings() == ()
