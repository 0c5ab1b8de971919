"""A trace that tells whose its jobs are: low partitions, memory, owners; and two policies of other sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.sacct import read_sacct
from backfill.sim.traces.shake import shaken
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import JobDetails
from backfill.ui.commands.replay import main
from backfill.ui.parser import BAD_DATA
from tests.unit.policy_files import text

_COLUMNS = "JobID|Submit|ElapsedRaw|ReqCPUS|ReqMem|Partition|User|Account|QOS\n"
_MORE = "limits: {max_per_host: 4}"


def _dump(where: Path, *rows: str) -> str:
    lines = (f"{number}|{row}\n" for number, row in enumerate(rows, 1))
    where.write_text(_COLUMNS + "".join(lines))
    return str(where)


def _instances(cpus: int = 1, memory: str = "1GB") -> str:
    flavour = f"{{cpus: {cpus}, memory_mb: {memory}}}"
    return f"instances: {{names: 'vn[1-4]', addresses: 10.0.1.1/16, flavour: {flavour}}}"


def _policy(where: Path, *more: str, instances: str = "") -> str:
    where.write_text(text(_MORE, *more, instances=instances or _instances()))
    return str(where)


def _played(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--cluster", "2x4", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


METAL = "2026-01-01T00:00:00|3600|4|1G|batch|root|a|normal"
HTC = "2026-01-01T00:00:10|600|1|500M|htc|ann|chem|normal"


def test_jobs_of_low_partitions_wait_for_instances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come at their own times, and people are told how many they are."""
    trace = _dump(tmp_path / "t.txt", METAL, HTC, HTC)
    found = _played(capsys, trace, "--policy", _policy(tmp_path / "p.yaml"))
    assert (found["high_jobs"], found["low_jobs"]) == (1, 2)
    assert found["policies"]["p.yaml"]["low_completed"] == 2
    assert "2 jobs of the trace are low-priority as the policy has it" in found["notes"][0]


def test_a_backlog_takes_the_place_of_the_low_jobs_in_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody plays them twice, or as jobs of high priority."""
    trace = _dump(tmp_path / "t.txt", METAL, HTC, HTC)
    found = _played(capsys, trace, "--policy", _policy(tmp_path / "p.yaml"), "--backlog", "htc:3")
    assert (found["high_jobs"], found["low_jobs"]) == (1, 3)
    assert found["left_out"] == {"low-priority by the policy, and --backlog gives others": 2}


def test_a_trace_without_high_jobs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing that instances are pushed aside for."""
    trace = _dump(tmp_path / "t.txt", HTC)
    assert main([trace, "--cluster", "2x4", "--policy", _policy(tmp_path / "p.yaml")]) == BAD_DATA
    assert "has low-priority jobs only" in capsys.readouterr().err


def test_a_job_needs_an_instance_with_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In all or per CPU, as sacct writes it; what an instance keeps for itself is not for jobs."""
    rows = [HTC.replace("500M", memory) for memory in ("64G", "1G", "976M", "976Mc", "")]
    trace = _dump(tmp_path / "t.txt", METAL, *rows)
    found = _played(capsys, trace, "--policy", _policy(tmp_path / "p.yaml"))
    assert found["low_jobs"] == 3
    assert found["backlog_left_out"] == {"more memory than an instance has for jobs": 2}


def test_what_a_dump_tells_stays_with_its_job(tmp_path: Path) -> None:
    """Also where jobs are put in order, left out or shaken."""
    late = HTC.replace("00:00:10", "00:00:05").replace("ann", "bob").replace("500M", "2Gn")
    trace = read_sacct(Path(_dump(tmp_path / "t.txt", METAL, HTC, late)))
    assert trace.told(1) == JobDetails("htc", "bob", "chem", "normal", 2048)
    assert trace.fitting(1).told(0) == trace.told(1)
    assert shaken(trace, 1).details is not None


def test_two_policies_of_other_sizes_compare_the_same_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that fits one of them alone takes no place in the other one's queue."""
    (tmp_path / "t.swf").write_text("".join(swf_lines([ModelJob(0, 40_000, 4)], ())))
    jobs = [*(ModelJob(0, 600, 4) for _ in range(20)), *(ModelJob(0, 600, 1) for _ in range(20))]
    (tmp_path / "b.swf").write_text("".join(swf_lines(jobs, ())))
    small = _policy(tmp_path / "p1.yaml")
    large = _policy(tmp_path / "p4.yaml", instances=_instances(4, "3GB"))
    files = (str(tmp_path / "t.swf"), "--backlog", str(tmp_path / "b.swf"))
    one = _played(capsys, *files, "--policy", small, "--against", large)["policies"]
    other = _played(capsys, *files, "--policy", large, "--against", small)["policies"]
    assert one == other
    assert [one["p1.yaml"][key] for key in ("low_completed", "low_unfit")] == [20, 20]
    assert [one["p4.yaml"][key] for key in ("low_completed", "low_unfit")] == [40, 0]


def test_quotas_hold_for_the_owners_in_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without owners there is nobody to hold them, and that is said."""
    files = ("--policy", _policy(tmp_path / "p.yaml", "quotas: [{cpus: 0, account: chem}]"))
    found = _played(capsys, _dump(tmp_path / "t.txt", METAL, HTC, HTC), *files)
    assert found["policies"]["p.yaml"]["low_completed"] == 0
    assert not any("not replayed" in note for note in found["notes"])
    found = _played(capsys, str(tmp_path / "t.txt"), *files, "--backlog", "htc:3")
    assert (
        "not replayed of p.yaml: quotas[0] (account): the low-priority jobs do not tell it"
        in found["notes"][-1]
    )


def test_what_no_replayed_job_can_meet_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = (
        "workloads: [{name: a, job_name: 'x*'}, {name: b, users: [ann], partitions: [htc]}]",
        "daemon: {host_poll_s: 60}",
    )
    trace = _dump(tmp_path / "t.txt", METAL)
    policy = _policy(tmp_path / "p.yaml", *more)
    notes = _played(capsys, trace, "--policy", policy, "--backlog", "htc:3")["notes"]
    assert any("workloads[1] (users): the low-priority jobs" in note for note in notes)
    assert any("workloads[0] (job_name): replayed jobs have no names" in note for note in notes)
    assert any("daemon.host_poll_s" in note for note in notes)


def test_what_hosts_keep_is_kept_from_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host of four CPUs that keeps three has room for one instance."""
    trace = _dump(tmp_path / "t.txt", *[HTC] * 8, METAL.replace("T00", "T01"))
    made = []
    for keeps in ("", ", keep_cpus: 3"):
        policy = tmp_path / "p.yaml"
        hosts = f"hosts: [{{name: bm1, provider: simulated{keeps}}}]"
        policy.write_text(text(_MORE, instances=_instances(), hosts=hosts))
        found = _played(capsys, trace, "--policy", str(policy))
        made.append(found["policies"]["p.yaml"]["steps"]["instances made"])
    assert made == [4, 1]


def test_slurm_is_read_as_often_as_the_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that waits is seen later."""
    trace = _dump(tmp_path / "t.txt", METAL.replace("3600", "40000"))
    often = _policy(tmp_path / "often.yaml", "daemon: {poll_s: 0.5}")
    seldom = _policy(tmp_path / "seldom.yaml", "daemon: {poll_s: 10}")
    backlog = _dump(tmp_path / "b.txt", HTC.replace("10|600", "11|600"))
    found = _played(capsys, trace, "--policy", often, "--against", seldom, "--backlog", backlog)["policies"]
    ended = [found[name]["low_turnaround_mean_s"] for name in ("often.yaml", "seldom.yaml")]
    assert ended[1] - ended[0] > 5.0
