"""Builds that were cut off do not stand in the way of the next one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from backfill.lab import stale
from backfill.lab.spec import LabError
from backfill.lab.stale import clear_builds

pytestmark = pytest.mark.real


def test_a_killed_build_is_removed_with_its_mounts(tmp_path: Path) -> None:
    """As mmdebstrap leaves it when it is killed: /proc mounted read-only, and another over it."""
    cache = tmp_path / "a cache"
    proc = cache / ".building-0" / "root" / "proc"
    proc.mkdir(parents=True)
    (cache / "ready").mkdir()
    for _ in range(2):
        subprocess.run(["mount", "-t", "proc", "-o", "ro", "proc", str(proc)], check=True)
    clear_builds(cache)
    assert [path.name for path in cache.iterdir()] == ["ready"]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_nothing_is_deleted_behind_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came that it was not found."""
    theirs = tmp_path / ".building-0" / "root" / "home"
    theirs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(theirs)], check=True)
    try:
        (theirs / "work").touch()
        monkeypatch.setattr(stale, "_mounted_below", lambda _: [])
        with pytest.raises(LabError, match=f"a file system is mounted on {theirs}; unmount it by hand"):
            clear_builds(tmp_path)
        assert (theirs / "work").exists()
    finally:
        subprocess.run(["umount", str(theirs)], check=True)
