"""A replay observes what --from and --to bound, with what came before and reaches into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import TraceError
from backfill.sim.traces.window import AFTER, BEFORE, RAN_ALREADY, WAITED_ALREADY, TraceWindow, told_early
from backfill.ui.commands.replay import main
from backfill.ui.commands.replay_options import moment
from backfill.ui.parser import BAD_DATA
from tests.component.replay_files import LIMITS, SMALL
from tests.unit.policy_files import loaded, text

MONDAY_S = 1_704_067_200  # 2024-01-01 00:00 UTC
DAY_S = 86_400
HEADER = "JobID|Submit|Start|ElapsedRaw|ReqCPUS|Timelimit"


def dump(folder: Path, *rows: str) -> Path:
    path = folder / "jobs.txt"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def swf(folder: Path, *jobs: str) -> Path:
    """Jobs of submit, wait and run time."""
    path = folder / "t.swf"
    lines = (f"{n} {job} 1 -1 -1 1 900 -1 1 -1 -1 -1 -1 -1 -1 -1\n" for n, job in enumerate(jobs, 1))
    path.write_text("".join(lines))
    return path


def test_what_reaches_into_the_window_counts_from_its_beginning(tmp_path: Path) -> None:
    """What ran then has the rest of its time, and its room before those that waited."""
    path = dump(
        tmp_path,
        "1|2023-10-01T00:00:00|2023-10-01T00:00:00|600|1|01:00:00",
        "2|2023-10-01T00:00:00|2024-01-01T05:00:00|600|1|01:00:00",
        "3|2023-12-31T00:00:00|2023-12-31T23:00:00|7200|1|04:00:00",
        "4|2024-01-01T01:00:00|2024-01-01T01:00:00|600|1|01:00:00",
        "5|2024-01-02T00:00:00|2024-01-02T00:00:00|600|1|01:00:00",
    )
    trace = read_trace(path, window=TraceWindow(MONDAY_S, MONDAY_S + DAY_S))
    assert trace.labels == ("3", "2", "4")
    assert [at - MONDAY_S for at in trace.submit] == [0, 1, 3600]
    assert list(trace.run) == [3600, 600, 600]
    assert list(trace.estimate) == [3 * 3600, 3600, 3600]
    assert (trace.begin, trace.bound) == (MONDAY_S, MONDAY_S + DAY_S)
    assert trace.left_out == {BEFORE: 1, AFTER: 1}
    assert trace.noted == {RAN_ALREADY: 1, WAITED_ALREADY: 1}


def test_swf_knows_starts_by_the_time_that_was_waited(tmp_path: Path) -> None:
    """Where that is unknown, a job is taken to have begun at once; fractions stay exact."""
    path = swf(tmp_path, "0 50 100", "0 150 100", "0 -1 120.5", "90 0 10")
    trace = read_trace(path, window=TraceWindow(100))
    assert list(trace.job_id) == [1, 3, 2]
    assert list(trace.run) == [50_000, 20_500, 100_000]
    assert trace.left_out == {BEFORE: 1}


def test_dates_need_a_trace_that_knows_them(tmp_path: Path) -> None:
    path = swf(tmp_path, "0 0 100", "3600 0 100")
    with pytest.raises(TraceError, match="give --from and --to as seconds of its own"):
        read_trace(path, window=TraceWindow(MONDAY_S))
    path.write_text(f"; UnixStartTime: {MONDAY_S - 3600}\n{path.read_text()}")
    assert list(read_trace(path, window=TraceWindow(MONDAY_S)).job_id) == [2]


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    loaded(folder, text(LIMITS, instances=SMALL))
    common = ("--cluster", "2x1", "--policy", str(folder / "policy.yaml"), "--backlog", "htc:1:400", "--json")
    assert main([str(folder / "jobs.txt"), *common, *options]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


ROWS = [f"{n}|2024-01-10T{n:02}:00:00|2024-01-10T{n:02}:00:00|3000|2|01:00:00" for n in range(12)]
EARLY = "99|2023-10-01T00:00:00|2024-01-10T20:00:00|600|2|01:00:00"


def test_an_early_submission_does_not_invent_idle_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told with the remedy, and with that the figures are nearly those without it."""
    dump(tmp_path, *ROWS)
    without, told = replayed(tmp_path, capsys)
    assert without["notes"] == []
    dump(tmp_path, EARLY, *ROWS)
    stretched, told = replayed(tmp_path, capsys)
    assert stretched["window_s"] > 100 * DAY_S
    assert "1 job was submitted up to 101 days before all others" in told
    assert "--from 2024-01-10T00:00:00" in stretched["notes"][0]
    bounded, told = replayed(tmp_path, capsys, "--from", "2024-01-10")
    assert bounded["notes"] == []
    assert WAITED_ALREADY in told
    assert bounded["window_s"] == pytest.approx(without["window_s"], abs=3700)


def test_the_window_is_what_is_observed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six hours, of which jobs take five sixths; the others belong to instances."""
    dump(tmp_path, *ROWS)
    found, _ = replayed(tmp_path, capsys, "--from", "2024-01-10T03:00", "--to", "2024-01-10T09:00")
    figures = found["policies"]["policy.yaml"]
    assert (found["window_s"], found["high_jobs"]) == (6 * 3600, 6)
    assert figures["high_utilisation"] == pytest.approx(5 / 6, abs=0.01)
    assert figures["total_utilisation"] <= 1.0
    assert main([str(tmp_path / "jobs.txt"), "--cluster", "2x1", "--to", "2024-01-10T09:00", "--json"]) == 0
    bare = json.loads(capsys.readouterr().out)
    assert (bare["jobs"], bare["makespan_s"]) == (9, 9 * 3600)
    assert bare["utilisation"] == pytest.approx(5 / 6)


def test_a_backlog_of_the_same_time_has_the_same_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(tmp_path, *ROWS)
    jobs = [ModelJob(MONDAY_S + 9 * DAY_S + hour * 3600, 60, 1, 60) for hour in range(24)]
    (tmp_path / "low.swf").write_text("".join(swf_lines(jobs, ())))
    options = ("--from", "2024-01-10T06:00", "--to", "2024-01-10T12:00")
    found, told = replayed(tmp_path, capsys, *options, "--backlog", str(tmp_path / "low.swf"))
    assert found["low_jobs"] == 6
    assert found["backlog_left_out"] == {BEFORE: 6, AFTER: 12}
    assert "left out of the backlog: 12 jobs: submitted after --to" in told


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (("--from", "soon"), 64, "'soon' is no moment; write 2024-01-10"),
        (("--from", "20240110"), 64, "as well as a number of seconds; write 2024-01-10 or @20240110"),
        (("--from", "20", "--to", "20"), 64, "--to is not after --from"),
        (
            ("--from", "2024-01-10T08:00Z"),
            BAD_DATA,
            "without Z or an offset, or make the dump with SLURM_TIME",
        ),
        (("--to", "2024-01-10T08:00+05:00"), BAD_DATA, "jobs.txt: has local times of an unknown zone"),
        (("--from", "2025-01-01"), BAD_DATA, f"has no job that can be replayed (12 jobs: {BEFORE})"),
    ],
)
def test_what_cannot_be_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], status: int, says: str
) -> None:
    path = dump(tmp_path, *ROWS)
    try:
        found = main([str(path), "--cluster", "2x1", *options])
    except SystemExit as end:
        found = int(str(end.code))
    assert found == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        ("2024-01-01T08:00", 4),
        ("2024-01-01T08:00Z", 4),
        ("2024-01-01T08:00+05:00", 9),
        ("2024-01-01T08:00:00-02:30", 1),
        (f"{MONDAY_S + 10 * 3600}", 2),
        (f"@{MONDAY_S + 10 * 3600}", 2),
    ],
)
def test_an_offset_from_utc_counts_where_the_trace_has_seconds_since_1970(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, jobs: int
) -> None:
    at = [MONDAY_S + hour * 3600 for hour in range(12)]
    path = dump(tmp_path, *(f"{n}|{at_s}|{at_s}|600|1|01:00:00" for n, at_s in enumerate(at, 1)))
    assert main([str(path), "--cluster", "2x1", "--from", given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == jobs


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("2024-07-01T10:00", None),
        ("2024-07-01", None),
        ("2024-07-01T10:00+02:00", 1),
        ("2024-07-01T08:00Z", 1),
        ("1719820800", 1),
    ],
)
def test_a_date_has_an_offset_where_the_trace_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, found: int | None
) -> None:
    """Read as UTC it would cut off the two hours by which the clocks there are ahead."""
    at = ("2024-07-01T09:00:00+0200", "2024-07-01T10:00:00+0200")
    path = dump(tmp_path, *(f"{n}|{time}|{time}|600|1|01:00:00" for n, time in enumerate(at, 1)))
    status = main([str(path), "--cluster", "2x1", "--from", given, "--json"])
    told = capsys.readouterr()
    if found is None:
        assert status == BAD_DATA
        assert "jobs.txt: has times with an offset from UTC; give --from and --to with one too" in told.err
    else:
        assert json.loads(told.out)["jobs"] == found


def test_the_proposed_bound_has_an_offset_where_the_trace_has_them(tmp_path: Path) -> None:
    rows = [EARLY.replace(":00|", ":00+0100|"), *(row.replace(":00|", ":00+0100|", 2) for row in ROWS)]
    assert "--from 2024-01-09T23:00:00Z" in told_early(read_trace(dump(tmp_path, *rows)))[0]


@pytest.mark.parametrize(("given", "jobs"), [("@20240110", 1), ("20241310", 0), ("99", 2)])
def test_digits_that_cannot_be_a_day_are_seconds_of_the_trace(tmp_path: Path, given: str, jobs: int) -> None:
    path = swf(tmp_path, "100 0 10", "20240110 0 10")
    assert len(read_trace(path, window=TraceWindow(moment(given).at_s))) == jobs
