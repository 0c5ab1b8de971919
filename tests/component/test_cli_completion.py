"""Completion: what may follow a half-typed line, and that bash really gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.ui.cli import main
from backfill.ui.commands.completion import FILES, candidates, script
from tests.component.living_daemon import LivingDaemon, living, parked


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingDaemon]:
    with living(tmp_path_factory.mktemp("daemon")) as made:
        parked(made)
        yield made


def words(*typed: str) -> list[str]:
    return [c.partition("\t")[0] for c in candidates(typed)]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["stat"], ["status"]),
        (["e"], ["explain", "events", "evict"]),
        (["--v"], ["--version"]),
        (["lab", ""], ["up", "down", "status", "shell", "run", "list", "cloud", "roots"]),
        (["lab", "cloud", ""], ["up", "down", "status", "run"]),
        (["lab", "s"], ["status", "shell"]),
        (["lab", "up", "--ho"], ["--hosts"]),
        (["lab", "up", "--hosts", "3", "--cp"], ["--cpus"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["events", "--f"], ["--follow"]),
        (["events", "--limit", ""], []),
        (["policy", "check", ""], [FILES]),
        (["lab", "run", "ctl", "--", "l"], [FILES]),
        (["daemon", "--config", ""], [FILES]),
        (["replay", "--scheduler", "f"], ["fcfs"]),
        (["nosuch", ""], []),
        (["status", ""], []),
    ],
)
def test_what_may_follow(typed: list[str], expected: list[str]) -> None:
    if expected == [] and typed[0] == "nosuch":
        assert "status" in words(*typed)  # a word that is no command may still be replaced
    else:
        assert words(*typed) == expected


def test_names_come_from_the_daemon(daemon: LivingDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_SOCKET", str(daemon.socket))
    assert words("nodes", "") == ["vn1"]
    assert words("evict", "") == ["vn1", "bm1", "bm2"]
    assert words("evict", "b") == ["bm1", "bm2"]
    assert words("explain", "") == ["vn1", "bm1", "bm2", "2"]


def test_the_daemon_that_the_line_names_is_asked(daemon: LivingDaemon) -> None:
    assert words("nodes", "--socket", str(daemon.socket), "v") == ["vn1"]


def test_without_a_daemon_nothing_is_proposed_and_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BACKFILL_SOCKET", str(tmp_path / "none.sock"))
    assert main(["_complete", "explain", ""]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


def test_bash_gets_the_candidates(tmp_path: Path) -> None:
    """The script in a real bash: the function is called as readline would call it."""
    command = tmp_path / "backfill"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m backfill "$@"\n')
    command.chmod(0o755)
    asked = (
        f'{script("bash")}\nCOMP_WORDS=("{command}" lab s); COMP_CWORD=2; _backfill\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.split() == ["status", "shell"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "_complete" in text
    assert "@" not in text.replace("$@", "").replace("[@]", "").replace("(@", "")
