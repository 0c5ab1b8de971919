"""The files that `replay` with policies writes: a page, a trace for Perfetto, Batsim's jobs."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from backfill.ui.commands.replay import main
from backfill.ui.parser import USAGE
from tests.component.replay_files import replayed, written


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_one_page_of_two_policies(files: Path) -> None:
    """It needs nothing from outside, tells what differs, and has every job on its timelines."""
    out = files / "page.html"
    options = ("--against", str(files / "kill.yaml"), "--seeds", "3", "--report", str(out))
    assert replayed(files, "--backlog", "htc:40", *options) == 0
    page = out.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=|https?:|url\(|@import", page)
    assert "<h1>Replay with pause.yaml and kill.yaml</h1>" in page
    assert "Over 3 seeds" in page
    assert "<th>kill.yaml minus pause.yaml</th>" in page
    badput, *by_cause = re.findall(r"badput .*?</tr>", page)
    assert [line.partition("<")[0] for line in by_cause] == ["badput by ladder"]
    assert re.search(r'<td class="bad">\+[\d.e-]+ ± [\d.e-]+ core h, worse</td>', badput)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [len(run["spans"]) % 5 for run in data["runs"]] == [0, 0]
    looks = [name for name, _, _ in data["looks"]]
    for run in data["runs"]:
        lanes = sum(depth for _, depth in run["rows"])
        spans = [run["spans"][i : i + 5] for i in range(0, len(run["spans"]), 5)]
        assert all(0 <= lane < lanes and length > 0 for lane, _, length, _, _ in spans)
        high = {run["names"][s[4]] for s in spans if looks[s[3]] == "high-priority job"}
        assert high == {"1", "2", "3"}
        assert {looks[s[3]] for s in spans} >= {"low-priority job", "instance runs"}


def test_a_trace_for_perfetto(files: Path) -> None:
    """A process for each policy and host, complete events in microseconds, nested in lanes."""
    out = files / "trace.json"
    assert replayed(files, "--backlog", "htc:1:40", "--perfetto", str(out)) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"pause.yaml: bm1", "pause.yaml: bm2"}
    spans = [e for e in events if e["ph"] == "X"]
    by_lane: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in spans:
        assert event["dur"] > 0
        begin = event["ts"]
        by_lane.setdefault((event["pid"], event["tid"]), []).append((begin, begin + event["dur"]))
    assert [e["ts"] for e in spans] == sorted(e["ts"] for e in spans)
    for lane in by_lane.values():
        lane.sort()
        assert all(one[1] <= other[0] + 1 for one, other in pairwise(lane)), lane


def test_jobs_as_batsim_writes_them(files: Path) -> None:
    """The columns of out_jobs.csv, times that add up, and resources as intervals."""
    out = files / "out_jobs.csv"
    assert replayed(files, "--backlog", "htc:1:40", "--batsim-csv", str(out)) == 0
    with out.open() as lines:
        rows = list(csv.DictReader(lines))
    wide = next(row for row in rows if row["workload_name"] == "high" and row["job_id"] == "2")
    assert wide["allocated_resources"] == "0-1"
    assert wide["success"] == "1"
    for row in rows:
        if row["final_state"] == "COMPLETED_SUCCESSFULLY":
            wait = float(row["starting_time"]) - float(row["submission_time"])
            assert wait == pytest.approx(float(row["waiting_time"]), abs=0.002)
            turnaround = wait + float(row["execution_time"])
            assert turnaround == pytest.approx(float(row["turnaround_time"]), abs=0.005)
            stretch = turnaround / float(row["execution_time"])
            assert stretch == pytest.approx(float(row["stretch"]), rel=1e-3)
            assert int(row["requested_number_of_resources"]) == (
                2 if row["allocated_resources"] == "0-1" else 1
            )


@pytest.mark.parametrize("option", ["--report", "--perfetto", "--batsim-csv"])
def test_pictures_need_a_policy(files: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without instances there is nothing to show, and the sentence says so."""
    out = files / "out"
    assert main([str(files / "t.swf"), "--cluster", "2x1", option, str(out)]) == USAGE
    assert f"{option} needs --policy FILE" in capsys.readouterr().err
    assert not out.exists()
