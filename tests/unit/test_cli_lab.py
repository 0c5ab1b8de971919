"""`backfill lab` where there is no lab: every mistake has its sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from backfill.ui.cli import main
from backfill.ui.commands.completion import candidates
from backfill.ui.commands.lab import next_steps


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKFILL_LAB_ROOT", str(tmp_path))
    return tmp_path


def remembered(root: Path, name: str) -> None:
    """A lab that was up once."""
    (root / name).mkdir()
    (root / name / "spec.json").write_text(json.dumps(LabSpec(name=name).to_json()))


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["down"], 1, "there is no lab 'lab'; start one with: backfill lab up"),
        (["status"], 1, "there is no lab 'lab'"),
        (["shell", "bm1"], 1, "lab 'lab' is not up; start it with: backfill lab up"),
        (["run", "bm1", "--", "true"], 1, "lab 'lab' is not up"),
        (["run", "bm1"], 64, "no command is given: backfill lab run bm1 -- COMMAND"),
        (["cloud", "run"], 64, "no command is given: backfill lab cloud run -- COMMAND"),
        (["up", "--hosts", "0"], 64, "a lab has between 1 and 100 hosts"),
        (["up", "--name", "My Lab"], 64, "use lower-case letters"),
    ],
)
def test_a_mistake_has_one_sentence(
    words: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the status of a wrong command line, where that is what it is."""
    assert main(["lab", *words]) == status
    output = capsys.readouterr()
    assert told in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lab", "up", "--no-image"], "backfill: a lab needs root; run this as root, or without it: "),
        (["lab", "cloud", "up"], "backfill: the test cloud needs root; run this as root\n"),
    ],
)
def test_what_only_root_can_do_has_its_status(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(words) == 77
    assert capsys.readouterr().err.startswith(told)


def test_no_lab_is_told_kindly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list"]) == 0
    assert "start one with: backfill lab up" in capsys.readouterr().out
    assert main(["lab", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_lab_that_is_down_is_told_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remembered(root, "play")
    assert main(["lab", "status", "--name", "play"]) == 1
    assert capsys.readouterr().out == "lab play is down\n"
    assert main(["lab", "status", "--name", "play", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["phase"] == "down"
    assert main(["lab", "status", "--name", "plya"]) == 1
    assert "did you mean 'play'?" in capsys.readouterr().err


def test_labs_and_machines_are_completed(root: Path) -> None:
    remembered(root, "play")
    assert candidates(["lab", "down", "--name", ""]) == ["play\tlab"]
    found = [c.partition("\t")[0] for c in candidates(["lab", "shell", "--name", "play", ""])]
    assert found == ["ctl", "bm1", "bm2"]


def test_the_next_steps_name_the_lab_unless_it_is_the_usual_one(root: Path) -> None:
    other = next_steps(Lab(LabSpec(name="play")), root / "policy.yaml")
    assert any("backfill lab run --name play ctl -- backfill daemon --config" in x for x in other)
    usual = next_steps(Lab(LabSpec()), None)
    assert not any("--name" in line or "daemon" in line for line in usual)
