"""`policy check` has HTCondor's own parser read condor.constraint, and says so where it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backfill.ui.cli import main
from tests.component.test_condor_pool import python

EXAMPLE = Path(__file__).parents[2] / "config/policy.minimal.yaml"


def policy(tmp_path: Path, constraint: str, interpreter: str = sys.executable) -> tuple[Path, int]:
    """A policy file with this constraint, and in which line that stands."""
    pool = ["condor:", "  collector: cm.example.org", f"  python: {interpreter}"]
    lines = [*EXAMPLE.read_text().splitlines(), *pool, f"  constraint: {json.dumps(constraint)}", ""]
    path = tmp_path / "policy.yaml"
    path.write_text("\n".join(lines))
    return path, len(lines) - 1


@pytest.mark.parametrize(
    "constraint",
    ["Owner == ", "(Owner", 'Owner == "x', "true) || (true", "JobPrio > 3 // urgent", "JobPrio = 3"],
)
def test_what_htcondor_cannot_read_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], constraint: str
) -> None:
    """Also what could be read only because of what the daemon puts around it."""
    path, line = policy(tmp_path, constraint)
    assert main(["policy", "check", str(path)]) == 65
    shown = capsys.readouterr()
    assert f"{path}:{line}:1: condor.constraint is no ClassAd expression" in shown.err
    assert "; write it as for condor_q -constraint" in shown.err
    assert main(["policy", "check", str(path), "--json"]) == 65
    assert json.loads(capsys.readouterr().out)[0]["path"] == "condor.constraint"


@pytest.mark.parametrize(
    "constraint", ["", 'Owner == "x"', "ProjectName =?= undefined && JobPrio > 3", "x /* why */"]
)
def test_what_htcondor_can_read_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], constraint: str
) -> None:
    path, _ = policy(tmp_path, constraint)
    assert main(["policy", "check", str(path)]) == 0
    shown = capsys.readouterr()
    assert "no mistakes found" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "print(json.dumps({'error': {'said': 'no HTCondor bindings'}}), flush=True)",
            "no HTCondor bindings",
        ),
        ("os._exit(3)", "it ended"),
        (
            "print('{}', flush=True)\nfor line in sys.stdin: print('{\"parsed\": 1}', flush=True)",
            "its answer",
        ),
    ],
)
def test_without_bindings_it_says_what_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    """Nothing else is wrong with the file."""
    path, line = policy(tmp_path, "Owner == ", python(tmp_path, body))
    assert main(["policy", "check", str(path)]) == 0
    shown = capsys.readouterr()
    assert f"{path}:{line}: condor.constraint was not checked: " in shown.err
    assert said in shown.err
