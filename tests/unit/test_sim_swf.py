"""The SWF reader takes what is met in the wild, and names the line of what it cannot take."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.swf import PART, read_swf, swf_lines
from backfill.sim.traces.trace import (
    NO_PROCESSORS,
    NO_RUN_TIME,
    NO_SUBMIT_TIME,
    TOO_LARGE,
    JobTrace,
    TraceError,
)

PLAIN = "1 0 5 100 4 -1 -1 4 120 -1 1 1 1 -1 -1 -1 -1 -1\n"


def read(folder: Path, text: str) -> JobTrace:
    path = folder / "t.swf"
    path.write_text(text, encoding="utf-8")
    return read_swf(path)


def row(trace: JobTrace, index: int = 0) -> tuple[int, ...]:
    columns = (trace.job_id, trace.submit, trace.run, trace.estimate, trace.processors)
    return tuple(column[index] for column in columns)


@pytest.mark.parametrize(
    "line",
    [
        PLAIN,
        "   1   0   5  100   4   -1 -1  4  120 -1 1 1 1 -1 -1 -1 -1 -1   \r\n",
        PLAIN.replace(" ", "\t"),
        PLAIN.rstrip() + " 7 8 9\n",
        PLAIN.strip().replace(" ", ";") + ";\n",
        "1;0;5;100;4;-1;-1;4;120;-1;-1;user5;account2;-1;normal;normal;;-1;\n",
        "1; 0; 5; 100; 4; -1; -1; 4; 120; -1; 1; 1; 1; -1; -1; -1; -1; -1\n",
        "1 0 5 100 4 98.7 -1 4 120 -1 1 1 1 -1 -1 -1 -1 -1 ; a remark\n",
        "1 0.0 5 100.00 4 -1 -1 4.0 120 -1 1 1 1 -1 -1 -1 -1 -1\n",
        "\ufeff" + PLAIN,
        "; UnixStartTime: 0\n;\n \n" + PLAIN + " \n\n",
    ],
)
def test_one_job_in_many_spellings(tmp_path: Path, line: str) -> None:
    """Separators, blanks, further columns, remarks and decimal points do not matter."""
    trace = read(tmp_path, line)
    assert len(trace) == 1
    assert row(trace) == (1, 0, 100, 120, 4)


@pytest.mark.parametrize(
    ("allocated", "requested", "estimate", "expected"),
    [
        (4, 8, 200, (200, 8)),
        (8, 4, 200, (200, 8)),
        (-1, 8, 200, (200, 8)),
        (8, -1, 200, (200, 8)),
        (4, 4, -1, (100, 4)),
        (4, 4, 0, (100, 4)),
        (4, 4, 60, (100, 4)),
    ],
)
def test_estimate_and_processors(
    tmp_path: Path, allocated: int, requested: int, estimate: int, expected: tuple[int, int]
) -> None:
    """Processors are the larger number, an estimate is never below the run time."""
    text = f"1 0 -1 100 {allocated} -1 -1 {requested} {estimate} -1 1 1 1 -1 -1 -1 -1 -1\n"
    trace = read(tmp_path, text)
    assert (trace.estimate[0], trace.processors[0]) == expected


def test_blank_columns_are_unknown(tmp_path: Path) -> None:
    """An empty column between semicolons is what -1 is elsewhere."""
    trace = read(tmp_path, "1;0;;100;4;;;;;;;;;;;;;;\n")
    assert row(trace) == (1, 0, 100, 100, 4)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Jobs without run time or processors are left out, each for one reason."""
    kept = ModelJob(5, 10, 2)
    jobs = [
        kept,
        ModelJob(6, 0, 2),
        ModelJob(7, -1, 2),
        ModelJob(8, 10, -1),
        ModelJob(9, 10, 0),
        ModelJob(9, 10, 99),
    ]
    trace = read(tmp_path, "".join(swf_lines(jobs, ())))
    assert dict(trace.left_out) == {NO_RUN_TIME: 2, NO_PROCESSORS: 2}
    assert len(trace) == 2
    small = trace.fitting(98)
    assert dict(small.left_out) == {NO_RUN_TIME: 2, NO_PROCESSORS: 2, TOO_LARGE: 1}
    assert row(small) == (1, 5, 10, 10, 2)


def test_queue_order_is_by_submit_and_id(tmp_path: Path) -> None:
    """Lines may come in any order, ids and epochs may be large."""
    epoch = 1_132_444_805
    lines = [(9, epoch + 5), (3, epoch + 5), (7, epoch), (3_000_000_000, epoch - 1)]
    text = "".join(f"{job} {submit} -1 1 1 -1 -1 1 -1{' -1' * 9}\n" for job, submit in lines)
    trace = read(tmp_path, text)
    assert list(trace.job_id) == [3_000_000_000, 7, 3, 9]
    assert trace.submit[0] == epoch - 1


def test_fractions_of_seconds_turn_all_to_milliseconds(tmp_path: Path) -> None:
    """One fraction anywhere makes the tick a millisecond, for the lines before it as well."""
    text = PLAIN + PLAIN.replace("1 0 5 100", "2 10 5 0.25", 1)
    trace = read(tmp_path, text)
    assert trace.ticks_per_s == 1000
    assert row(trace, 0) == (1, 0, 100_000, 120_000, 4)
    assert row(trace, 1) == (2, 10_000, 250, 120_000, 4)


@pytest.mark.parametrize("pack", ["gz", "zip"])
def test_packed_files_are_told_by_their_content(tmp_path: Path, pack: str) -> None:
    """gzip and zip are read whatever the file is called."""
    path = tmp_path / "trace"
    if pack == "gz":
        path.write_bytes(gzip.compress(PLAIN.encode()))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("folder/inner.swf", PLAIN)
            archive.writestr("README", "about")
    assert row(read_swf(path)) == (1, 0, 100, 120, 4)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 2 3\n", "3 columns where SWF has 18; complete or remove the line"),
        ("1;2;3;4\n", "4 columns where SWF has 18"),
        (PLAIN.replace("100", "1oo"), "run time '1oo' is not a usable number"),
        (PLAIN.replace("1 0 5", "1 nan 5"), "submit time 'nan' is not a usable number"),
        (PLAIN.replace(" 4 ", " 4.5 "), "must be whole numbers"),
        (";".join(["1", *[""] * 17]) + "\n", "submit time '' is not a usable number"),
        (PLAIN.replace("100", "9" * 30), "is not a usable number"),
        (PLAIN.replace("100", "9" * 16), "a number is too large"),
        (PLAIN.replace("1 0 5", "9" * 19 + " 0 5"), "is not a usable number"),
        ("<html>\n", "1 columns where SWF has 18"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    """The error has the file, the number of the line, and what to do."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, "; header\n" + PLAIN + line)
    assert str(caught.value).startswith(f"{tmp_path / 't.swf'}:3: ")
    assert problem in str(caught.value)


def test_a_file_without_jobs_is_an_error(tmp_path: Path) -> None:
    """Comments alone are no trace."""
    with pytest.raises(TraceError, match=r"t\.swf: holds no job"):
        read(tmp_path, "; only\n; comments\n")


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    """Missing, cut off and ambiguous files are told apart."""
    with pytest.raises(TraceError, match=r"none\.swf: cannot be read"):
        read_swf(tmp_path / "none.swf")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(PLAIN.encode() * 100)[:-20])
    with pytest.raises(TraceError, match="archive is damaged"):
        read_swf(cut)
    torn = tmp_path / "torn.zip"
    torn.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(TraceError, match="archive is damaged"):
        read_swf(torn)
    two = tmp_path / "two.zip"
    with zipfile.ZipFile(two, "w") as archive:
        archive.writestr("a.swf", PLAIN)
        archive.writestr("b.swf", PLAIN)
    with pytest.raises(TraceError, match="holds 2 traces"):
        read_swf(two)


@pytest.mark.parametrize(
    ("at", "value", "problem"), [(6, 1, "password required"), (8, 99, "compression method is not supported")]
)
def test_an_archive_that_cannot_be_unpacked_is_one_sentence(
    tmp_path: Path, at: int, value: int, problem: str
) -> None:
    """Its flags, or its method of compression, are those of another program's archive."""
    path = tmp_path / "sealed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.swf", PLAIN)
    data = bytearray(path.read_bytes())
    for offset in (at, data.index(b"PK\1\2") + at + 2):  # the member's own head, and the directory's
        data[offset] = value
    path.write_bytes(data)
    with pytest.raises(TraceError, match=f"cannot be unpacked .*{problem}.*; unpack it and name"):
        read_swf(path)


def test_a_damaged_member_is_one_sentence(tmp_path: Path) -> None:
    """Whatever the archive was packed with."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = tmp_path / f"{method}.zip"
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("a.swf", PLAIN * 1000)
        data = bytearray(path.read_bytes())
        data[60:120] = bytes(range(100, 160))
        path.write_bytes(data)
        with pytest.raises(TraceError, match=r"damaged|cannot be"):
            read_swf(path)


def test_written_jobs_are_read_back(tmp_path: Path) -> None:
    """What the writer writes, the reader reads, comments aside."""
    jobs = [ModelJob(0, 10, 2, 30), ModelJob(4, 5, 1)]
    trace = read(tmp_path, "".join(swf_lines(jobs, ["MaxProcs: 2"])))
    assert row(trace, 0) == (1, 0, 10, 30, 2)
    assert row(trace, 1) == (2, 4, 5, 5, 1)


def test_an_unknown_submission_is_left_out(tmp_path: Path) -> None:
    """-1 is no second before the others: the observation would begin in 1969."""
    late = PLAIN.replace("1 0", "1 1704067200", 1)
    trace = read(tmp_path, late + PLAIN.replace("1 0", "2 -1", 1))
    assert list(trace.submit) == [1704067200]
    assert trace.left_out == {NO_SUBMIT_TIME: 1}


PARTIAL = "1 {} 5 {} 4 -1 -1 4 120 -1 {} 1 1 -1 -1 -1 -1 -1\n"


@pytest.mark.parametrize("separator", [" ", ";"])
def test_parts_of_a_job_are_not_counted_beside_it(tmp_path: Path, separator: str) -> None:
    """A job that was checkpointed has a line for all of it (status 1 or 0), then one for each part."""
    lines = [PARTIAL.format(0, 100, 1), PARTIAL.format(0, 40, 2), PARTIAL.format(-1, 60, 3)]
    trace = read(tmp_path, "".join(line.strip().replace(" ", separator) + "\n" for line in lines))
    assert list(trace.run) == [100]
    assert trace.left_out == {PART: 2}


def test_parts_alone_are_jobs(tmp_path: Path) -> None:
    """Without a line for all of it nothing else tells of the work."""
    trace = read(tmp_path, PARTIAL.format(0, 40, 2) + PARTIAL.format(50, 60, 4))
    assert list(trace.run) == [40, 60]
    assert trace.left_out == {}
