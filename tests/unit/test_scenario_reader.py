"""A scenario file is read whole, or refused with every mistake, its line and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.config.problems import ConfigError
from backfill.core.model.fleet import Rung
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.scenario import Assertion, JobMoment, When

FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"

SMALL = """\
name: small
hosts:
  - {names: "bm[1-2]", cpus: 2}
policy:
  priorities: {low: [htc], high: [batch]}
  instances: {names: "vn[1-4]", addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 256}}
jobs:
  - {name: low, partition: htc, count: 10}
  - {name: high, partition: batch, nodes: bm1, run_s: 2s, when: {job: low, for_s: 1s}}
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is said about a file with this text, by line."""
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_scenario(file)
    return [f"{p.line}: {str(p).split(': ', 1)[1]}" for p in caught.value.problems]


def test_the_shipped_scenario_is_right() -> None:
    """The demo's own scenario has no mistakes and says what the demo promises."""
    scenario = load_scenario(FIRST_DAY)
    assert scenario.host_names == ("bm1", "bm2")
    assert [e.check for e in scenario.expect] == [
        Assertion.COUNTERS_WHOLE,
        Assertion.ENDED_ONCE,
        Assertion.WAITED_LONGER,
        Assertion.MOVED,
        Assertion.NOTHING_LEFT,
    ]
    assert scenario.entry("counter").all_names == ("counter-1", "counter-2")
    assert [r.rung for r in scenario.policies.ladder.rungs][:2] == [Rung.PAUSE, Rung.MIGRATE]


def test_values_are_read_with_their_units(tmp_path: Path) -> None:
    """Durations, hostlists and defaults come out as plain values; the policy is a policy set."""
    file = tmp_path / "s.yaml"
    file.write_text(SMALL + "costs: {boot_s: 800ms}\n")
    scenario = load_scenario(file)
    high = scenario.entry("high")
    assert (high.nodes, high.run_s) == (("bm1",), 2.0)
    assert high.when == When("low", JobMoment.RUNNING, 1.0)
    assert scenario.policies.instances.addresses[1] == "10.0.1.2/16"
    assert scenario.policies.hosts == ("bm1", "bm2")
    assert scenario.costs.boot_s == 0.8
    assert scenario.policy_keys["priorities"] == {"low": ["htc"], "high": ["batch"]}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cpus: 2}", "cpu: 2}", "3: hosts[0].cpu is not a known key; did you mean cpus?"),
        ("run_s: 2s", "run_s: 2 parsecs", "9: jobs[1].run_s is '2 parsecs'"),
        ("job: low,", "job: lov,", "9: jobs[1].when.job is lov, which is no job"),
        ("partition: htc", "partition: htd", "8: jobs[0].partition is htd, which is in neither"),
        ("nodes: bm1", "nodes: bm9", "9: jobs[1].nodes has bm9, which is no host"),
        (", count: 10", "", "8: jobs[0] does not say how long it runs; give one of run_s"),
        ("count: 10", "count: 10, run_s: 1", "8: jobs[0] has run_s and count; give one"),
        ("name: high", "name: low", "9: jobs[1].name makes a second job called low"),
        ("name: high", "name: low, copies: 2", "9: jobs[1].name makes a second job called low"),
        ("count: 10", "count: 10, cpus: 2", "8: jobs[0].cpus is 2, but an instance has 1"),
        ("count: 10", "count: 10, memory_mb: 999", "8: jobs[0].memory_mb is 999, but an instance"),
        ("count: 10", "count: 10, memory_mb: 256", "8: jobs[0].memory_mb is 256, but an instance has 208 MB"),
        ("count: 10", "count: 10, nodes: vn9", "8: jobs[0].nodes has vn9, which is no instance"),
        ("count: 10", "count: 10, copies: 99999", "7: jobs makes more than 10000 jobs"),
        ("run_s: 2s", "run_s: 2s, cpus: 3", "9: jobs[1].cpus is 3, but a host has 2 CPUs at most"),
        ("cpus: 1, mem", "cpus: 4, mem", "6: policy.instances.flavour.cpus is 4, but no host"),
        ("memory_mb: 256", "memory_mb: -1", "6: policy.instances.flavour.memory_mb is '-1'"),
        ('"vn[1-4]"', '"bm[1-4]"', "3: hosts[0].names has bm1, which policy.instances.names"),
        ("low: [htc]", "low: []", "5: policy.priorities.low is empty; name a partition"),
    ],
)
def test_each_mistake_is_told_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    """Misspelt keys, wrong units, unknown names and contradictions each get one sentence."""
    found = problems(tmp_path, SMALL.replace(old, new))
    assert any(line.startswith(told) for line in found), found


def test_no_host_is_told_beside_a_reservation_of_one(tmp_path: Path) -> None:
    """There is no name then that the reservation could use."""
    text = SMALL.replace('hosts:\n  - {names: "bm[1-2]", cpus: 2}', "hosts: []")
    found = problems(tmp_path, text + "reservations:\n  - {nodes: bm1, at_s: 60, for_s: 60}\n")
    assert "2: hosts is empty; give at least one host" in found
    assert "10: reservations[0].nodes has bm1, which is no host; use host names" in found


def test_jobs_that_wait_for_one_another_are_refused(tmp_path: Path) -> None:
    """Two jobs, each submitted after the other, would never begin."""
    text = SMALL.replace("count: 10", "count: 10, when: {job: high}")
    assert problems(tmp_path, text) == [
        "8: jobs[0].when.job closes a circle: low waits for high waits for low; "
        "let one of them begin by itself"
    ]


def test_counters_are_expected_only_where_a_job_counts(tmp_path: Path) -> None:
    """Nothing that nobody counted has a gap."""
    text = SMALL.replace("count: 10", "run_s: 10s") + "expect:\n  - check: counters-whole\n"
    assert problems(tmp_path, text) == [
        "11: expect[0].check is counters-whole, but no job counts; give one a count, or leave it out"
    ]


def test_an_expectation_needs_its_fields(tmp_path: Path) -> None:
    """An assertion about a job without the job cannot be judged."""
    text = SMALL + "expect:\n  - {check: moved, job: low}\n  - {check: waited-longer, than: high}\n"
    assert problems(tmp_path, text) == [
        "11: expect[0].to is missing for moved; add it",
        "12: expect[1].job is missing for waited-longer; add it",
    ]


def test_what_a_check_does_not_look_at_is_refused(tmp_path: Path) -> None:
    """It would be believed to be checked."""
    text = SMALL + "expect:\n  - {check: ended-once, job: low}\n"
    text += "  - {check: moved, job: low, to: bm1, by: pause, times: 2}\n"
    assert problems(tmp_path, text) == [
        "11: expect[0].job means nothing for ended-once; leave it out",
        "12: expect[1].by means nothing for moved; leave it out",
        "12: expect[1].times means nothing for moved; leave it out",
    ]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """No file, an empty one, and one that is no text are told in one sentence each."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_scenario(tmp_path / "none.yaml")
    assert problems(tmp_path, "") == ["1: the scenario is empty; give name, hosts and jobs"]
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_scenario(tmp_path / "s.yaml")
