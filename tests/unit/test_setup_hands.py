"""`backfill setup` beside other hands: nothing of theirs is written over, and no partition opened."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from backfill.ui.cli import main
from backfill.ui.commands import setup
from backfill.ui.setup.plan import Places
from tests.unit.test_setup import PLAIN, _survey


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    made.mkdir()
    for name in ("vmlinuz", "initrd", "disk.raw"):
        (made / name).touch()
    (made / "image.json").write_text('{"cmdline": "root=/dev/vda quiet"}')
    return made


def test_a_partition_that_somebody_has_closed_is_not_opened_by_the_restart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: Path
) -> None:
    """slurmctld forgets what scontrol was told of it."""
    (tmp_path / "slurm.conf").write_text(PLAIN)
    found = _survey()
    closed = replace(found.settings, partitions_raw={"batch": {"State": "DOWN"}})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "Places", partial(Places, folder=tmp_path, key=tmp_path / "slurm.conf"))
    monkeypatch.setattr(setup, "survey", lambda *_: replace(found, settings=closed))
    for passed in ("check_wishes", "_check"):
        monkeypatch.setattr(setup, passed, lambda *_: None)
    monkeypatch.setattr(setup, "_carry_out", lambda *_: pytest.fail("slurmctld was restarted"))
    argv = ["--yes", "--user", "root", "--addresses", "10.0.1.1/16", "--image", str(folder)]
    assert main(["setup", "--slurm-conf", str(tmp_path / "slurm.conf"), *argv]) == 1
    told = "nothing was changed: by the restart of slurmctld partition batch is DOWN, and would be UP again"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["slurm.conf", "cgroup.conf", "policy.yaml"])
def test_what_changes_while_a_person_reads_the_plan_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    folder: Path,
    name: str,
) -> None:
    """A colleague, or the site's configuration management: the plan knows nothing of that."""
    (tmp_path / "slurm.conf").write_text(PLAIN)
    (tmp_path / "cgroup.conf").touch()

    def read_and_agreed() -> bool:
        (tmp_path / name).write_text("theirs\n")
        return True

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "Places", partial(Places, folder=tmp_path, key=tmp_path / "slurm.conf"))
    monkeypatch.setattr(setup, "survey", lambda *_: _survey())
    for passed in ("check_wishes", "_check"):
        monkeypatch.setattr(setup, passed, lambda *_: None)
    monkeypatch.setattr(setup, "_confirmed", read_and_agreed)
    monkeypatch.setattr(setup, "_carry_out", lambda *_: pytest.fail("it was written over"))
    argv = ["--user", "root", "--addresses", "10.0.1.1/16", "--image", str(folder)]
    assert main(["setup", "--slurm-conf", str(tmp_path / "slurm.conf"), *argv]) == 1
    assert f"somebody has changed {tmp_path / name} meanwhile" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "theirs\n"
