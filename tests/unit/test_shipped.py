"""What comes with the project is found by its name, from anywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from backfill.sim.scenarios.shipped import folder, located, names, remedy
from backfill.ui.command_line import BY_NAME, SCENARIO, command_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("typed", "inside"),
    [
        ("first_day", "first_day.yaml"),
        ("papers/slurm-v", "papers/slurm-v.yaml"),
        ("papers/slurm-v.yaml", "papers/slurm-v.yaml"),
        ("scenarios/traces/poisson.swf", "traces/poisson.swf"),
        ("traces/poisson", "traces/poisson.swf"),
    ],
)
def test_a_name_is_enough(typed: str, inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without folder and ending, in any directory."""
    monkeypatch.chdir(tmp_path)
    assert located(Path(typed)) == folder() / inside


@pytest.mark.parametrize("typed", ["nosuch", "../scenarios/first_day", "/first_day", "scenarios"])
def test_what_is_not_ours_is_left_as_it_is(typed: str, tmp_path: Path) -> None:
    """The error then names what was typed."""
    assert located(Path(typed)) == Path(typed)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lublin-64", "did you mean traces/lublin-64? otherwise check the path"),
        ("first_dya", "did you mean first_day? otherwise check the path"),
        ("/home/me/month.swf", "check the path"),
    ],
)
def test_a_name_that_is_nearly_right_is_recognised(typed: str, meant: str) -> None:
    """Also one whose folder was left out."""
    assert remedy(Path(typed)) == meant


def test_a_file_that_is_there_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own file is hidden by one of ours."""
    monkeypatch.chdir(tmp_path)
    own = Path("first_day.yaml")
    own.write_text("mine")
    assert located(own) == own


def test_replay_knows_scenarios_by_name() -> None:
    """A scenario has other options than a trace."""
    chosen = command_of(["replay", "papers/poster"])
    assert chosen is not None
    assert chosen == SCENARIO
    trace = command_of(["replay", "traces/poisson", "--cluster", "8x1"])
    assert trace is not None
    assert trace == BY_NAME["replay"]


def test_the_package_takes_all_of_them_along() -> None:
    """An installed package finds them where `folder` looks first."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert built["targets"]["wheel"]["force-include"] == {"scenarios": "backfill/scenarios"}
    assert {"first_day.yaml", "papers/slurm-v.yaml", "traces/poisson.swf"} <= set(names())
