"""Labs for the tests that need real daemons and real machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from tests.real.cloud_rig import cloud_entered
from tests.real.daemon_rig import DaemonRig
from tests.real.tenant_rig import TenantRig


@pytest.fixture(scope="session")
def lab_name() -> Callable[[str], str]:
    """Names no other test run on this machine uses at the same time."""
    return lambda purpose: f"t{os.getpid()}-{purpose}"


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with two hosts for one file of tests; it ends with the test run at the latest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_LAB_ROOT", str(tmp_path_factory.mktemp("lab")))
        made = Lab.up(LabSpec(name=lab_name("lab")), tied=True)
        yield made
        made.down()


@pytest.fixture
def rig(bed: DaemonRig) -> Iterator[DaemonRig]:
    """The file's own `bed`, a lab with a daemon, put in order before and after each test."""
    bed.begin()
    yield bed
    bed.settle()


@pytest.fixture(scope="module")
def clouds() -> Iterator[Path]:
    """clouds.yaml of the one test cloud of this run; the file's tests are in its network."""
    with cloud_entered() as file:
        yield file


@pytest.fixture
def tenant(clouds: Path, tmp_path: Path) -> Iterator[TenantRig]:
    """The project `east`, empty, behind a proxy that can fail; emptied again afterwards."""
    made = TenantRig(clouds, tmp_path)
    yield made
    made.end()
