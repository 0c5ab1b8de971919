"""Builds that were cut off do not stand in the way of the next one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from backfill.lab.stale import clear_builds

pytestmark = pytest.mark.real


def test_a_killed_build_is_removed_with_its_mounts(tmp_path: Path) -> None:
    """As mmdebstrap leaves it when it is killed: /proc mounted read-only, and another over it."""
    proc = tmp_path / ".building-0" / "root" / "proc"
    proc.mkdir(parents=True)
    (tmp_path / "ready").mkdir()
    for _ in range(2):
        subprocess.run(["mount", "-t", "proc", "-o", "ro", "proc", str(proc)], check=True)
    clear_builds(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
