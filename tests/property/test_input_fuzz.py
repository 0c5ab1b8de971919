"""Broken traces, scenarios and costs: read, or refused in one sentence with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.config.problems import ConfigError
from backfill.sim.replay.costs import load_costs
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.shipped import folder
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.swf import read_swf
from backfill.sim.traces.trace import JobTrace, TraceError

SWF = b"""; MaxProcs: 64
1 0 -1 100 4 -1 -1 4 120 -1 1 1 1 -1 -1 -1 -1 -1
2 1700000000 -1 3600 -1 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 -1 -1
3;12;-1;50;2;-1;-1;2;60;-1;1;1;1;-1;-1;-1;-1;-1
4 15 -1 7.5 1 -1 -1 -1 10 -1 1 1 1 -1 -1 -1 -1 -1 extra columns 21
5 20 -1 0 1 -1 -1 1 10 -1 0 1 1 -1 -1 -1 -1 -1 ; cancelled
"""
SACCT = b"""JobID|Submit|Start|End|ElapsedRaw|ReqCPUS|AllocCPUS|Timelimit|State|JobName
10|2024-01-01T00:00:00|2024-01-01T00:00:05|2024-01-01T00:01:05|60|2|2|00:10:00|COMPLETED|a|b
10.batch||2024-01-01T00:00:05|2024-01-01T00:01:05|60|2|2|||batch
11_[1-4%2]|2024-01-01T00:00:10|Unknown|Unknown|0|1|0|1-00:00:00|PENDING|array
12+0|2024-01-01T00:00:20|2024-01-01T00:00:25|Unknown|300|8|8|UNLIMITED|RUNNING|het
13|2024-01-01T00:00:30|None|2024-01-01T00:00:30|0|1|0|Partition_Limit|CANCELLED by 1000|x
"""
COSTS = b"boot_s: 30s\nsuspend_s_per_mb: 0.01\ntransfers: 2\nfailures: {create: 0.1}\n"
SCENARIO = (folder() / "papers" / "slurm-v.yaml").read_bytes()
# Pieces that are met in broken files, and bytes of any kind.
PIECES = (
    b";",
    b"|",
    b" ",
    b"\n",
    b"\r\n",
    b"\x00",
    b"\xff",
    b"-1",
    b"-",
    b"1e9",
    b"nan",
    b"inf",
    b"0x1f",
    b"9" * 25,
    b"\xd9\xa3",
    b"1_000",
    b"{",
    b"[",
    b": ",
    b"- ",
    b"&a *a",
    b"!!python/object",
    b"\t",
    b"'",
    b'"',
    b"#",
    b"null",
    b"Unknown",
    b"1-00:00:00",
    b"%",
    b"2024-13-45T99:99:99",
    b"\xef\xbb\xbf",
)


@st.composite
def broken(draw: st.DrawFn, whole: bytes) -> bytes:
    """The file with a few pieces put in, taken out, doubled or cut off."""
    data = whole
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 12)))
        match draw(st.sampled_from(("put", "take", "double", "cut", "line"))):
            case "put":
                data = data[:at] + draw(st.sampled_from(PIECES)) + data[at:]
            case "take":
                data = data[:at] + data[to:]
            case "double":
                data = data[:to] + data[at:]
            case "cut":
                data = data[: max(1, at)]
            case _:
                lines = data.splitlines(keepends=True)
                if lines:
                    number = draw(st.integers(0, len(lines) - 1))
                    lines.insert(draw(st.integers(0, len(lines))), lines[number])
                data = b"".join(lines)
    return data


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def one_sentence(text: str, file: Path) -> None:
    """File, line where there is one, and a remedy; no Python in it."""
    for line in text.splitlines():
        assert re.match(re.escape(str(file)) + r"(:\d+(:\d+)?)?: \S", line), line
        assert not re.search(r"Traceback|Error\(|<class|object at 0x", line), line
    assert text.isprintable() or "\n" in text, repr(text)


def read_whatever(file: Path, data: bytes, read: Callable[[Path], JobTrace]) -> None:
    file.write_bytes(data)
    try:
        trace = read(file)
    except TraceError as error:
        one_sentence(str(error), file)
        return
    rows = zip(trace.run, trace.estimate, trace.processors, strict=True)
    assert all(0 < run <= estimate and size > 0 for run, estimate, size in rows)
    order = list(zip(trace.submit, trace.job_id, strict=True))
    assert order == sorted(order)
    assert all(count > 0 for count in trace.left_out.values())


@fuzz(200)
@given(data=broken(SWF))
def test_swf(here: Path, data: bytes) -> None:
    """Separators, columns, times, numbers: whatever happened to them."""
    read_whatever(here / "t.swf", data, read_swf)


@fuzz(200)
@given(data=broken(SACCT))
def test_sacct(here: Path, data: bytes) -> None:
    """A dump that was cut, pasted or edited."""
    read_whatever(here / "t.txt", data, read_trace)


@fuzz(80)
@given(data=broken(SCENARIO))
def test_scenario(here: Path, data: bytes) -> None:
    """A scenario is read, or every problem has its line."""
    refused(here / "s.yaml", data, load_scenario)


@fuzz(100)
@given(data=broken(COSTS))
def test_costs(here: Path, data: bytes) -> None:
    """So are step costs."""
    refused(here / "c.yaml", data, load_costs)


def refused(file: Path, data: bytes, read: Callable[[Path], object]) -> None:
    file.write_bytes(data)
    try:
        read(file)
    except ConfigError as error:
        one_sentence(str(error), file)
