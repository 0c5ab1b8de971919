"""Labs for the tests that need real daemons and real machines."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from tests.real.cloud_rig import cloud_entered
from tests.real.daemon_rig import DaemonRig

if TYPE_CHECKING:
    from tests.real.tenant_rig import TenantRig


@pytest.fixture(scope="session")
def lab_name() -> Callable[[str], str]:
    """Names no other test run on this machine uses at the same time."""
    return lambda purpose: f"t{os.getpid()}-{purpose}"


@pytest.fixture(scope="module")
def open_path() -> Iterator[Path]:
    """A directory for one file of tests that every user can enter; those of pytest are closed."""
    made = Path(tempfile.mkdtemp(prefix="o-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[str], str], open_path: Path) -> Iterator[Lab]:
    """A lab with two hosts for one file of tests; it ends with the test run at the latest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_LAB_ROOT", str(open_path))
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
    # Only here: openstacksdk's import is a third of what a pytest costs that has no cloud.
    from tests.real.tenant_rig import TenantRig

    made = TenantRig(clouds, tmp_path)
    yield made
    made.end()


@pytest.fixture
def impatient(clouds: Path, tmp_path: Path) -> Iterator[TenantRig]:
    """The same, of a driver that does not wait for long: a request will hang."""
    from tests.real.tenant_rig import IMPATIENT, TenantRig

    made = TenantRig(clouds, tmp_path, patience=IMPATIENT)
    yield made
    made.end()
