"""Hosts whose QEMU runs as root, as some sites have it; in labs it has a user of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import CloneMethod, InstanceState
from backfill.lab.cluster import Lab
from backfill.lab.spec import QEMU_USER
from tests.contract.instance_provider import InstanceProviderContract
from tests.contract.instance_rig import CLUSTER, spec
from tests.real.libvirt_guest import NAME, Guest
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]
USER = "root"
_AS_ROOT = f'user = "{USER}"\ngroup = "{USER}"\ndynamic_ownership = 0\n'
_AS_USER = f'user = "{QEMU_USER}"\ngroup = "{QEMU_USER}"\ndynamic_ownership = 1\n'


@pytest.fixture(scope="module", params=HYPERVISORS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running_lab("libvirt-root", request.param) as up:
        for host in up.hosts:
            conf = up.dir / "machines" / host / "libvirt-etc/qemu.conf"
            before = conf.read_text()
            assert _AS_USER in before
            conf.write_text(before.replace(_AS_USER, _AS_ROOT))
            up.restart(f"libvirtd@{host}")
        yield up


@pytest.fixture
def rig(lab: Lab) -> Iterator[LibvirtRig]:
    made = LibvirtRig(lab)
    yield made
    made.end()


def test_an_instant_clone_lives_and_moves(rig: LibvirtRig) -> None:
    """From a parent whose files root alone can read; to disk and back, and to the other."""
    host = rig.provider.hosts[0]
    rig.provider.create(replace(spec(rig, NAME), method=CloneMethod.INSTANT))
    rig.booted(NAME)
    rig.start_counter(host, NAME)
    users = rig.lab.run(host, ["ps", "-eo", "user:32,args"], check=True).stdout.splitlines()
    assert {line.split()[0] for line in users if f"guest={NAME}," in line} == {USER}
    (parent,) = Path(rig.config.directory, CLUSTER, ".parents", host).glob("parent-*")
    for name in ("ram", "state", "disk.qcow2", "seed.tar"):
        assert (parent / name).stat().st_mode & 0o077 == 0
    guest = Guest(rig)
    guest.put(InstanceState.PAUSED)
    rig.provider.suspend(host, NAME)
    rig.provider.restore(host, NAME)
    rig.provider.migrate(host, NAME, guest.other)
    guest.run_on()
    rig.provider.migrate(guest.host, NAME, guest.other)
    guest.run_on()


@pytest.mark.soak
class TestAsRoot(InstanceProviderContract):
    """All that holds where QEMU has a user of its own."""

    @pytest.fixture
    def rig(self, lab: Lab) -> Iterator[LibvirtRig]:
        made = LibvirtRig(lab)
        yield made
        made.end()
