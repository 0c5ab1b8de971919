"""How this program begins itself anew: wherever it is begun, and wherever it has moved since."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backfill.ui.own_program import own_program
from backfill.ui.setup.plan import Places, steps
from backfill.ui.setup.steps import RunCommand, UndoRecord
from backfill.ui.setup.wishes import Wishes, suggested
from tests.unit.test_setup import _survey


def test_it_is_never_the_one_of_the_current_directory(tmp_path: Path) -> None:
    """root begins `backfill setup` in a directory where a user has left a package of this name."""
    for name in ("backfill", "yaml"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text("print('theirs')\n")
    argv = [*own_program(), "policy", "check", str(Path(__file__).parents[2] / "config/policy.yaml")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "theirs" not in done.stdout


def test_the_one_file_that_it_came_in_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["./backfill.pyz"])
    assert own_program() == (sys.executable, str(Path.cwd() / "backfill.pyz"))


def test_setup_is_taken_back_by_a_program_that_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set up from a checkout or by Debian 12's package, whose Python is gone since."""
    record, told = UndoRecord(tmp_path / "record"), tmp_path / "told"
    record.carry_out([RunCommand(undo=("backfill", "slurm", "hooks", "remove"))])
    moved = tmp_path / "python"
    moved.write_text(f'#!/bin/sh\necho "$@" >{told}\n')
    moved.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(moved))
    assert record.undo() == []
    assert told.read_text() == "-P -m backfill slurm hooks remove\n"


def test_setup_writes_down_no_place_of_the_program(tmp_path: Path) -> None:
    """Neither for what a killed run owes, nor for what has to be taken back."""
    conf, image = tmp_path / "slurm.conf", tmp_path / "image"
    conf.write_text("ClusterName=c\n")
    image.mkdir()
    for name in ("vmlinuz", "initrd", "disk.raw", "image.json"):
        (image / name).write_text("{}")
    said = Wishes(addresses="10.0.1.1/16", image=str(image), user="root")
    found = _survey()
    made = steps(found, suggested(found, said, None), Places(conf, folder=tmp_path))
    own = [words for step in made if isinstance(step, RunCommand) for words in (step.argv, step.undo)]
    assert {words[0] for words in own if "hooks" in words} == {"backfill"}
