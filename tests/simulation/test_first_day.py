"""The demo's scenario in simulated time: everything it promises holds, whatever goes slower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState
from backfill.ports.storage import Record
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.scenario import Assertion, Expectation, JobMoment, Scenario, When
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.sim.scenarios.verdicts import Evidence, hosts_of_jobs, judge
from backfill.ui import cli

FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(FIRST_DAY)


def played(scenario: Scenario) -> Outcome:
    return play(scenario, SimulatedStage(scenario))


def test_every_promise_holds(scenario: Scenario) -> None:
    """Counters whole, every job once, the important one at once, all moved, nothing left."""
    outcome = played(scenario)
    assert [v for v in outcome.verdicts if not v.ok] == []
    assert len(outcome.verdicts) == len(scenario.expect)
    assert outcome.end_s - outcome.start_s < 90


def test_the_parked_work_changes_its_host(scenario: Scenario) -> None:
    """Both counters ran on bm1 first and on bm2 afterwards, and nowhere else."""
    outcome = played(scenario)
    ran = hosts_of_jobs(outcome.records)
    assert [ran[outcome.ids[f"counter-{i}"]] for i in (1, 2)] == [["bm1", "bm2"]] * 2


def test_the_same_scenario_gives_the_same_journal(scenario: Scenario) -> None:
    """Simulated time has no chance in it: two plays are equal to the last record."""
    assert played(scenario).records == played(scenario).records


@pytest.mark.parametrize("boot_s", [0.5, 20.0, 60.0])
def test_the_story_does_not_depend_on_speed(scenario: Scenario, boot_s: float) -> None:
    """Moments, not times, hold the story together: a slower machine tells the same one."""
    slower = replace(scenario, costs=replace(scenario.costs, boot_s=boot_s, migrate_s=8.0))
    assert [v.text for v in played(slower).verdicts if not v.ok] == []


def test_what_is_new_is_shown_as_it_happens(scenario: Scenario) -> None:
    """The watcher gets every record once, in order, none from its future."""
    seen: list[Record] = []

    def watch(records: object, now_s: float) -> None:
        assert isinstance(records, list)
        assert all(r.at_s <= now_s for r in records)
        seen.extend(records)

    outcome = play(scenario, SimulatedStage(scenario), watch)
    assert tuple(seen) == outcome.records


def test_a_promise_that_is_broken_is_told(scenario: Scenario) -> None:
    """A host that cannot be reached by moving, and a wait that is too long, each get a no."""
    wrong = replace(
        scenario,
        expect=(
            Expectation(Assertion.MOVED, job="counter", to="bm1"),
            Expectation(Assertion.WAITED_LONGER, job="important", than="yardstick", within_s=0.001),
        ),
    )
    moved, waited = played(wrong).verdicts
    assert not moved.ok
    assert moved.details == ("counter-1 ran on bm1, then bm2", "counter-2 ran on bm1, then bm2")
    assert not waited.ok
    assert "3 ms longer" in waited.text


@pytest.mark.parametrize(
    ("idle_s", "waits_s", "ok"),
    [
        (0.031, 0.059, True),  # an idle machine
        (0.031, 0.532, False),
        (0.2, 1.9, True),  # a busy one, on which the yardstick is late as well
        (0.2, 3.5, False),
    ],
)
def test_how_long_it_may_wait_is_measured_by_an_idle_host_in_the_same_play(
    scenario: Scenario, idle_s: float, waits_s: float, ok: bool
) -> None:
    """Half a second, or sixteen times what the yardstick took where that is more."""
    delays_s = {"important": waits_s, **{f"yardstick-{n}": idle_s for n in (1, 2, 3)}}
    wanted = [e for e in scenario.expect if e.check is Assertion.WAITED_LONGER]
    (verdict,) = judge(replace(scenario, expect=tuple(wanted)), evidence(delays_s))
    assert verdict.ok is ok


def evidence(delays_s: dict[str, float]) -> Evidence:
    return Evidence(jobs={}, delays_s=delays_s, complaints=(), left=(), records=())


def test_a_counter_that_never_counted_to_its_end_is_not_whole(scenario: Scenario) -> None:
    """It is cut off in the midst of its numbers, or has never begun, or never came: all that is told."""
    cut = replace(scenario, limit_s=10.0)
    texts = {v.title: v for v in played(cut).verdicts}
    found = texts[scenario.expect[0].title]
    assert (found.ok, found.text) == (False, "not every counter went on without a gap or duplicate")
    assert found.details == tuple(f"counter-{n} (job {n + 4}) is cancelled" for n in (1, 2))
    never = replace(scenario, limit_s=0.1)
    (found, *_) = (v for v in played(never).verdicts if v.title == scenario.expect[0].title)
    assert found.details == ("counter-1 was never submitted", "counter-2 was never submitted")


def test_a_scenario_that_does_not_end_is_broken_off(scenario: Scenario) -> None:
    """At its limit what still runs is cancelled, and that is a no of its own."""
    endless = replace(
        scenario,
        limit_s=30.0,
        jobs=tuple(
            replace(e, ends=When("important", JobMoment.ENDED, 1e6)) if e.ends else e for e in scenario.jobs
        ),
    )
    stage = SimulatedStage(endless)
    outcome = play(endless, stage)
    assert outcome.verdicts[0].text == "it was not over after 30 s and was broken off"
    assert not outcome.ok
    assert {j.state for j in stage.jobs().values()} <= {JobState.COMPLETED, JobState.CANCELLED}


def test_the_command_plays_judges_and_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`backfill demo --simulated`: the story line by line, a tick for each promise, a page."""
    page = tmp_path / "report.html"
    assert cli.main(["demo", "--simulated", "--report", str(page)]) == 0
    told = capsys.readouterr().out
    assert told.count(" ✓ ") == 5
    assert "Slurm gave bm1 to job 7 (important)" in told
    assert "In simulated time" in page.read_text()


def test_the_command_ends_with_one_when_a_promise_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that runs the demo learns from the exit status what people see as a cross."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(FIRST_DAY.read_text().replace("to: bm2", "to: bm1"))
    argv = ["demo", str(broken), "--simulated", "--report", str(tmp_path / "report.html")]
    assert cli.main(argv) == 1
    told = capsys.readouterr().out
    assert " ✗ not every counter went on at bm1" in told
    assert "counter-1 ran on bm1, then bm2" in told


def test_the_command_refuses_a_scenario_with_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is played and nothing is written; the mistake has its line."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FIRST_DAY.read_text().replace("count: 300", "count: many"))
    page = tmp_path / "report.html"
    assert cli.main(["demo", str(wrong), "--simulated", "--report", str(page)]) == 65
    assert "jobs[2].count is 'many'" in capsys.readouterr().err
    assert not page.exists()
