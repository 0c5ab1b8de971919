"""Real guests between hosts that share no directory: disk and memory go along, or all stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import CloneMethod, InstanceState
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import Hardware, MoveTerms
from backfill.ports.errors import DriverError, RefusedError
from tests.contract.instance_rig import CLUSTER, spec
from tests.real.libvirt_guest import IN_MEMORY, NAME, Guest, strike_a_move
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]

_DISK_MB = 400  # all that the second host has for instances
_LEFT_MB = 16  # of it, when it is to be full soon
_COUNTER = (
    "(n=0; while :; do n=$((n+1)); echo $n >>/root/counts; sleep 0.1; done) >/dev/null 2>&1 </dev/null &"
)
# How many numbers there are, and whether any is missing or there twice.
_COUNTS = "awk 'NR != $1 {bad++} END {print NR, bad + 0}' /root/counts"
_FILL = "dd if=/dev/urandom of=/root/noise bs=1M count={} 2>/dev/null; sync; md5sum </root/noise"


class SeparateRig(LibvirtRig):
    """Each host has a directory of its own; that of the second one can be filled up."""

    def goes_on_disk(self, host: str) -> None:
        """The guest's program writes on, and no number was lost on the way."""
        before = self.counted(host)
        self.until(lambda: self.counted(host) > before)

    def counted(self, host: str) -> int:
        number, wrong = self.in_guest(host, NAME, _COUNTS).split()
        assert wrong == "0"
        return int(number)

    @contextmanager
    def nearly_full(self) -> Iterator[None]:
        """Inside, there is room for a few MB at the second host."""
        ballast = Path(self.config.directories[self.provider.hosts[1]], "ballast")
        free_mb = shutil.disk_usage(ballast.parent).free >> 20
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (free_mb - _LEFT_MB) << 20)
        try:
            yield
        finally:
            ballast.unlink()

    def move(self, source: str, target: str) -> None:
        """Move it as a site does: an emulated guest stands still meanwhile (decision 36)."""
        provider = LibvirtProvider(replace(self.config, moves=MoveTerms()), lambda *_: None)
        try:
            provider.migrate(source, NAME, target)
        finally:
            provider.close()

    def folder(self, host: str) -> Path:
        return Path(self.config.directories[host], CLUSTER, NAME)


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest, open_path: Path) -> Iterator[SeparateRig]:
    root = open_path / request.param
    root.mkdir()
    small = root / "bm2"
    small.mkdir()
    size = f"size={_DISK_MB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(small)], check=True)
    try:
        with running_lab("libvirt-own", request.param) as lab:
            made = SeparateRig(
                lab,
                directories={host: str(root / host) for host in lab.hosts},
                # A file system in memory knows no direct access.
                hardware=Hardware(domain_type=lab.domain_type, disk_cache="unsafe"),
                moves=MoveTerms(live=True),  # as where KVM runs them
            )
            yield made
            made.end()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.fixture
def guest(rig: SeparateRig) -> Guest:
    """The guest that counts on its disk, on the first host."""
    rig.revive_all()
    made = Guest(rig)
    first = rig.provider.hosts[0]
    if [(i.host, i.state) for i in made.seen()] != [(first, InstanceState.RUNNING)]:
        for host in rig.provider.hosts:
            rig.provider.delete(host, NAME)
        rig.provider.create(spec(rig, NAME))
        rig.booted(NAME)
        rig.in_guest(first, NAME, _COUNTER)
        rig.until(lambda: rig.in_guest(first, NAME, "test -s /root/counts && echo y") != "")
    return made


def on_again(guest: Guest) -> str:
    """Let it run, whatever its state, and return its host."""
    host = guest.host
    if guest.state is InstanceState.SUSPENDED:
        guest.provider.restore(host, NAME)
    if guest.state is InstanceState.PAUSED:
        guest.provider.thaw(host, NAME)
    return host


@pytest.mark.parametrize("state", [*IN_MEMORY, InstanceState.SUSPENDED])
def test_it_moves_there_and_back_with_its_disk(rig: SeparateRig, guest: Guest, state: InstanceState) -> None:
    """What it wrote before is there, its program goes on, and the old host keeps nothing."""
    noise = rig.in_guest(guest.host, NAME, _FILL.format(2))
    for _ in range(2):
        source, target = guest.host, guest.other
        guest.put(state)
        rig.move(source, target)
        assert (guest.host, guest.state) == (target, state)
        assert not rig.folder(source).exists()
        assert on_again(guest) == target
        rig.goes_on_disk(target)
    assert rig.in_guest(guest.host, NAME, "md5sum </root/noise") == noise


@pytest.mark.parametrize(
    "state", [InstanceState.RUNNING, pytest.param(InstanceState.SUSPENDED, marks=pytest.mark.soak)]
)
def test_a_full_disk_at_the_target_leaves_it_where_it_was(
    rig: SeparateRig, guest: Guest, state: InstanceState
) -> None:
    """The guest goes on at the source, and nothing of it lies at the target."""
    source, target = guest.host, guest.other
    rig.in_guest(source, NAME, _FILL.format(_LEFT_MB + 8))
    guest.put(state)
    with rig.nearly_full(), pytest.raises(DriverError):
        rig.provider.migrate(source, NAME, target)
    assert (guest.host, guest.state) == (source, state)
    assert not rig.folder(target).exists()
    assert on_again(guest) == source
    rig.goes_on_disk(source)


@pytest.mark.soak
def test_an_instant_clone_stays_with_its_parent(rig: SeparateRig) -> None:
    """Its parent's memory is on its host alone; the reason is told and the clone goes on."""
    host, target = rig.provider.hosts
    rig.provider.create(replace(spec(rig, "vn2"), method=CloneMethod.INSTANT))
    rig.booted("vn2")
    with pytest.raises(RefusedError, match="instant clone"):
        rig.provider.migrate(host, "vn2", target)
    seen = rig.provider.read(host, "vn2")
    assert seen is not None
    assert seen.state is InstanceState.RUNNING
    rig.provider.delete(host, "vn2")


@pytest.mark.soak
@pytest.mark.parametrize("state", IN_MEMORY)
@pytest.mark.parametrize("victim", ["source libvirtd", "target libvirtd", "target emulator"])
def test_a_move_that_dies_leaves_one_guest(
    rig: SeparateRig, guest: Guest, state: InstanceState, victim: str
) -> None:
    """Whoever dies, one host has it afterwards, with all of its disk, and it can move again."""
    guest.put(state)
    strike_a_move(guest, victim)
    rig.goes_on_disk(on_again(guest))
    rig.provider.migrate(guest.host, NAME, guest.other)
    rig.goes_on_disk(guest.host)
