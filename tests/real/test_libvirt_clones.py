"""Instant clones on a real hypervisor: nobody's twin, no harm among siblings, no bad parent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import CloneMethod, InstanceSpec, InstanceState
from backfill.drivers.libvirt.clones import forking
from backfill.drivers.libvirt.clones.parents import Parent
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.lab.cluster import Lab
from backfill.ports.errors import BusyError, DriverError
from tests.contract.instance_rig import CLUSTER, SMALL, spec, state
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]

_WHO = (
    "cat /proc/sys/kernel/hostname /etc/machine-id /proc/sys/kernel/random/boot_id"
    " /proc/sys/kernel/random/uuid /sys/class/net/eth0/address;"
    " head -c 16 /dev/urandom | md5sum; ip -4 -o addr show dev eth0 | awk '{print $4}'"
)
# The sum of files that all clones have in memory because their parent had read them.
_MEMORY = "cat /usr/sbin/munged /usr/sbin/slurmd /usr/lib/x86_64-linux-gnu/slurm-wlm/*.so | md5sum"
_FREE_MUCH = (
    "dd if=/dev/urandom of=/dev/shm/y bs=1M count=40 2>/dev/null; rm /dev/shm/y;"
    " echo 3 >/proc/sys/vm/drop_caches; echo 1 >/proc/sys/vm/compact_memory"
)
_NEW_MUNGED = (
    "/usr/local/sbin/backfill-service restart munged && munge -n | unmunge >/dev/null"
    " && ps -C munged -o user="
)
_DEAF = "for p in munged slurmd; do awk '/^SigIgn/ {print $2}' /proc/$(pidof $p)/status; done"
_INT_AND_QUIT = 1 << 1 | 1 << 2
_SUM = re.compile(rb"[0-9a-f]{32}  -\n")


@pytest.fixture(scope="module", params=HYPERVISORS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running_lab("libvirt-clones", request.param) as up:
        yield up


@pytest.fixture
def rig(lab: Lab) -> Iterator[LibvirtRig]:
    made = LibvirtRig(lab)
    yield made
    made.end()


def instant(rig: LibvirtRig, name: str, host: str = "") -> InstanceSpec:
    return replace(spec(rig, name, host=host), method=CloneMethod.INSTANT)


def parents(rig: LibvirtRig) -> list[Path]:
    folder = Path(rig.config.directory, CLUSTER, ".parents", rig.provider.hosts[0])
    return sorted(folder.glob("parent-*"))


def test_siblings_are_nobodys_twins(rig: LibvirtRig) -> None:
    """Made at the same time from one parent, no two share a name, an id, an address or chance."""
    names = [f"vn{k}" for k in range(1, 5)]
    host = rig.provider.hosts[0]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(rig.provider.create, (instant(rig, name) for name in names)))
    who = []
    for name in names:
        rig.booted(name)
        who.append(rig.in_guest(host, name, _WHO).split("\n"))
        assert who[-1][0] == name
        assert f"10.77.1.{name.removeprefix('vn')}/16" in who[-1]
        now_s = rig.provider.observe(host).seen_s
        # Not the parent's time, as of 1970 or of last week. Nearer than that an emulated guest that
        # was starved as it booted may not keep its time: its measure of cycles is wrong.
        assert abs(rig.provider.wake(host, name, now_s)) < 1e3
    for answers in zip(*(lines[:6] for lines in who), strict=True):
        assert len(set(answers)) == len(names), answers
    assert len(parents(rig)) == 1
    # What was loaded in the parent hears the signals that a shell makes its helpers deaf to.
    deaf = rig.in_guest(host, names[0], _DEAF).split()
    assert len(deaf) == 2
    assert not any(int(mask, 16) & _INT_AND_QUIT for mask in deaf)
    # As Salt does when the key changes: munged works again, as its own user.
    assert set(rig.in_guest(host, names[0], _NEW_MUNGED).split()) == {"munge"}


def test_memory_that_one_clone_gives_up_is_not_taken_from_its_siblings(rig: LibvirtRig) -> None:
    """No balloon and no page reporting: freed pages stay where the parent's file has them."""
    host = rig.provider.hosts[0]
    for name in ("vn1", "vn2"):
        rig.provider.create(instant(rig, name))
        rig.booted(name)
    (home,) = parents(rig)
    before, content = rig.in_guest(host, "vn2", _MEMORY), Parent(home).fingerprint()
    for line in rig.emulators(host, "vn1"):
        assert "balloon" not in line
        assert "free-page-reporting" not in line
    rig.in_guest(host, "vn1", _FREE_MUCH)
    assert rig.in_guest(host, "vn2", _MEMORY) == before
    assert Parent(home).fingerprint() == content
    rig.provider.create(instant(rig, "vn3"))
    rig.booted("vn3")
    assert rig.in_guest(host, "vn3", _MEMORY) == before


def test_a_bad_parent_is_never_used(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first clone checks the memory that it got; nothing of a parent that fails is left."""
    freeze = forking.freeze

    def freeze_and_spoil(hypervisor: Hypervisor, name: str, state: Path, limit_s: float) -> None:
        freeze(hypervisor, name, state, limit_s)
        memory = state.parent / "ram"
        content = memory.read_bytes()
        found = [match.start() for match in _SUM.finditer(content)]
        assert found
        with memory.open("r+b") as file:
            for place in found:
                file.seek(place)
                file.write(b"0" if content[place : place + 1] != b"0" else b"1")

    for home in parents(rig):
        (home / "good").unlink()
    monkeypatch.setattr(forking, "freeze", freeze_and_spoil)
    with pytest.raises(DriverError, match="bad: its memory is not its parent's"):
        rig.provider.create(instant(rig, "vn1"))
    assert state(rig) is None
    assert parents(rig) == []
    assert not rig.emulators(rig.provider.hosts[0], "parent") + rig.emulators(rig.provider.hosts[0], "canary")
    monkeypatch.undo()
    rig.provider.create(instant(rig, "vn1"))
    rig.booted("vn1")


def test_a_parent_in_the_making_is_given_up_at_once(rig: LibvirtRig) -> None:
    """The host is wanted: nothing of it runs or is left; the next one is made as if nothing was."""
    host = rig.provider.hosts[0]
    for home in parents(rig):
        (home / "good").unlink()
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(rig.provider.make_parent, host, rig.image, SMALL)
        rig.until(lambda: bool(rig.provider.observe(host).host.parents_starting) or making.done())
        rig.provider.cancel_parents(host)
        assert rig.provider.observe(host).host.parents_starting == ()
        assert not rig.emulators(host, "parent") + rig.emulators(host, "canary")
        with pytest.raises(BusyError, match="the host is wanted"):
            making.result()
    assert parents(rig) == []
    rig.provider.create(instant(rig, "vn1"))
    rig.booted("vn1")


def test_a_parent_that_was_touched_is_replaced(rig: LibvirtRig) -> None:
    """Clones that lean on the old one keep it; new ones come from a new one."""
    host = rig.provider.hosts[0]
    rig.provider.create(instant(rig, "vn1"))
    (first,) = parents(rig)
    (first / "state").chmod(0o600)
    with (first / "state").open("ab") as file:
        file.write(b"!")
    rig.provider.create(instant(rig, "vn2"))
    rig.booted("vn1")
    rig.booted("vn2")
    assert len(parents(rig)) == 2
    assert first in parents(rig)
    assert state(rig, "vn1", host) is InstanceState.RUNNING


def test_one_identity_runs_once(rig: LibvirtRig) -> None:
    """A clone of a name that lives elsewhere is refused: it would have its address and its keys."""
    host, other = rig.provider.hosts[:2]
    rig.provider.create(instant(rig, "vn1", host))
    with pytest.raises(BusyError, match="active on"):
        rig.provider.create(instant(rig, "vn1", other))
    assert rig.provider.read(other, "vn1") is None
