"""What `make demo` shows, on real parts: every promise is ticked, and nothing is left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import backfill
from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from backfill.lab.waiting import wait_until
from backfill.ui.commands.demo_lab import NAME
from tests.real.leftovers import traces
from tests.real.releases import RELEASES

pytestmark = pytest.mark.real
_ROOT = Path(backfill.__file__).parents[1]
# The scenario itself, but with the patience of a machine that is busy with other tests. That a host
# is given at once is asserted by what comes before what; how long that takes is for a benchmark.
_PATIENT = {
    "limit_s: 5m": "limit_s: 15m",
    "within_s: 500ms, times: 16": "within_s: 60s",
    "{rung: pause, within_s: 1s, for_s: 30s}": "{rung: pause, within_s: 60s, for_s: 300s}",
}
_PROMISES = 5


def patient_first_day() -> str:
    """The demo's scenario for a busy machine."""
    text = (_ROOT / "scenarios/first_day.yaml").read_text()
    for quick, patient in _PATIENT.items():
        assert text.count(quick) == 1
        text = text.replace(quick, patient)
    return text


@pytest.mark.parametrize("release", RELEASES)
def test_the_demo_keeps_its_promises(
    release: str, tmp_path: Path, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every counter whole, every job ended once, the host given at once, the work moved on."""
    scenario, report = tmp_path / "first_day.yaml", tmp_path / "report.html"
    scenario.write_text(patient_first_day())
    monkeypatch.setenv("BACKFILL_LAB_ROOT", str(open_path))
    command = ["replay", "--live", "--slurm", release, str(scenario), "--report", str(report)]
    played = subprocess.run(
        [sys.executable, "-m", "backfill", *command],
        cwd=_ROOT,
        env=os.environ.copy(),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    shown = f"{played.stdout}\n{played.stderr}"
    assert played.returncode == 0, shown
    assert given_at_once(shown), shown
    ticks = [line for line in played.stdout.splitlines() if line.startswith(" ✓ ")]
    assert len(ticks) == _PROMISES, shown
    assert "✗" not in played.stdout
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert "important" in page
    lab = Lab(LabSpec(name=NAME))
    assert str(lab.dir).startswith(str(open_path))
    assert wait_until(lambda: not traces(lab), 60), traces(lab)


def given_at_once(told: str) -> bool:
    """Whether the host was given when its instances stood still, and nothing else was awaited.

    Slurm's suspension of their jobs, the drain and the move came later, each by itself.
    """
    lines = told.splitlines()

    def first(*words: str) -> int:
        return next(n for n, line in enumerate(lines) if all(word in line for word in words))

    # Slurm's hook may tell of the job before sbatch has told the demo which one it is.
    found = re.search(r"\bjob (\d+) \(important\)", told)
    assert found is not None, told
    asked = first(f"Slurm gave bm1 to job {found[1]}")
    given = first(f"told job {found[1]}", "that the room is free")
    stopped = [first(f"{name} on bm1 is now evicting") for name in ("vn1", "vn2")]
    later = [first(f"{name} on bm1 is now parked") for name in ("vn1", "vn2")]
    moved = [first(f"{name} on bm1 is now moving") for name in ("vn1", "vn2")]
    return asked <= min(stopped) and max(stopped) < given < min(later) < min(moved)
