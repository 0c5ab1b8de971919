"""The scenarios that come with the project keep their expectations, and those can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.scenario import Assertion, Scenario
from backfill.sim.scenarios.shipped import folder
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.sim.scenarios.verdicts import ScenarioVerdict

SHIPPED = sorted(folder().glob("*.yaml"))
KILL = Ladder((RungRule(Rung.REQUEUE),))


def verdicts(scenario: Scenario) -> list[ScenarioVerdict]:
    """What comes of it; no promise may be broken on the way."""
    stage = SimulatedStage(scenario)
    outcome = play(scenario, stage)
    assert stage.complaints() == []
    return list(outcome.verdicts)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_keeps_its_expectations(path: Path) -> None:
    """Each of them has some, and all of them hold."""
    found = verdicts(load_scenario(path))
    assert found
    assert [v.text for v in found if not v.ok] == []


@pytest.mark.parametrize("name", ["ladder", "bad_night", "maintenance"])
def test_another_ladder_is_found_out(name: str) -> None:
    """Where jobs are killed instead, the expectations say so, with the jobs' names."""
    scenario = load_scenario(folder() / f"{name}.yaml")
    killing = replace(scenario, policies=replace(scenario.policies, ladder=KILL))
    wrong = [v for v in verdicts(killing) if not v.ok]
    assert wrong
    assert all(v.details for v in wrong)


def test_every_check_is_shown_by_some_scenario() -> None:
    """Who writes one finds an example of each."""
    used = {e.check for path in SHIPPED for e in load_scenario(path).expect}
    assert used == set(Assertion)
