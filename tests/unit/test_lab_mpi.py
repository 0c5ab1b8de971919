"""A lab whose guests run MPI programs: its image, its instances, and the source of its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.lab import guestroot, image
from backfill.lab.spec import LabError


def test_the_image_with_mpi_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is larger, has what `srun --mpi=pmix` loads, and follows the program that is compiled into it."""
    plain, mpi = image.Recipe(), image.Recipe(mpi=True)
    assert {"openmpi-bin", "libpmix2", "hpcc"} <= set(mpi.packages) - set(plain.packages)
    assert mpi.disk_mb > plain.disk_mb
    names = {plain.name, mpi.name}
    changed = tmp_path / "ring.c"
    changed.write_text("int main(void) { return 0; }")
    monkeypatch.setattr(guestroot, "RING_SOURCE", changed)
    names |= {image.Recipe().name, image.Recipe(mpi=True).name}
    assert len(names) == 3


def test_mpi_comes_with_the_installed_release_alone() -> None:
    """One sentence before anything is built."""
    with pytest.raises(LabError, match=r"MPI is in the guest image of Slurm 22\.05 only"):
        image.Recipe("24.11", mpi=True)
