"""The scenarios after papers: they are right, keep their expectations and print paper and ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.sim.scenarios.measures import measures
from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.scenario import Measure, Scenario
from backfill.sim.scenarios.shipped import located
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.ui.report.papers import against_the_paper

PAPERS = ("multiverse-1", "multiverse-2", "slurm-v", "poster")


def fewer(name: str, share: int) -> Scenario:
    """The scenario with only one in so many of its jobs: the same story in less time."""
    scenario = load_scenario(located(Path("papers") / name))
    jobs = (replace(entry, copies=-(-entry.copies // share)) for entry in scenario.jobs)
    return replace(scenario, jobs=tuple(jobs))


@pytest.mark.parametrize("name", PAPERS)
def test_it_keeps_its_expectations(name: str) -> None:
    """Every job ends once, nothing is left, and no promise is broken on the way."""
    scenario = fewer(name, 5)
    stage = SimulatedStage(scenario)
    outcome = play(scenario, stage)
    assert [v.text for v in outcome.verdicts if not v.ok] == []
    assert stage.complaints() == []


def test_the_papers_own_times_come_out() -> None:
    """Machines with Slurm-V's snapshot: its 20.2 s, and what a proven node costs on top."""
    scenario = fewer("slurm-v", 8)
    snapshot = measures(scenario, "snapshot")
    assert 20.2 <= snapshot[Measure.LAUNCH] < 23.0
    assert measures(scenario, "ours-booted")[Measure.LAUNCH] < snapshot[Measure.LAUNCH] / 2


def test_the_table_has_both_columns() -> None:
    """What the paper does not say is said to be unknown."""
    scenario = fewer("slurm-v", 16)
    lines = list(against_the_paper(scenario))
    assert lines[0].split() == ["paper", "ours"]
    assert any("20.2 s" in line for line in lines)
    assert any("not known" in line for line in lines)
