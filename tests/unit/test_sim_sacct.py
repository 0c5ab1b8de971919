"""The sacct reader merges steps, understands Slurm's notations, and names what it cannot read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from backfill.sim.replay.bare import replay
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.reader import detect, read_trace
from backfill.sim.traces.sacct import (
    NO_ELAPSED,
    NO_LIMIT,
    NO_SUBMIT,
    ORPHAN_STEP,
    STILL_RUNNING,
    SUPERSEDED,
    YEAR_S,
    parse_duration_s,
    parse_instant_s,
    parse_job_name,
    parse_memory_mb,
    parse_tres_count,
    read_jobs,
    read_sacct,
)
from backfill.sim.traces.trace import NO_RUN_TIME, JobTrace, TraceError

HEADER = "JobID|Submit|Start|ElapsedRaw|ReqCPUS|AllocCPUS|Timelimit|State"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "jobs.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(folder: Path, *lines: str) -> JobTrace:
    return read_sacct(write(folder, *lines))


@pytest.mark.parametrize(
    ("text", "base", "task", "count", "step"),
    [
        ("123", 123, -1, 1, ""),
        ("123.batch", 123, -1, 1, "batch"),
        ("123_4", 123, 4, 1, ""),
        ("123_4.0", 123, 4, 1, "0"),
        ("123+1", 123, 1, 1, ""),
        ("26735347_[76-999]", 26735347, -1, 924, ""),
        ("7_[1,3,5-9%2]", 7, -1, 7, ""),
        ("7_[0-10:5]", 7, -1, 3, ""),
        ("7_[1-3,...]", 7, -1, 3, ""),
    ],
)
def test_job_names(text: str, base: int, task: int, count: int, step: str) -> None:
    """Arrays, their pending rest, parts of heterogeneous jobs, and steps."""
    name = parse_job_name(text)
    assert (name.base, name.task, name.count, name.step) == (base, task, count, step)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:06:45", 405),
        ("22-08:05:48", 22 * 86400 + 8 * 3600 + 5 * 60 + 48),
        ("21:33.052", 1293),
        ("3606", 3606),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    """With days or without, with fractions, as plain seconds, and without limit."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "mb"),
    [("512K", 0.5), ("7996Mc", 7996), ("2.5Gn", 2560), ("1048576", 1), ("0.00M", 0), ("", None)],
)
def test_memory(text: str, mb: float | None) -> None:
    """All units, with the mark for "per node" or "per CPU"."""
    assert parse_memory_mb(text) == mb


def test_instants_are_read_as_utc() -> None:
    """sacct gives no zone: the same text is the same number on every machine."""
    assert parse_instant_s("1970-01-02T00:00:01") == 86401
    assert parse_instant_s("1576096517") == 1576096517
    assert parse_instant_s("Unknown") is None


@pytest.mark.parametrize("offset", ["+0100", "+01:00", "+01", "+01:00:00"])
def test_an_offset_from_utc_counts(offset: str, tmp_path: Path) -> None:
    """As SLURM_TIME_FORMAT=%FT%T%z has it: these are no local times of an unknown zone."""
    assert parse_instant_s(f"1970-01-02T01:00:01{offset}") == 86401
    assert parse_instant_s("1970-01-02T00:00:01Z") == 86401
    dump = tmp_path / "dump"
    head = "JobID|Submit|Start|ElapsedRaw|AllocCPUS\n"
    # The clocks are put back between these.
    times = ("2024-10-27T02:30:00+0200|2024-10-27T02:30:00+0100", f"2024-10-28T00:00:00{offset}|Unknown")
    dump.write_text(head + "".join(f"{i}|{two}|60|1\n" for i, two in enumerate(times, 1)))
    trace = read_sacct(dump, starts=True)
    assert not trace.wall
    assert trace.starts is not None
    assert trace.starts[0] - trace.submit[0] == 3600
    assert (trace.submit[1] - trace.submit[0]) == 22.5 * 3600
    dump.write_text(head + "1|2024-10-27T02:30:00|Unknown|60|1\n")
    assert read_sacct(dump).wall
    dump.write_text(head + "1|2024-10-27T02:30:00|2024-10-27T02:30:00+0100|60|1\n")
    with pytest.raises(
        TraceError, match=r"dump:2: it has times with and without an offset from UTC; correct"
    ):
        read_sacct(dump)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("T10:00:00+0200", "T10:00:00", "do not tell"),
        ("T10:00:00", "T10:00:00+0200", "tell"),
        ("T10:00:00Z", "T10:00:00", "do not tell"),
    ],
)
def test_a_dump_of_two_styles_is_refused_where_the_style_changes(
    first: str, second: str, says: str, tmp_path: Path
) -> None:
    rows = (f"{n}|2024-07-01{text}|Unknown|60|1|1|1|C" for n, text in enumerate((first, first, second)))
    remedy = "unlike those of line 2; make the whole dump with one SLURM_TIME_FORMAT"
    with pytest.raises(TraceError, match=rf"jobs\.txt:4: its times {says} their offset from UTC, {remedy}"):
        read(tmp_path, HEADER, *rows)


def test_the_end_of_a_job_is_of_the_same_style(tmp_path: Path) -> None:
    row = "1|2024-07-01T10:00:00+0200|2024-07-01T10:00:00|1"
    with pytest.raises(TraceError, match=r":2: it has times with and without an offset from UTC; correct"):
        read(tmp_path, "JobID|Start|End|AllocCPUS", row)


def test_seconds_and_offsets_are_of_one_zone(tmp_path: Path) -> None:
    """A job of which no time is known is of any."""
    rows = ("1|1704067200|Unknown|60|1|1|1|C", "2|Unknown|Unknown|0|1|1|1|C")
    trace = read(tmp_path, HEADER, *rows, "3|2024-01-01T02:00:00+0200|Unknown|60|1|1|1|C")
    assert trace.submit[0] == trace.submit[1]
    assert not trace.wall


def test_tres_counts() -> None:
    """The count of CPUs is found among the others, and is 0 where it is not told."""
    assert parse_tres_count("billing=1,cpu=4,mem=7996M,node=1", "cpu") == 4
    assert parse_tres_count("", "cpu") == 0


def test_a_dump_becomes_a_trace(tmp_path: Path) -> None:
    """Tasks of an array are jobs of their own, in the order of submission, array and task."""
    trace = read(
        tmp_path,
        HEADER,
        "12_10|2024-01-01T00:00:00|2024-01-01T00:00:05|60|2|4|00:02:00|COMPLETED",
        "12_9|2024-01-01T00:00:00|2024-01-01T00:00:05|60|2|2|UNLIMITED|COMPLETED",
        "11|2024-01-01T00:00:01|2024-01-01T00:00:09|600|1|1|00:05:00|TIMEOUT",
    )
    assert trace.labels == ("12_9", "12_10", "11")
    assert [trace.name(index) for index in range(3)] == ["12_9", "12_10", "11"]
    assert list(trace.processors) == [2, 4, 1]
    assert list(trace.estimate) == [YEAR_S, 120, 600]
    assert trace.submit[2] - trace.submit[0] == 1


def test_a_name_with_a_comma_stays_one_cell(tmp_path: Path) -> None:
    """The rest of an array has its tasks in its name."""
    trace = read(tmp_path, HEADER, "12_[1,3]|2024-01-01T00:00:00|2024-01-01T00:00:05|60|2|4|00:02:00|RUNNING")
    written = "".join(replay(trace, Cluster(4)).csv_chunks())
    assert list(csv.reader(written.splitlines()))[1][0] == "12_[1,3]"


def test_steps_are_merged(tmp_path: Path) -> None:
    """Steps add nothing but their memory; one without its job is counted."""
    path = write(
        tmp_path,
        "JobID|MaxRSS|Elapsed|State|ReqMem|AllocCPUS|Start",
        "1|||RUNNING|||",
        "5||00:10:00|COMPLETED|100Mc|4|2024-01-01T00:00:00",
        "5.batch|2048K|00:10:00|COMPLETED|100Mc|4|2024-01-01T00:00:00",
        "5.0|1G|00:01:00|COMPLETED|100Mc|4|2024-01-01T00:00:00",
        "9.extern|1G|00:01:00|COMPLETED|||2024-01-01T00:00:00",
    )
    first, job = read_jobs(path)
    assert (first.elapsed_s, first.start_s, first.max_rss_mb) == (0, None, None)
    assert (job.steps, job.max_rss_mb, job.memory_mb) == (2, 1024, 400)
    trace = read_sacct(path)
    assert trace.labels == ("5",)
    assert trace.noted[ORPHAN_STEP] == 1


def test_what_is_left_out_and_noted(tmp_path: Path) -> None:
    """Pending tasks count each; of a requeued job the last run stays; running ones are noted."""
    trace = read(
        tmp_path,
        HEADER,
        "7_[1-20]|2024-01-01T00:00:00|Unknown|0|1|0|01:00:00|PENDING",
        "8|2024-01-01T00:00:00|2024-01-01T00:00:05|60|1|1|01:00:00|NODE_FAIL",
        "8|2024-01-01T01:00:00|2024-01-01T01:00:05|90|1|1|01:00:00|COMPLETED",
        "9|2024-01-01T02:00:00|2024-01-01T02:00:05|30|1|1|01:00:00|RUNNING",
        "10|Unknown|Unknown|30|1|1|01:00:00|CANCELLED by 1000",
    )
    assert dict(trace.left_out) == {NO_RUN_TIME: 20, SUPERSEDED: 1, NO_SUBMIT: 1}
    assert trace.noted[STILL_RUNNING] == 1
    assert list(trace.run) == [90, 30]


def test_all_columns_with_tabs_and_tres(tmp_path: Path) -> None:
    """Any order of columns and any separator; CPUs from TRES; the limit in minutes; End."""
    trace = read(
        tmp_path,
        "State\tReqTRES\tTimelimitRaw\tEnd\tStart\tSubmit\tConstraints\tJobIDRaw\tJobID",
        "TIMEOUT\tbilling=1,cpu=3\t60\t2019-12-11T21:36:24\t2019-12-11T20:36:18"
        "\t2019-12-11T20:35:17\t[a|b]\t32650736\t32650736",
    )
    assert (trace.run[0], trace.estimate[0], trace.processors[0]) == (3606, 3606, 3)
    assert trace.noted["estimate below run time"] == 1


def test_a_separator_in_a_free_text_is_repaired(tmp_path: Path) -> None:
    """`|` inside a job's name shifts the line; it is joined again."""
    trace = read(
        tmp_path,
        "JobID|JobName|Submit|Elapsed|AllocCPUS",
        "5|a|b||c|2024-01-01T00:00:00|00:01:00|2",
        "6|plain|2024-01-01T00:00:00|00:01:00|2",
    )
    assert list(trace.processors) == [2, 2]


def test_submit_falls_back_to_start(tmp_path: Path) -> None:
    """A dump without Submit is replayed from the starts, as many archived logs are."""
    trace = read(tmp_path, "JobID|Start|Elapsed|NCPUS", "5|2024-01-01T00:00:07|00:01:00|2")
    assert trace.submit[0] % 60 == 7


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("5|2024-01-01T00:00:00|60", "3 columns where the header has 8"),
        ("x|2024-01-01T00:00:00|Unknown|60|1|1|1|C", "'x' is no Slurm job id"),
        ("5|yesterday|Unknown|60|1|1|1|C", "'yesterday' is no time"),
        ("5|2024-13-01T00:00:00|Unknown|60|1|1|1|C", "'2024-13-01T00:00:00' is no time"),
        ("5|2024-01-01T00:00:00|Unknown|an hour|1|1|1|C", "'an hour' is no duration"),
        ("5|2024-01-01T00:00:00|Unknown|60|many|1|1|C", "ReqCPUS 'many' is not a number"),
        ("5|2024-01-01T00:00:00|Unknown|60|99999999999999|1|1|C", "a number is too large"),
        ("99999999999|2024-01-01T00:00:00|Unknown|60|1|1|1|C", "a number is too large"),
        (f"7_{'9' * 30}|2024-01-01T00:00:00|Unknown|60|1|1|1|C", "a number is too large"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    """The error has the file, the number of the line, and the remedy."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, HEADER, "1|2024-01-01T00:00:00|Unknown|60|1|1|1|C", line)
    assert str(caught.value).startswith(f"{tmp_path / 'jobs.txt'}:3: ")
    assert problem in str(caught.value)
    assert str(caught.value).endswith("; correct or remove the line")


def test_more_memory_than_can_be_is_a_broken_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"jobs\.txt:2: a number is too large; correct or remove the line"):
        read(tmp_path, "JobID|Submit|ElapsedRaw|ReqCPUS|ReqMem", f"5|2024-01-01T00:00:00|60|1|{'9' * 400}")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("JobID|ExitCode|State|MaxRSS|Elapsed", "no column Submit or Start"),
        ("JobID|Submit|AllocCPUS", "no column ElapsedRaw, Elapsed or End"),
        ("JobID|Submit|Elapsed", "no column ReqCPUS or AllocCPUS"),
        ("JobID|Submit|Elapsed|AllocCPUS|AllocCPUS", "column AllocCPUS is there twice"),
        ("5|2024-01-01T00:00:00", "no header with JobID"),
    ],
)
def test_a_dump_without_what_is_needed(tmp_path: Path, header: str, problem: str) -> None:
    """The error says which column is missing and how to make a dump that has it."""
    with pytest.raises(TraceError, match=r"jobs\.txt:1: ") as caught:
        read(tmp_path, header)
    assert problem in str(caught.value)
    assert "sacct -a -P -o JobID" in str(caught.value)


def test_an_empty_dump_is_an_error(tmp_path: Path) -> None:
    """A header alone is no trace."""
    with pytest.raises(TraceError, match="holds no job"):
        read(tmp_path, HEADER)


def test_formats_are_told_apart(tmp_path: Path) -> None:
    """A dump of sacct is known by its header, all else is SWF."""
    dump = write(tmp_path, HEADER, "1|2024-01-01T00:00:00|Unknown|60|1|1|1|C")
    assert detect(dump) == "sacct"
    assert len(read_trace(dump)) == 1
    swf = tmp_path / "t.swf"
    swf.write_text("1 0 -1 5 1 -1 -1 1 -1" + " -1" * 9, encoding="utf-8")
    assert detect(swf) == "swf"
    assert len(read_trace(swf)) == 1


def test_a_limit_that_is_unknown_is_not_one_that_there_is_not(tmp_path: Path) -> None:
    """Slurm's backfill takes a job without a limit for a year's; of an unknown one the run time stands in."""
    times = "2024-01-01T00:00:00|2024-01-01T00:00:05|60|2|2"
    trace = read(
        tmp_path,
        HEADER.replace("Timelimit", "TimelimitRaw"),
        f"1|{times}|UNLIMITED|COMPLETED",
        f"2|{times}|Partition_Limit|COMPLETED",
        f"3|{times}||COMPLETED",
    )
    assert list(trace.estimate) == [YEAR_S, 60, 60]
    assert trace.noted == {NO_LIMIT: 1, "no estimate: run time taken": 2}


def test_a_running_job_needs_its_time_so_far(tmp_path: Path) -> None:
    """A dump with End alone tells of no time for it: a reason of its own has the remedy."""
    header = "JobID|Submit|Start|End|ReqCPUS|State"
    trace = read(
        tmp_path,
        header,
        "1|2024-01-01T00:00:00|2024-01-01T00:00:00|Unknown|4|RUNNING",
        "2|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T01:00:00|4|COMPLETED",
    )
    assert len(trace) == 1
    assert trace.left_out == {NO_ELAPSED: 1}


@pytest.mark.parametrize("column", ["SubmitLine", "Extra", "WCKey", "StdOut", "StdErr", "StdIn", "Reason"])
def test_a_separator_in_any_free_text_is_repaired(tmp_path: Path, column: str) -> None:
    row = "1|2024-01-01T00:00:00|2024-01-01T00:00:00|100|4|4|UNLIMITED|COMPLETED|sbatch --wrap a | b"
    assert list(read(tmp_path, f"{HEADER}|{column}", row).processors) == [4]


def test_a_line_that_cannot_be_repaired_names_its_columns(tmp_path: Path) -> None:
    """And not what the last try to join them stumbled over."""
    row = "1|2024-01-01T00:00:00|x|y|100|4|4|UNLIMITED|COMPLETED|a | b"
    with pytest.raises(TraceError, match=r":2: 11 columns where the header has 9; correct or remove"):
        read(tmp_path, f"{HEADER}|SubmitLine", row)


def test_a_remark_of_swf_is_no_header_of_sacct(tmp_path: Path) -> None:
    """A comment may tell of JobID; what is no dump after all names the option for the other format."""
    path = write(tmp_path, "; JobID Submit Wait", "1 0 5 100 4 -1 -1 4 120 -1 1 1 1 -1 -1 -1 -1 -1")
    assert detect(path) == "swf"
    assert len(read_trace(path)) == 1
    with pytest.raises(TraceError, match="or give --format swf"):
        read_trace(write(tmp_path, "       JobID  Submit"))
