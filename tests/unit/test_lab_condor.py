"""A lab with a pool, without any machine: what it has, what is written, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backfill.lab import image, roots
from backfill.lab.condor import daemons, pilots
from backfill.lab.spec import CE, CONDOR_SLURM, JOB_USER_LINE, POOL, LabError, LabSpec, host_address


def test_a_pool_and_a_compute_element_are_machines_with_addresses() -> None:
    """They come last, and each only where it is asked for."""
    spec = LabSpec(slurm_version=CONDOR_SLURM, condor=True, ce=True, files=True)
    assert spec.machines[-2:] == (POOL, CE)
    assert {host_address(name) for name in spec.condor_machines} == {"10.77.0.2", "10.77.0.3"}
    assert LabSpec(slurm_version=CONDOR_SLURM, condor=True).condor_machines == (POOL,)
    assert LabSpec().condor_machines == ()


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"ce": True}, "ask for the pool and a file server"),
        ({"condor": True}, "has Slurm 24.11"),
        ({"condor": True, "slurm_version": "24.11", "site": True}, "neither a site"),
        ({"condor": True, "slurm_version": "24.11", "salt": True}, "nor one with Salt"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(wishes: dict[str, Any], told: str) -> None:
    """One sentence before anything is started."""
    with pytest.raises(LabError, match=told):
        LabSpec(**wishes)


def test_the_image_for_pilots_is_one_of_its_own() -> None:
    """It is larger, has HTCondor, and comes with the one suite that has it."""
    plain, condor = image.Recipe(CONDOR_SLURM), image.Recipe(CONDOR_SLURM, condor=True)
    assert condor.name != plain.name
    assert "htcondor" in condor.packages
    assert condor.disk_mb > plain.disk_mb
    with pytest.raises(LabError, match=r"HTCondor is in the guest image of Slurm 24\.11 only"):
        image.Recipe("26.05", condor=True)


def test_the_pools_machines_have_a_root_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are of Slurm's release."""
    monkeypatch.setattr(roots, "build", lambda name, progress=None: Path("/roots", name))
    spec = roots.equip(LabSpec(slurm_version=CONDOR_SLURM, condor=True, hypervisor="none"))
    assert spec.root_of(POOL) == "/roots/condor"
    assert spec.root_of("ctl") == spec.root_of("bm1") == "/roots/24.11"


@pytest.fixture
def lab_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab's directory with the homes of both machines; nobody's files change hands."""
    monkeypatch.setattr(os, "chown", lambda *_: None)
    for machine in (POOL, CE):
        (tmp_path / "machines" / machine).mkdir(parents=True)
    return tmp_path


def spec_of(root: Path) -> LabSpec:
    """A lab with a compute element, whose root is here."""
    return LabSpec(slurm_version=CONDOR_SLURM, condor=True, ce=True, files=True, roots=((CE, str(root)),))


def test_blahp_is_put_right_for_the_lab(lab_dir: Path, tmp_path: Path) -> None:
    """Debian's calls what its Python has not had since 3.12; the root itself stays as it came."""
    shipped = tmp_path / "root/usr/libexec/blahp/blah.py"
    shipped.parent.mkdir(parents=True)
    shipped.write_text("config.readfp(fp)\n")
    daemons.write(spec_of(tmp_path / "root"), lab_dir, CE)
    (ours, place), shared = daemons.binds(lab_dir, CE)
    assert shared[1] == "/home"
    assert ours.read_text() == "config.read_file(fp)\n"
    assert place == "/usr/libexec/blahp/blah.py"
    assert "readfp" in shipped.read_text()
    assert daemons.binds(lab_dir, POOL) == []


def test_a_root_without_blahp_is_told(lab_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="remove that root and build it again"):
        daemons.write(spec_of(tmp_path / "empty"), lab_dir, CE)


def test_the_pool_knows_nobody_without_a_token(lab_dir: Path) -> None:
    """Its keys are root's alone, and who advertises a slot is a pilot."""
    daemons.write(LabSpec(slurm_version=CONDOR_SLURM, condor=True), lab_dir, POOL)
    words = daemons.config(lab_dir, POOL).read_text()
    assert "ALLOW_ADVERTISE_STARTD = pilot@pool\n" in words
    assert "SEC_DEFAULT_AUTHENTICATION = REQUIRED\n" in words
    assert (daemons.home(lab_dir, POOL) / "passwords.d").stat().st_mode & 0o777 == 0o700


def test_a_pilot_carries_its_token_and_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can read the script can join the pool."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(JOB_USER_LINE + "\n")
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _path, uid, gid: owners.append((uid, gid)))
    said = SimpleNamespace(stdout="a.token.made\n")
    lab = SimpleNamespace(dir=tmp_path, shared=tmp_path, run=lambda *_, **__: said)
    script = pilots.write_pilot(lab)  # type: ignore[arg-type]  # all that is asked of a lab
    assert script.stat().st_mode & 0o777 == 0o700
    assert owners == [(2001, 2001)]
    words = script.read_text()
    assert "a.token.made" in words
    assert "#SBATCH --partition=htc\n" in words
    assert "MAX_TIME_SKIP = 864000\n" in words
