"""What `replay --json` prints has the keys that docs/replay.md promises, and no others."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from backfill.sim.replay.journal import Difference, JournalOutcome
from backfill.ui.cli import main as command
from backfill.ui.commands.replay import main
from backfill.ui.report.figures import FIGURES
from backfill.ui.report.replay_text import CSV_COLUMNS
from tests.component.replay_files import replayed, written

_PAGE = Path(__file__).parents[2] / "docs/replay.md"


def _section() -> str:
    return _PAGE.read_text().split("## JSON for scripts\n")[1].split("\n## ")[0]


def _promised(*rows: str) -> set[str]:
    """The keys in rows of the first table."""
    found = re.findall(r"^\| ([a-z ]+) \| (.*) \|$", _section(), re.MULTILINE)
    table = dict(found)
    return {key for row in rows for key in re.findall(r"`(\w+)`", table[row])}


def _printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_bare_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path) / "t.swf"
    assert main([str(trace), "--cluster", "2x1", "--json"]) == 0
    found = _printed(capsys)
    assert found.keys() == _promised("every replay of a trace", "one without a policy")
    assert list(found["wait_s"]) == ["count", "mean", "median", "p90", "p99", "maximum"]


def test_two_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = written(tmp_path)
    options = ("--against", str(files / "kill.yaml"), "--seeds", "2", "--json")
    assert replayed(files, "--backlog", "htc:3", *options) == 0
    found = _printed(capsys)
    (interval, *_) = found["intervals"].values()
    promised = _promised("every replay of a trace", "one with policies")
    assert found.keys() | interval.keys() == promised
    figures = found["policies"]["kill.yaml"]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", _section(), re.MULTILINE))
    assert listed == {figure.key: figure.title for figure in FIGURES}
    prose = set(re.findall(r"`(\w+)`", _section().split("Figures of a policy")[1]))
    assert figures.keys() <= prose
    assert ",".join(CSV_COLUMNS) in _section()


def test_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["replay", "first_day", "--json"]) == 0
    found = _printed(capsys)
    (play,) = found["plays"].values()
    keys = found.keys() | play.keys() | play["expectations"][0].keys()
    assert keys == _promised("a scenario")


def test_a_journal() -> None:
    keys = {field.name for kind in (JournalOutcome, Difference) for field in fields(kind)}
    assert keys == _promised("a journal")
