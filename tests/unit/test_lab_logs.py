"""What is shown of a lab when a test in it fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from tests.real.lab_logs import labs_of, last_words


@dataclass
class Rig:
    lab: Lab


@dataclass
class Guest:
    rig: Rig


def test_a_lab_is_found_however_deep_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once, however many fixtures have it."""
    monkeypatch.setenv("BACKFILL_LAB_ROOT", str(tmp_path))
    lab = Lab(LabSpec(name="x"))
    assert list(labs_of([3, None, Guest(Rig(lab)), Rig(lab), lab])) == [lab]


def test_each_log_is_told_by_its_last_lines(tmp_path: Path) -> None:
    """One that is empty is not."""
    logs = tmp_path / "machines/bm1/libvirt-log"
    logs.mkdir(parents=True)
    (logs / "libvirtd.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (tmp_path / "supervisor.log").write_text("")
    ((name, told),) = last_words(tmp_path)
    assert name == "machines/bm1/libvirt-log/libvirtd.log"
    assert told.splitlines() == [f"line {number}" for number in range(88, 100)]
