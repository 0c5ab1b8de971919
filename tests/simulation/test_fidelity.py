"""Step costs learned from one run's journal predict that run, event by event."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.costs_file import load_costs
from backfill.sim.fidelity import deviations, events
from backfill.sim.learning import as_yaml, learned
from backfill.sim.scenario import Scenario
from backfill.sim.scenario_player import Outcome, play
from backfill.sim.scenario_reader import load_scenario
from backfill.sim.stage import SimulatedStage

FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"
# Another machine than the one that the defaults were measured on.
OTHER = StepCosts(
    create_s=1.4,
    boot_s=11.0,
    pause_s=0.06,
    thaw_s=0.09,
    migrate_s=3.1,
    migrate_s_per_mb=0.011,
    wake_s=0.7,
    drain_s=0.11,
    create_node_s=0.6,
    delete_s=1.2,
)


def told(outcome: Outcome) -> dict[str, float]:
    names = {job_id: name for name, job_id in outcome.ids.items()}
    return events(outcome.records, names, outcome.start_s)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(FIRST_DAY)


def test_what_was_learned_predicts_every_event(scenario: Scenario, tmp_path: Path) -> None:
    """By way of a file for --costs: within half a second or a tenth, and none is missing."""
    real = play(scenario, SimulatedStage(replace(scenario, costs=OTHER)))
    path = tmp_path / "costs.yaml"
    path.write_text(as_yaml(learned(real.records)))
    predicted = play(scenario, SimulatedStage(replace(scenario, costs=load_costs(path).steps)))
    assert list(map(str, deviations(told(real), told(predicted)))) == []
    assert len(told(real)) > 20


def test_a_wrong_prediction_is_seen(scenario: Scenario) -> None:
    """With the costs of another machine it is not met: the comparison can fail."""
    real = play(scenario, SimulatedStage(replace(scenario, costs=OTHER)))
    predicted = play(scenario, SimulatedStage(scenario))
    assert deviations(told(real), told(predicted)) != []
