"""`backfill daemon --check` after an upgrade, or on the way back: what the start makes of the journal."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from backfill.config.model import Config
from backfill.drivers.store.formats import VERSION
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ui.commands import daemon
from backfill.ui.commands.hook_check import Found
from tests.unit.policy_files import loaded, text


class Manager:
    def settings(self) -> None:
        return None


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A policy file whose state directory has a journal; hooks and Slurm are as they should be."""
    monkeypatch.setattr(daemon, "check_hooks", lambda *_: Found())
    (tmp_path / "state").mkdir()
    SqliteJournal(tmp_path / "state/journal.db").close()
    return loaded(tmp_path, text(f"daemon: {{state_dir: {tmp_path}/state}}\n"))


def checked(config: Config) -> int:
    manager: Any = Manager()
    return daemon._checked(config, manager)


def of_version(config: Config, version: int) -> bytes:
    """Let the journal be of this version; the file's content."""
    path = Path(config.daemon.state_dir, "journal.db")
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    return path.read_bytes()


def test_a_journal_that_the_start_refuses_is_told(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise hosts would not be given back from the start on, and nobody knew before."""
    before = of_version(config, VERSION + 1)
    assert checked(config) == 69
    told = capsys.readouterr()
    assert "journal.db: was written by a newer backfill" in told.err
    assert "fits the cluster" not in told.out
    assert Path(config.daemon.state_dir, "journal.db").read_bytes() == before


def test_a_journal_that_the_start_converts_is_told(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do before."""
    before = of_version(config, VERSION - 1)
    assert checked(config) == 0
    told = capsys.readouterr().out
    assert (
        f"journal.db: the daemon's start converts it from version {VERSION - 1} to {VERSION}, after which "
        "an older backfill refuses it: copy it before" in told
    )
    assert Path(config.daemon.state_dir, "journal.db").read_bytes() == before


def test_nothing_is_told_of_one_that_fits_or_is_not_there(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(config) == 0
    Path(config.daemon.state_dir, "journal.db").unlink()
    assert checked(config) == 0
    assert "journal" not in "".join(capsys.readouterr())
