"""What is learned from one run's journal predicts that run, event by event."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.drivers.simulated.costs import StepCosts
from backfill.ports.storage import Record
from backfill.sim.replay.costs import load_costs
from backfill.sim.replay.learning import as_yaml, learned
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.rhythm import Rhythm
from backfill.sim.scenarios.scenario import Scenario
from backfill.sim.scenarios.stage import SimulatedStage
from tests.simulation.prediction import deviations, predicted, told

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
    wake_again_s=1.1,
    drain_s=0.11,
    undrain_s=0.2,
    create_node_s=0.6,
    delete_s=1.2,
)
KNOWN = Rhythm(first_at_s=0.9, look_s=0.4)
CLOCKS = replace(KNOWN, lead_s=0.4, tick_s=1.0065, tick_at_s=1.71, count_s=0.107)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return replace(load_scenario(FIRST_DAY), costs=OTHER)


@pytest.fixture(scope="module")
def real(scenario: Scenario) -> Outcome:
    return play(scenario, SimulatedStage(scenario, rhythm=CLOCKS))


def test_what_was_learned_predicts_every_event(real: Outcome) -> None:
    """Within half a second or a tenth, and none is missing."""
    assert list(map(str, deviations(told(real), told(predicted(real, KNOWN))))) == []
    assert len(told(real)) > 30


@pytest.mark.parametrize(
    "clocks",
    [
        replace(CLOCKS, lead_s=0.76, tick_s=1.0076, tick_at_s=0.47, first_at_s=0.63),
        replace(CLOCKS, lead_s=0.03, tick_s=1.0087, tick_at_s=0.84, first_at_s=2.29),
        replace(CLOCKS, lead_s=0.90, tick_s=1.0005, tick_at_s=0.03, first_at_s=1.62),
    ],
)
def test_what_happens_does_not_depend_on_when_the_daemon_looks(
    scenario: Scenario, real: Outcome, clocks: Rhythm
) -> None:
    """It looks once a second: whether it sees a job of 200 ms run, or one wait, is chance."""
    other = play(scenario, SimulatedStage(scenario, rhythm=clocks))
    assert set(told(other)) == set(told(real))
    jobs = [name for name, _ in scenario.copies()]
    assert {f"{job} {turn} 1" for job in jobs for turn in ("waits", "runs", "ended")} < set(told(other))
    known = replace(KNOWN, first_at_s=clocks.first_at_s)
    assert list(map(str, deviations(told(other), told(predicted(other, known))))) == []


def test_learned_costs_go_through_a_file(scenario: Scenario, tmp_path: Path) -> None:
    """The file of `--learn` is one for `--costs`: where the clocks are the same, it is enough."""
    real = play(scenario, SimulatedStage(scenario))
    path = tmp_path / "costs.yaml"
    path.write_text(as_yaml(learned(real.records)))
    again = play(scenario, SimulatedStage(replace(scenario, costs=load_costs(path).steps)))
    assert list(map(str, deviations(told(real), told(again)))) == []


def test_a_wrong_prediction_is_seen(scenario: Scenario, real: Outcome) -> None:
    """With the costs or the clocks of another machine it is not met: the comparison can fail."""
    costs = replace(scenario, costs=StepCosts())
    assert deviations(told(real), told(play(costs, SimulatedStage(costs, rhythm=CLOCKS)))) != []
    assert deviations(told(real), told(play(scenario, SimulatedStage(scenario)))) != []


def test_a_move_that_waited_for_another_is_not_learned_as_a_long_one(real: Outcome) -> None:
    """Two at once between the same hosts take turns, and what one of them takes is learned."""
    took_s = OTHER.of("migrate", 256)
    moves = [r.body for r in real.records if str(r.body.get("key")).startswith("MigrateInstance")]
    elapsed_s = sorted(float(str(body["elapsed_s"])) for body in moves if "elapsed_s" in body)
    assert elapsed_s == pytest.approx([took_s, 2 * took_s], abs=0.1)
    assert learned(real.records)["migrate_s"] == pytest.approx(took_s, abs=0.01)


def test_a_guest_that_is_asked_twice_is_awake_when_the_next_step_begins() -> None:
    """Not when a call returns: what passes until it may go on is what a return costs."""
    told_at: list[tuple[float, str, dict[str, object]]] = [
        (10.0, "intent", {"t": "WakeInstance", "name": "vn1"}),
        (12.0, "outcome", {"key": "WakeInstance:vn1:1", "elapsed_s": 2.0, "problem": ""}),
        (12.5, "intent", {"t": "WakeInstance", "name": "vn1"}),
        (13.0, "outcome", {"key": "WakeInstance:vn1:1", "elapsed_s": 0.5, "problem": ""}),
        (14.5, "intent", {"t": "ResumeJob", "name": "vn1"}),
        (20.0, "intent", {"t": "WakeInstance", "name": "vn1"}),
        (21.0, "intent", {"t": "DeleteInstance", "name": "vn1"}),
        (22.0, "intent", {"t": "UndrainNode", "name": "vn1"}),
    ]
    found = learned(Record(at_s, kind, "vn1", body) for at_s, kind, body in told_at)
    assert found == {"wake_again_s": 4.5}
