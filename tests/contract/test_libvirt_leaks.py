"""What is called a leak, and what never is, on the test hypervisors inside the libvirt library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.ports.errors import BusyError, NotFoundError
from tests.contract.instance_rig import CLUSTER, born
from tests.contract.libvirt_testdriver import TestDriverRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


def abandoned(rig: TestDriverRig, name: str, age_s: float) -> Path:
    """A folder as an instance leaves it whose domain somebody removed by hand."""
    folder = Path(rig.config.directory, CLUSTER, name)
    folder.mkdir(parents=True)
    (folder / "disk.qcow2").write_bytes(b"disk")
    then_s = time.time() - age_s
    for path in (folder / "disk.qcow2", folder):
        os.utime(path, (then_s, then_s))
    return folder


def test_an_abandoned_folder_is_found_and_removed(rig: TestDriverRig) -> None:
    """An instance that is there is none, and neither is a young folder."""
    born(rig)
    folder = abandoned(rig, "vn8", 7200.0)
    young = abandoned(rig, "vn9", 60.0)
    (leak,) = rig.provider.leaks(3600.0)
    assert (leak.name, leak.where) == ("vn8", str(folder))
    with pytest.raises(NotFoundError, match="no leak"):
        rig.provider.remove_leak("vn1", 3600.0)
    with pytest.raises(NotFoundError, match="no leak"):
        rig.provider.remove_leak("vn9", 3600.0)
    rig.provider.remove_leak("vn8", 3600.0)
    assert not folder.exists()
    assert young.exists()
    assert rig.provider.leaks(3600.0) == ()


def test_nothing_is_called_a_leak_while_a_host_is_silent(rig: TestDriverRig) -> None:
    """It may be the one that has the instance."""
    born(rig)
    abandoned(rig, "vn8", 7200.0)
    with rig.unreachable("hv2"), pytest.raises(BusyError, match="hv2"):
        rig.provider.leaks(3600.0)
