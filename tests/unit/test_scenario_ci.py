"""Scenarios for CI: mishaps, JUnit, JSON, exit status, and two policy files side by side."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from backfill.config.problems import ConfigError
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.ui.cli import main
from backfill.ui.command_line import BY_NAME, SCENARIO, command_of
from tests.unit.policy_files import text

SMALL = """\
name: small <&> "one"
limit_s: 10m
hosts:
  - {names: "bm[1-2]", cpus: 2}
policy:
  priorities: {low: [htc], high: [batch]}
  instances: {names: "vn[1-2]", addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 256}}
  scale: {idle_s: 5s}
jobs:
  - {name: low, partition: htc, count: 200}
  - {name: high, partition: batch, nodes: bm1, run_s: 20s, when: {job: low, for_s: 5s}}
expect:
  - check: ended-once
  - {check: moved, job: low, to: bm2}
"""
KILL = "ladder: [{rung: requeue, within_s: 60s}]"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "pause.yaml").write_text(text("scale: {idle_s: 5s}"))
    (tmp_path / "kill.yaml").write_text(text(KILL, "scale: {idle_s: 5s}"))
    return tmp_path


def with_faults(here: Path, *faults: str) -> Outcome:
    listed = "".join(f"  - {fault}\n" for fault in faults)
    (here / "f.yaml").write_text(SMALL + "faults:\n" + listed)
    scenario = load_scenario(here / "f.yaml")
    return play(scenario, SimulatedStage(scenario))


def test_a_failed_expectation_is_a_failure_in_the_report(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid XML with a test per expectation; the exit status says the same."""
    assert main(["replay", "s.yaml", "--junit", "out.xml"]) == 1
    assert "✗ not every low went on at bm2" in capsys.readouterr().out
    suite = ET.parse(here / "out.xml").getroot()[0]
    assert suite.attrib["name"] == 'small <&> "one"'
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "1")
    titles = {case.attrib["name"]: case.find("failure") for case in suite}
    assert titles["ended-once"] is None
    failure = titles["moved low to bm2"]
    assert failure is not None
    assert failure.attrib["message"] == "not every low went on at bm2"
    assert failure.text == "low ran on bm1"


@pytest.mark.parametrize("options", [[], ["--json"], ["--junit", "out.xml"]])
def test_a_scenario_without_expectations_says_so(
    here: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It passes as before; whoever runs it in CI sees why it cannot fail."""
    (here / "s.yaml").write_text(SMALL.partition("expect:")[0])
    assert main(["replay", "s.yaml", *options]) == 0
    told = "backfill: nothing was expected, so that nothing can fail; add expect: [{check: ended-once}]\n"
    assert capsys.readouterr().err == told


def test_a_scenario_and_a_trace_are_not_taken_for_each_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "s.yaml").rename(here / "story")
    for more in ([], ["--cluster", "2x2"], ["--junit", "x.xml"]):
        assert main(["replay", "story", *more]) == 65
        assert capsys.readouterr().err == "backfill: story: this looks like a scenario; name it story.yaml\n"
    assert main(["replay", "--live", "traces/poisson"]) == 65
    told = capsys.readouterr().err
    assert "this looks like a trace, and what is played is a scenario, such as first_day" in told
    assert told.count("\n") == 1


def test_the_report_of_a_scenario_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--help"]) == 0
    assert "--junit OUT" in capsys.readouterr().out


def test_the_outcome_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object and nothing else on stdout."""
    assert main(["replay", "s.yaml", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    (one,) = printed["plays"].values()
    assert [found["ok"] for found in one["expectations"]] == [True, False]


def test_two_policies_on_one_scenario(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is judged, and their measures stand beside one another; a suite for each."""
    options = ["--policy", "pause.yaml", "--against", "kill.yaml", "--junit", "out.xml"]
    assert main(["replay", "s.yaml", *options]) == 1
    printed = capsys.readouterr().out
    assert "low (job 1) is completed after 1 restarts" in printed
    assert any(line.split()[:1] == ["makespan"] for line in printed.splitlines())
    suites = ET.parse(here / "out.xml").getroot()
    failed = [[c.attrib["name"] for c in suite if len(c)] for suite in suites]
    assert failed == [["moved low to bm2"], ["ended-once"]]


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--against", "kill.yaml"], 64, "--against needs --policy FILE"),
        (["--policy", "none.yaml"], 65, "cannot be read: No such file"),
        (["--policy", "other.yaml"], 65, "does not fit the scenario: its jobs[1].partition is"),
        (["--junit", "none/x.xml"], 65, "cannot write none/x.xml: there is no directory"),
        (["--junit", "s.yaml"], 65, "it is one of the inputs"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int, sentence: str
) -> None:
    """With its exit status, before anything is played or written."""
    (here / "other.yaml").write_text(text(priorities="priorities: {low: [htc], high: [big]}"))
    assert main(["replay", "s.yaml", *options]) == status
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""
    assert (here / "s.yaml").read_text() == SMALL
    assert not (here / "backfill-demo.html").exists()


def test_a_policy_file_is_not_taken_for_the_scenario() -> None:
    """The word after an option with a file is that option's."""
    trace = command_of(["replay", "t.swf", "--policy", "p.yaml"])
    story = command_of(["replay", "--policy", "p.yaml", "s.yaml"])
    assert trace is not None
    assert story is not None
    assert (trace, story) == (BY_NAME["replay"], SCENARIO)


def test_work_survives_mishaps(here: Path) -> None:
    """A killed daemon, a silent slurmctld, a host out of reach and calls that fail lose nothing."""
    outcome = with_faults(
        here,
        "{what: daemon-killed, when: {job: high, for_s: 2s}, for_s: 3s}",
        "{what: slurm-silent, when: {job: high, for_s: 8s}, for_s: 4s}",
        "{what: host-cut, host: bm2, when: {job: high, for_s: 10s}, for_s: 4s}",
        "{what: call-fails, call: thaw, host: bm1, times: 2}",
    )
    assert outcome.verdicts[0].ok
    starts = [r for r in outcome.records if r.kind == "daemon" and r.body["event"] == "start"]
    assert len(starts) == 2
    assert [r for r in outcome.records if "as the scenario wants it" in str(r.body)]


def test_work_survives_readings_that_lack_it(here: Path) -> None:
    """Slurm without nodes, a clock that is set, and a file server that is out for a while."""
    outcome = with_faults(
        here,
        "{what: nodes-unseen, when: {job: low, for_s: 2s}}",
        "{what: clock-set, by_s: 6h, when: {job: high, for_s: 2s}}",
        "{what: files-out, when: {job: high, for_s: 3s}, for_s: 10s}",
    )
    assert outcome.verdicts[0].ok
    moved = [r for r in outcome.records if "ClockSet" in str(r.body)]
    assert moved


@pytest.mark.parametrize("what", ["jobs-unseen", "half-unseen", "instances-unseen, host: bm1"])
def test_odd_readings_can_be_ordered(here: Path, what: str) -> None:
    """They happen, and the play ends."""
    outcome = with_faults(here, f"{{what: {what}, when: {{job: high, for_s: 2s}}}}")
    assert not [v for v in outcome.verdicts if v.title == "over in time"]


def test_a_dead_host_and_a_guest_that_never_boots(here: Path) -> None:
    """What ran on the host that lost power starts over, and the expectation says so."""
    outcome = with_faults(
        here,
        "{what: never-boots, node: vn1}",
        "{what: host-dead, host: bm1, when: {job: low, for_s: 2s}, for_s: 20s}",
    )
    assert not outcome.verdicts[0].ok
    assert "after 1 restarts" in outcome.verdicts[0].details[0]
    assert any("did not register" in str(r.body) for r in outcome.records)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("{what: host-cut, for_s: 1s}", "faults[0].host is missing for host-cut"),
        ("{what: host-dead, host: bm1}", "faults[0].for_s is missing for host-dead"),
        ("{what: host-dead, host: bm7, for_s: 1s}", "faults[0].host is bm7, which is no host"),
        ("{what: call-fails, call: pausse}", "faults[0].call is pausse, which is no call"),
        ("{what: never-boots, node: vm1}", "faults[0].node is vm1, which is no instance"),
        ("{what: daemon-killed, when: {job: x}}", "faults[0].when.job is x, which is no job"),
        ("{what: clock-set}", "faults[0].by_s is missing for clock-set"),
        ("{what: instances-unseen}", "faults[0].host is missing for instances-unseen"),
        ("{what: files-out}", "faults[0].for_s is missing for files-out"),
        ("{what: meteorite}", "faults[0].what is the text 'meteorite'"),
    ],
)
def test_a_mishap_that_cannot_happen_is_refused(here: Path, fault: str, told: str) -> None:
    """With its line and the remedy."""
    (here / "f.yaml").write_text(SMALL + f"faults:\n  - {fault}\n")
    with pytest.raises(ConfigError) as caught:
        load_scenario(here / "f.yaml")
    assert any(told in str(p) and ":16:" in str(p) for p in caught.value.problems), caught.value


def test_a_job_that_never_computed_is_measured_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is told to finish as soon as it has begun."""
    ends = "ends: {job: low, state: waiting}"
    (here / "s.yaml").write_text(SMALL.replace("run_s: 20s", ends))
    assert main(["replay", "s.yaml", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["plays"].values()
    assert one["measures"]["makespan"] > 0
