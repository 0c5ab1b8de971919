"""The demo on a real lab, predicted event by event with what its own journal teaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.reader import load_scenario
from backfill.ui.commands.demo_lab import LabStage, demo_lab
from tests.simulation.prediction import deviations, predicted, told

pytestmark = [pytest.mark.real, pytest.mark.soak]
FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"


def test_the_simulation_predicts_every_event_of_the_lab() -> None:
    """Within half a second or a tenth of its time; needs a machine with nothing else to do."""
    scenario = load_scenario(FIRST_DAY)
    with demo_lab(scenario, print, keep=False) as lab:
        stage = LabStage(lab, scenario.count_every_s)
        try:
            real = play(scenario, stage)
            known = stage.rhythm()
        finally:
            stage.close()
    assert [verdict.text for verdict in real.verdicts if not verdict.ok] == []
    assert list(map(str, deviations(told(real), told(predicted(real, known))))) == []
    assert len(told(real)) > 30
