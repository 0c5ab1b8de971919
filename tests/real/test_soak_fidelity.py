"""The demo on a real lab, predicted event by event with the step costs of its own journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.fidelity import deviations, events
from backfill.sim.learning import learned
from backfill.sim.scenario_player import Outcome, play
from backfill.sim.scenario_reader import load_scenario
from backfill.sim.stage import SimulatedStage
from backfill.ui.demo_lab import demo_lab
from backfill.ui.demo_live import LabStage

pytestmark = [pytest.mark.real, pytest.mark.soak]
FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"


def told(outcome: Outcome) -> dict[str, float]:
    names = {job_id: name for name, job_id in outcome.ids.items()}
    return events(outcome.records, names, outcome.start_s)


def test_the_simulation_predicts_every_event_of_the_lab() -> None:
    """Within half a second or a tenth of its time; needs a machine with nothing else to do."""
    scenario = load_scenario(FIRST_DAY)
    with demo_lab(scenario, print, keep=False) as lab:
        stage = LabStage(lab, scenario.count_every_s)
        try:
            real = play(scenario, stage)
        finally:
            stage.close()
    assert [verdict.text for verdict in real.verdicts if not verdict.ok] == []
    costs = learned(real.records)
    print(costs)
    predicted = play(scenario, SimulatedStage(replace(scenario, costs=StepCosts(**costs))))
    assert list(map(str, deviations(told(real), told(predicted)))) == []
