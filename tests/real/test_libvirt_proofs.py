"""Hosts prove over their real libvirtd what instances need of them: their clock, and their directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.drivers.libvirt import proving
from backfill.drivers.libvirt.proving import HostTerms, prove
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-proofs", request.param) as lab, pytest.MonkeyPatch.context() as patch:
        for when in ("_EVERY_S", "_AGAIN_S"):
            patch.setattr(proving, when, 0.0)
        made = LibvirtRig(lab)
        yield made
        made.end()


@pytest.fixture
def root(rig: LibvirtRig) -> Path:
    """The cluster's directory, as the first instance makes it, on all hosts and the controller."""
    made = rig.provider._pool.store.root
    made.mkdir(mode=0o711, parents=True, exist_ok=True)
    return made


def said(rig: LibvirtRig, host: str = "bm1") -> str:
    return rig.provider.observe(host).host.unproven


def test_good_hosts_are_proven_and_nothing_of_it_stays(rig: LibvirtRig, root: Path) -> None:
    """The first look says that it is under way, and a hint comes with its end."""
    assert "just being proven" in said(rig)
    rig.until(lambda: ("bm1", "") in rig.events)
    for host in rig.lab.hosts:
        rig.until(lambda: not said(rig, host))  # noqa: B023 - used at once
    pools = rig.provider._pool.on("bm1").aside(lambda connection: connection.listAllStoragePools())
    rig.until(lambda: not [name for name in root.iterdir() if name.name.startswith(".")])
    assert len(pools) <= 1  # of the proof that is under way at this moment


@pytest.mark.parametrize(
    ("mount", "told"),
    [
        (["-t", "tmpfs", "tmpfs"], "is not the directory of that name"),
        (["-t", "tmpfs", "-o", "ro", "tmpfs"], "libvirtd cannot write"),
    ],
    ids=["another", "read only"],
)
def test_a_host_without_the_shared_directory_is_refused(
    rig: LibvirtRig, root: Path, mount: list[str], told: str
) -> None:
    """Something else is mounted over it on one host, then not any more; the other is as good as before."""
    rig.until(lambda: not said(rig))
    rig.lab.run("bm1", ["mount", *mount, str(root)], check=True)
    try:
        rig.until(lambda: told in said(rig))
        assert rig.provider.observe("bm1").host.reachable
        rig.until(lambda: not said(rig, "bm2"))
    finally:
        rig.lab.run("bm1", ["umount", str(root)], check=True)
    rig.until(lambda: not said(rig))


@pytest.mark.parametrize(("ahead_s", "side"), [(5.0, "behind"), (-5.0, "ahead of")])
def test_a_clock_that_is_off_is_measured(rig: LibvirtRig, root: Path, ahead_s: float, side: str) -> None:
    """Here the daemon's is set, since all machines of a lab have one clock; its own call says how far."""
    rig.until(lambda: not said(rig))
    proofs = rig.provider._proofs
    assert proofs is not None
    rig.until(lambda: not proofs._proofs["bm1"].under_way)
    here, terms = rig.provider._pool.on("bm1"), HostTerms(root, 1.0)
    assert here.aside(lambda connection: prove(connection, "bm1", terms)) is None
    told = here.aside(lambda connection: prove(connection, "bm1", terms, lambda: time.time() + ahead_s))
    assert told is not None
    assert f"its clock is 5.0 s {side} the daemon's" in told


def test_a_host_that_comes_back_proves_itself_anew(rig: LibvirtRig) -> None:
    """It may have booted meanwhile, without its mounts."""
    rig.until(lambda: not said(rig))
    with rig.unreachable("bm1"):
        rig.until(lambda: not rig.provider.observe("bm1").host.reachable)
    rig.until(lambda: rig.provider.observe("bm1").host.reachable)
    rig.until(lambda: not said(rig))
