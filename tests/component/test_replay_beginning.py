"""A replay begins when its trace did: schedules of budgets and a backlog's times are counted from there."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.replay.beginning import beside, clock_s, need_one_clock
from backfill.sim.replay.costs import Transfers
from backfill.sim.replay.trace_cluster import START_S
from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.shake import shaken
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import JobTrace, TraceError
from backfill.ui.commands.replay import main
from backfill.ui.parser import BAD_DATA
from tests.component.replay_files import LIMITS, SMALL
from tests.unit.policy_files import loaded, text

MONDAY_S = 1_704_067_200  # 2024-01-01 00:00 UTC
NIGHT = 'budgets: [{nodes: 0, schedule: "0 0 * * *", duration_s: 8h}]'
AFTERNOON = 'budgets: [{nodes: 0, schedule: "0 14 * * *", duration_s: 8h}]'
BERLIN = 'budgets: [{nodes: 0, schedule: "0 8 * * *", duration_s: 1h, time_zone: Europe/Berlin}]'


def jobs(*submits: int) -> list[ModelJob]:
    return [ModelJob(at_s, 600, 1, 600) for at_s in submits]


def trace(folder: Path, drawn: list[ModelJob], *header: str, name: str = "t.swf") -> JobTrace:
    path = folder / name
    path.write_text("".join(swf_lines(drawn, header)))
    return read_trace(path)


def sacct(folder: Path, *submits: str) -> JobTrace:
    rows = (f"{number}|{at}|600|1" for number, at in enumerate(submits, 1))
    path = folder / "jobs.txt"
    path.write_text("\n".join(["JobID|Submit|ElapsedRaw|ReqCPUS", *rows]) + "\n")
    return read_trace(path)


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    files = (str(folder / "t.swf"), "--policy", str(folder / "policy.yaml"), "--cluster", "2x1")
    assert main([*files, "--backlog", "htc:1:40", *options, "--json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


@pytest.mark.parametrize(("budget", "share"), [(NIGHT, 0.0), (AFTERNOON, 0.5)])
@pytest.mark.parametrize("header", [(), (f"UnixStartTime: {MONDAY_S}",)])
def test_budgets_hold_at_the_hours_of_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str, share: float, header: tuple[str, ...]
) -> None:
    """From midnight on: the night's budget forbids all, the afternoon's nothing."""
    first_s = 0 if header else MONDAY_S
    trace(tmp_path, jobs(first_s, first_s + 3600), *header)
    loaded(tmp_path, text(LIMITS, budget, instances=SMALL))
    found, told = replayed(tmp_path, capsys)
    harvested = found["policies"]["policy.yaml"]["harvested_fraction"]
    assert harvested == 0.0 if share == 0.0 else harvested > share
    assert (found["notes"], told) == ([], "")


def test_a_trace_that_does_not_say_when_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schedules fall anywhere: that is told, with the remedy, wherever there are any."""
    trace(tmp_path, jobs(0, 3600))
    loaded(tmp_path, text(LIMITS, NIGHT, instances=SMALL))
    found, told = replayed(tmp_path, capsys)
    assert "give it a header line `; UnixStartTime: SECONDS`" in told
    assert f"note: {found['notes'][0]}\n" == told
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    assert replayed(tmp_path, capsys)[1] == ""


def test_a_dump_has_local_times(tmp_path: Path) -> None:
    """The budgets say of which zone; a dump with seconds since 1970 needs nobody to."""
    policies = [loaded(tmp_path, text(BERLIN)).policies]
    clock, notes = clock_s(sacct(tmp_path, "2024-07-01T08:30:00"), policies)
    assert datetime.fromtimestamp(clock, UTC) == datetime(2024, 7, 1, 6, 30, tzinfo=UTC)
    assert "local times of Europe/Berlin" in notes[0]
    assert clock_s(sacct(tmp_path, "1719815400"), policies) == (1719815400.0, ())
    without = [loaded(tmp_path, text()).policies]
    assert clock_s(sacct(tmp_path, "2024-07-01T08:30:00"), without)[1] == ()


def test_times_of_its_own_begin_where_they_always_did(tmp_path: Path) -> None:
    assert clock_s(trace(tmp_path, jobs(10, 20)), []) == (START_S, ())


def test_a_shaken_trace_keeps_its_time(tmp_path: Path) -> None:
    found = shaken(trace(tmp_path, jobs(0, 3600), f"UnixStartTime: {MONDAY_S}"), 3)
    assert found.epoch_s == MONDAY_S


def test_jobs_of_both_traces_keep_their_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backlog that came five hours after the trace began comes then, and not earlier."""
    trace(tmp_path, jobs(MONDAY_S, MONDAY_S + 6 * 3600))
    trace(tmp_path, jobs(MONDAY_S + 5 * 3600), name="low.swf")
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    out = tmp_path / "jobs.csv"
    _, told = replayed(tmp_path, capsys, "--backlog", str(tmp_path / "low.swf"), "--jobs-csv", str(out))
    with out.open() as lines:
        (low,) = [row for row in csv.DictReader(lines) if row["class"] == "low"]
    assert low["submit"] == str(MONDAY_S + 5 * 3600)
    assert float(low["start"]) >= MONDAY_S + 5 * 3600
    assert told == ""


@pytest.mark.parametrize(
    ("high", "low", "says"),
    [
        (MONDAY_S, MONDAY_S - 30 * 86400, "the backlog is moved by +720.0 h"),
        (0, MONDAY_S, "only the backlog says when it was"),
        (MONDAY_S, 0, "only the trace says when it was"),
        (0, 7200, "the backlog is moved by -2.0 h"),
    ],
)
def test_a_backlog_of_another_time_is_moved_and_that_is_told(
    tmp_path: Path, high: int, low: int, says: str
) -> None:
    other = trace(tmp_path, jobs(low, low + 60), name="low.swf")
    found, notes = beside(trace(tmp_path, jobs(high, high + 3600)), other)
    assert found is other
    assert notes[0].startswith(says)


DAY_S = 86400


@pytest.mark.parametrize(
    ("first_s", "jobs_then", "says"),
    [
        (
            MONDAY_S + 10 * DAY_S,
            0,
            "left out of the backlog: 1 job: over before --from; 1 job: submitted after",
        ),
        (MONDAY_S + 20 * DAY_S, 1, "left out of the backlog: 1 job: submitted after --to"),
        (MONDAY_S + 90 * DAY_S, 2, "the backlog is moved by "),
    ],
)
def test_a_backlog_without_a_job_in_the_period_is_not_taken_from_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first_s: int, jobs_then: int, says: str
) -> None:
    """What was over before --from is not waiting. Only one of altogether other days is moved there."""
    trace(tmp_path, jobs(*(MONDAY_S + day * DAY_S for day in range(30))))
    trace(tmp_path, jobs(first_s, first_s + 18 * DAY_S), name="low.swf")
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    period = ("--from", "2024-01-21", "--to", "2024-01-22")
    found, told = replayed(tmp_path, capsys, "--backlog", str(tmp_path / "low.swf"), *period)
    assert found["low_jobs"] == jobs_then
    assert says in told


def test_a_backlog_may_count_from_elsewhere(tmp_path: Path) -> None:
    """Times since a header's moment, beside seconds since 1970; who came before waits already."""
    high = trace(tmp_path, jobs(MONDAY_S, MONDAY_S + 3600))
    low = trace(tmp_path, jobs(0, 900), f"UnixStartTime: {MONDAY_S - 600}", name="low.swf")
    found, notes = beside(high, low)
    assert [at - found.begin for at in found.submit] == [-600, 300]
    assert notes == ()


def test_transfers_end_where_a_clock_shows_seconds_since_1970() -> None:
    """Times are rounded there: what is left of a transfer by that is over, not begun again for ever."""
    sim = SimulatedWorld(start_s=1.7e9)
    transfers = Transfers(sim, 1)
    done: list[float] = []
    for work_s in (0.013, 7.3):
        transfers.begin(work_s, lambda: done.append(sim.now_s - 1.7e9))
    sim.step_to(1.7e9 + 100)
    assert done == pytest.approx([0.026, 7.313], abs=1e-5)


@pytest.mark.parametrize("options", [(), ("--policy", "policy.yaml")])
def test_where_no_job_fits_there_is_no_result(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """One sentence, and no file with a header alone."""
    trace(tmp_path, [ModelJob(0, 600, 9, 600)])
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    monkeypatch.chdir(tmp_path)
    assert main(["t.swf", "--cluster", "2x1", "--jobs-csv", "jobs.csv", *options]) == BAD_DATA
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        "t.swf: has no job that can be replayed (1 job: more processors than the machine has)" in printed.err
    )
    assert not (tmp_path / "jobs.csv").exists()


def test_json_tells_what_was_left_out_of_the_backlog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where that was all of it."""
    trace(tmp_path, jobs(0, 3600))
    trace(tmp_path, [ModelJob(0, 600, 9, 600)], name="low.swf")
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    found, _ = replayed(tmp_path, capsys, "--backlog", str(tmp_path / "low.swf"))
    assert found["backlog_left_out"] == {"more processors than an instance has": 1}
    assert (found["low_jobs"], found["backlog_noted"]) == (0, {})


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("{}+0000", "{}", "has local times of an unknown zone, and the trace tells its zone"),
        ("{}", "{}+0000", "tells the zone of its times, and the trace has local times of an unknown one"),
        ("{}+0200", "{}+0100", ""),
        ("{}", "{}", ""),
    ],
)
def test_a_backlog_of_another_clock_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: str, theirs: str, told: str
) -> None:
    """Nobody knows which of its jobs were there when the trace's came: it may be off by hours."""
    loaded(tmp_path, text(LIMITS, instances=SMALL))
    for name, form in (("low.txt", theirs), ("t.txt", ours)):
        sacct(tmp_path, *(form.format(f"2024-01-01T{hour:02}:00:00") for hour in (8, 9)))
        (tmp_path / "jobs.txt").rename(tmp_path / name)
    files = (str(tmp_path / "t.txt"), "--policy", str(tmp_path / "policy.yaml"), "--cluster", "2x1")
    status = main([*files, "--backlog", str(tmp_path / "low.txt"), "--json"])
    said = capsys.readouterr().err
    assert status == (BAD_DATA if told else 0)
    assert (f"{tmp_path}/low.txt: {told}" in said) is bool(told)
    assert ("make both with SLURM_TIME_FORMAT=%s" in said) is bool(told)


def test_a_backlog_of_other_days_may_have_another_clock(tmp_path: Path) -> None:
    """It is moved to where the trace begins, whatever its zone; and seconds since 1970 go with any times."""
    low, path = sacct(tmp_path, "2023-01-01T08:00:00"), tmp_path / "jobs.txt"
    need_one_clock(path, sacct(tmp_path, "2024-01-01T08:00:00+0100"), low)
    need_one_clock(path, trace(tmp_path, jobs(MONDAY_S - 365 * 86400)), low)
    with pytest.raises(TraceError, match="unknown zone"):
        need_one_clock(path, sacct(tmp_path, "2023-01-01T18:00:00+0100"), low)
