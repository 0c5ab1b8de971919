"""squeue's JSON is asked for in the version that says of each job whether it is exclusive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.json_path import JsonPath
from tests.component.slurm_tools import FakeTools
from tests.unit.test_slurm_records import OLD


@pytest.mark.parametrize(
    ("release", "asked"),
    [
        ("22.05.8", "--json"),
        ("24.11.5", "--json"),
        ("25.11.3", "--json"),
        ("26.05.5", "--json=v0.0.44"),
        ("26.11.0", "--json=v0.0.44"),
        ("27.11.0", "--json"),
    ],
)
def test_the_last_version_that_tells_is_asked_for(tmp_path: Path, release: str, asked: str) -> None:
    """Up to 25.11 the usual one does, v0.0.45 does not; a later release may not have it any more."""
    tools = FakeTools(tmp_path)
    tools.answer("scontrol --version", f"slurm-wlm {release}\n")
    tools.answer("squeue", json.dumps({"jobs": [{**OLD, "shared": ["none"]}], "errors": []}))
    (job,) = JsonPath(SlurmTools(bin_dir=tmp_path)).all_jobs().values()
    assert job.exclusive
    assert f"squeue {asked} --all --local -t all" in tools.calls


def test_tools_that_are_upgraded_meanwhile_are_asked_as_they_are_now(tmp_path: Path) -> None:
    tools = FakeTools(tmp_path)
    path = JsonPath(SlurmTools(bin_dir=tmp_path))
    for release in ("25.11.3", "26.05.5"):
        tools.forget_answers()
        tools.answer("squeue", json.dumps({"jobs": [], "errors": []}))
        tools.answer("scontrol --version", f"slurm-wlm {release}\n")
        path.all_jobs()
    asked = [call for call in tools.calls if call.startswith("squeue")]
    assert asked == [f"squeue {way} --all --local -t all" for way in ("--json", "--json=v0.0.44")]
