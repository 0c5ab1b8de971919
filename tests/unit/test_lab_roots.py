"""Roots with other Slurm releases: where they are and which lab uses one, without building any."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.lab import layout, roots
from backfill.lab.cluster import Lab
from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.spec import LabError, LabSpec
from backfill.lab.stale import mount_points


def test_the_installed_release_needs_no_root() -> None:
    """Such a lab runs on the machine's own files and PATH."""
    spec = roots.equip(LabSpec())
    assert spec == LabSpec()
    assert Lab(spec).tools is None
    assert Lab(spec).path == SLURM_TOOLS_PATH


def test_a_release_without_a_suite_is_refused() -> None:
    """One sentence that names the releases that there are."""
    with pytest.raises(LabError, match=r"for 23\.02; there are 22\.05, 24\.11, 26\.05"):
        roots.equip(LabSpec(slurm_version="23.02"))


def test_machines_of_another_release_get_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the switch, and Slurm's tools stand first in the PATH of commands."""
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    assert roots.find("24.11") is None
    cached = roots._place("24.11")
    cached.mkdir(parents=True)
    spec = roots.equip(LabSpec(hosts=1, slurm_version="24.11"))
    assert spec.roots == (("ctl", str(cached)), ("bm1", str(cached)))
    lab = Lab(spec)
    assert lab.path == f"{lab.dir / 'bin'}:{SLURM_TOOLS_PATH}"


def test_tools_enter_the_root_only_from_outside(tmp_path: Path) -> None:
    """A job has them in its PATH as well, where the root is the only one that there is."""
    layout._write_tools(tmp_path / "bin")
    tool = tmp_path / "bin/scontrol"
    assert tool.stat().st_mode & 0o777 == 0o755
    assert "[ -d /run/root/usr ] || exec /usr/bin/scontrol" in tool.read_text()
    assert "exec /usr/sbin/slurmd" in (tmp_path / "bin/slurmd").read_text()


def test_a_hosts_libvirtd_has_the_root_of_its_hypervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its /usr alone; the machine's own hypervisor needs none, a missing one names the remedy."""
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    assert roots.hypervisor_usr("debian-12") == ""
    with pytest.raises(LabError, match="run: backfill lab roots debian-13"):
        roots.hypervisor_usr("debian-13")
    cached = roots._place("debian-13")
    cached.mkdir(parents=True)
    assert roots.equip(LabSpec(hypervisor="debian-13")).roots == ()
    assert roots.hypervisor_usr("debian-13") == f"{cached}/usr"


def test_a_site_has_a_root_of_its_own_and_no_tools_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machines are inside their root altogether, also with the installed release."""
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    cached = roots._place("site-22.05")
    cached.mkdir(parents=True)
    spec = roots.equip(LabSpec(hosts=1, site=True))
    assert spec.roots == (("ctl", str(cached)), ("bm1", str(cached)))
    assert Lab(spec).path == SLURM_TOOLS_PATH


def test_mount_points_are_read_as_the_kernel_writes_them() -> None:
    """What is left of a build is deleted only where nothing is mounted any more, whatever its path is."""
    told = (
        b"24 1 254:0 / / rw - ext4 /dev/vda rw\n"
        rb"69 27 0:42 / /srv/a\040cache\134x/proc ro,relatime shared:3 - proc proc ro" + b"\n"
    )
    assert mount_points(told) == ["/", "/srv/a cache\\x/proc"]
