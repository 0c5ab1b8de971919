"""The command `replay` with policies: what it prints and writes, and how it refuses bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.swf import swf_lines
from backfill.ui.commands.replay import main
from backfill.ui.parser import BAD_DATA, USAGE
from tests.component.replay_files import LIMITS, SMALL, replayed, written
from tests.unit.policy_files import text


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_what_a_replay_cannot_show_is_noted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing runs on instances without such jobs, and on nodes that may have none."""
    assert replayed(files) == 0
    assert "note: no low-priority work: give --backlog htc:1000, or a dump" in capsys.readouterr().err
    assert replayed(files, "--backlog", "htc:5", "--cluster", "3x1") == 0
    told = capsys.readouterr().err
    assert "no low-priority work" not in told
    assert "note: 2 of 3 nodes may carry instances, the hosts of the policy; --all-nodes lets all" in told
    assert replayed(files, "--backlog", "htc:5", "--cluster", "3x1", "--all-nodes") == 0
    assert "may carry instances" not in capsys.readouterr().err


def test_a_table_for_people(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the policy harvested and what it cost; what was left out goes to stderr."""
    assert replayed(files, "--backlog", "htc:1:40") == 0
    printed = capsys.readouterr()
    assert "3 high-priority jobs on 2 x 1 processors, 40 low-priority jobs" in printed.out
    assert "harvested share of idle time" in printed.out
    assert "preemptions by pause" in printed.out
    assert "left out of the trace: 1 job: more processors than the machine has" in printed.err


def test_json_of_two_policies(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All figures by policy, and a sentence for each difference."""
    options = ("--backlog", "htc:1:40", "--against", str(files / "kill.yaml"), "--json")
    assert replayed(files, *options) == 0
    printed = json.loads(capsys.readouterr().out)
    pause, kill = printed["policies"]["pause.yaml"], printed["policies"]["kill.yaml"]
    assert set(pause["preemptions_by_rung"]) == {"pause"}
    assert set(kill["preemptions_by_rung"]) == {"requeue"}
    assert pause["badput_core_h"] < kill["badput_core_h"]
    assert pause["delay_s"]["count"] == 3
    assert any(text.startswith("Badput (lost work): rises from") for text in printed["differences"])
    assert printed["window_s"] == 1560


def test_bare_metal_without_backfilling(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under FCFS the short job waits behind the wide one, with instances and without."""
    jobs = [ModelJob(0, 600, 1), ModelJob(10, 600, 2), ModelJob(20, 60, 1)]
    (files / "t.swf").write_text("".join(swf_lines(jobs, ())))
    waits = {}
    for scheduler in ("easy", "fcfs", "conservative"):
        assert replayed(files, "--scheduler", scheduler, "--backlog", "htc:9", "--json") == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["scheduler"] == scheduler
        waits[scheduler] = printed["policies"]["pause.yaml"]["high_wait_mean_s"]
        assert printed["policies"]["pause.yaml"]["delay_max_s"] < 1.0
    assert waits["easy"] == pytest.approx(590.0 / 3, abs=1.0)
    assert waits["fcfs"] == pytest.approx((590.0 + 1180.0) / 3, abs=1.0)
    assert waits["conservative"] == waits["easy"]


def test_each_event_may_have_a_pass_of_its_own(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The third job arrives as the first one ends early: it overtakes only where it comes first."""
    jobs = [ModelJob(0, 100, 1, 300), ModelJob(10, 100, 2), ModelJob(100, 150, 1)]
    (files / "t.swf").write_text("".join(swf_lines(jobs, ())))
    (files / "costs.yaml").write_text("hook_s: 0\n")  # or it would not end at that instant
    waits = {}
    for tie in ("batch", "eventwise"):
        costs = ("--costs", str(files / "costs.yaml"))
        assert replayed(files, "--tie", tie, *costs, "--json") == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["tie"] == tie
        waits[tie] = printed["policies"]["pause.yaml"]["high_wait_mean_s"]
    assert waits["batch"] == pytest.approx((90.0 + 100.0) / 3, abs=1.0)
    assert waits["eventwise"] == pytest.approx(240.0 / 3, abs=1.0)


def test_the_same_policy_twice(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Same input, same seed, same policy: the same history."""
    same = files / "same.yaml"
    same.write_text((files / "pause.yaml").read_text())
    assert replayed(files, "--backlog", "htc:1:40", "--against", str(same), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["differences"] == ["same.yaml makes no difference to pause.yaml on this input."]


def test_jobs_csv(files: Path) -> None:
    """One row per job, in the trace's own time, high and low; the known columns come first."""
    out = files / "jobs.csv"
    assert replayed(files, "--backlog", "htc:1:40", "--jobs-csv", str(out)) == 0
    with out.open() as lines:
        rows = list(csv.DictReader(lines))
    first = rows[0]
    assert list(first)[:5] == ["job_id", "submit", "start", "end", "processors"]
    high = [row for row in rows if row["class"] == "high"]
    assert [row["submit"] for row in high] == ["0", "300", "1500"]
    assert [float(row["end"]) - float(row["start"]) for row in high] == pytest.approx([60, 600, 60])
    assert {row["policy"] for row in rows} == {"pause.yaml"}
    assert all(row["last_host"] in ("bm1", "bm2") for row in rows if row["start"])


def test_without_low_priority_work_only_the_hook_is_felt(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No backlog, no instances: jobs begin as late as the hook takes."""
    assert replayed(files, "--json") == 0
    figures = json.loads(capsys.readouterr().out)["policies"]["pause.yaml"]
    assert figures["steps"]["instances made"] == 0
    assert figures["own_delay_max_s"] == pytest.approx(0.015)
    assert figures["delay_max_s"] == pytest.approx(0.015)


def test_a_trace_as_backlog_and_costs_of_ones_own(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Low-priority work may be a trace; what no instance can carry is left out and told."""
    (files / "low.swf").write_text(
        "".join(swf_lines([ModelJob(0, 100, 1), ModelJob(0, 50, 2), ModelJob(5, 9, 1)], ()))
    )
    (files / "costs.yaml").write_text("boot_s: 20s\nhook_s: 500ms\ntransfers: 1\n")
    costs = ("--costs", str(files / "costs.yaml"))
    assert replayed(files, "--backlog", str(files / "low.swf"), *costs, "--json") == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)["policies"]["pause.yaml"]
    assert figures["low_completed"] == 2
    assert figures["own_delay_max_s"] >= 0.5
    assert "left out of the backlog: 1 job: more processors than an instance has" in printed.err


def test_a_broken_promise_is_exit_status_1(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The story of those whom it is about goes to stderr; no figures are printed."""
    (files / "costs.yaml").write_text("pause_s: 20s\n")
    costs = ("--costs", str(files / "costs.yaml"))
    assert replayed(files, "--backlog", "htc:1:40", *costs) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "broken promise: job" in printed.err
    assert "is now evicting" in printed.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "no.yaml"], "no.yaml: the policy file cannot be read"),
        (["--against", "no.yaml"], "no.yaml: the policy file cannot be read"),
        (["--against", "other.yaml"], "the two policies differ in hosts"),
        (["--cluster", "1x1"], "the policy has 2 hosts and the cluster 1 nodes"),
        (["--backlog", "no.swf"], "no.swf: "),
        (["--costs", "bad.yaml"], "bad.yaml:1:9: boot_s is 'soon'"),
        (["--costs", "empty.yaml"], "the costs file is empty; give boot_s"),
        (["--costs", "no.yaml"], "the costs file cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    """Exit status 2, one sentence with the place and the remedy, no file written."""
    monkeypatch.chdir(files)
    (files / "bad.yaml").write_text("boot_s: soon\n")
    (files / "empty.yaml").write_text("")
    hosts = "hosts: [{name: bm1, provider: simulated}]"
    (files / "other.yaml").write_text(text(LIMITS, instances=SMALL, hosts=hosts))
    out = files / "jobs.csv"
    assert replayed(files, *options, "--jobs-csv", str(out)) == BAD_DATA
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--backlog", "htc:0"], "--backlog: 'htc:0' is neither htc:JOBS nor htc:SEED:JOBS"),
        (["--saves-every", "often"], "--saves-every: 'often' is not a duration; write 30m"),
        (["--save-takes", "-1s"], "--save-takes: '-1s' is negative"),
        (["--node-memory", "much"], "--node-memory: 'much' is not a size; write 64G"),
        (["--shake", "0"], "--shake: '0' is no number of repeats"),
    ],
)
def test_values_that_cannot_be_understood(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    """They are refused as the rest of the command line is, before a file is read."""
    with pytest.raises(SystemExit, match="64"):
        replayed(files, "--policy", "no.yaml", *[options[0] + "=" + options[1]])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "a trace needs --cluster NODESxCPUS"),
        (["--cluster", "2x1", "--backlog", "htc:9"], "--backlog needs --policy FILE"),
        (["--cluster", "2x1", "--against", "x.yaml"], "--against needs --policy FILE"),
        (["--cluster", "2x1", "--shake", "3"], "--shake needs --policy FILE"),
        (["--cluster", "2x1", "--learn", "x.yaml"], "--learn needs --journal FILE"),
    ],
)
def test_options_that_need_others(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    """What is missing is said, also where the option would only have been ignored."""
    assert main([str(files / "t.swf"), *options]) == USAGE
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--no-instances"], "--no-instances contradicts --policy"),
        (["--save-takes", "10s"], "--save-takes needs --saves-every TIME"),
        (["--seeds", "2", "--shake", "2"], "both say how often to repeat; give one"),
    ],
)
def test_options_of_the_bare_cluster_are_refused_with_a_policy(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    """A figure of another scheduler than was asked for would be worse than none."""
    assert replayed(files, *options) == USAGE
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ("none/r.html", "there is no directory"),
        (".", "it is a directory"),
        ("j.csv", "two files would have this name"),
        ("t.swf", "it is one of the inputs"),
    ],
)
def test_no_file_is_written_when_one_cannot_be(
    files: Path, capsys: pytest.CaptureFixture[str], report: str, problem: str
) -> None:
    """Asked before anything is played: neither the other file nor hours of work are left."""
    trace = (files / "t.swf").read_text()
    out = files / "j.csv"
    options = ("--jobs-csv", str(out), "--report", str(files / report))
    assert replayed(files, *options) == BAD_DATA
    assert problem in capsys.readouterr().err
    assert not out.exists()
    assert (files / "t.swf").read_text() == trace


def test_measures_of_the_jobs_themselves(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three jobs one after another on an idle cluster: no wait to speak of, slowdown 1."""
    assert replayed(files, "--backlog", "htc:1:40", "--json") == 0
    found = json.loads(capsys.readouterr().out)["policies"]["pause.yaml"]
    assert found["high_wait_mean_s"] < 1.0
    assert found["high_turnaround_mean_s"] == pytest.approx((60 + 600 + 60) / 3, abs=1.0)
    assert found["high_slowdown_mean"] == pytest.approx(1.0, abs=0.02)
    assert found["high_pp_slowdown_mean"] == pytest.approx(1.0, abs=0.02)
    assert found["makespan_s"] == pytest.approx(1560, abs=1.0)
    assert found["low_slowdown_mean"] >= 1.0


def test_repeats_show_means(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside differences of means stands no figure of one seed alone."""
    options = ("--backlog", "htc:1:40", "--against", str(files / "kill.yaml"), "--seeds", "3")
    assert replayed(files, *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    pause, kill = (found["means"][name]["low_turnaround_mean_s"] for name in ("pause.yaml", "kill.yaml"))
    assert kill - pause == pytest.approx(found["intervals"]["low_turnaround_mean_s"]["mean"])
    assert pause != found["policies"]["pause.yaml"]["low_turnaround_mean_s"]
    page = files / "page.html"
    assert replayed(files, *options, "--report", str(page)) == 0
    told = f"figures are means of 3 seeds; single jobs, refusals and timelines are of seed {found['seed']}"
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("low job that ended: turnaround")]
    shown = f"{pause:.1f} s"
    assert shown in row
    html = page.read_text()
    assert told in printed
    assert told in html
    assert f"<td>{shown}</td>" in html
