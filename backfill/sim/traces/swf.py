"""Reads and writes the Standard Workload Format, with the quirks that are met in the wild.

Format: Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers",
JSSPP 1999; version 2.2 as described by the Parallel Workloads Archive. One job per line, 18
columns: 0 job, 1 submit, 2 wait, 3 run time, 4 allocated processors, 5 CPU time, 6 memory, 7
requested processors, 8 requested time, ..., 10 status; -1 stands for unknown, `;` opens a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

from backfill.sim.traces.files import ByteLines, open_lines
from backfill.sim.traces.trace import NO_SUBMIT_TIME, JobTrace, TraceBuilder, TraceError

COLUMNS = 18
_STATUS = 10
_UNKNOWN = -1
BEYOND = 10**18
# Statuses of parts of a job that was swapped out or checkpointed; its summary line comes before them.
PART = "a part of a job that has a line for all of it"
PARTS = frozenset({b"2", b"3", b"4"})
NAMES = {0: "job id", 1: "submit time", 3: "run time", 4: "allocated processors"}
NAMES |= {7: "requested processors", 8: "requested time"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STARTED = re.compile(rb";\s*UnixStartTime:\s*(\d{1,10})\s*$", re.IGNORECASE)


def read_swf(path: Path, starts: bool = False) -> JobTrace:
    """Read a trace, plain or packed; TraceError with the line of the first one that is broken."""
    builder = TraceBuilder(starts=starts)
    with open_lines(path) as lines:
        count = _read_lines(path, lines, builder)
    if not count:
        raise TraceError(path, 0, "holds no job; give a trace in the Standard Workload Format")
    return builder.build()


def _read_lines(path: Path, lines: ByteLines, builder: TraceBuilder) -> int:
    count = 0
    add = builder.add
    plain = builder.starts is None
    parts: list[tuple[int, bytes]] = []
    for number, line in enumerate(lines, 1):
        fields = line.split()
        try:
            if plain and len(fields) >= COLUMNS and builder.ticks_per_s == 1 and fields[_STATUS] not in PARTS:
                job, submit, run = int(fields[0]), int(fields[1]), int(fields[3])
                processors = max(int(fields[4]), int(fields[7]))
                if submit != _UNKNOWN:
                    add(job, submit, run, processors, int(fields[8]))
                    count += 1
                    continue
        except (ValueError, OverflowError):
            pass  # not 18 plain integers: look closer
        count += _read_odd_line(path, number, line, builder, parts)
    _add_parts(path, builder, parts)
    return count


def _add_parts(path: Path, builder: TraceBuilder, parts: list[tuple[int, bytes]]) -> None:
    """Add the parts of jobs for which there is no summary; of others they would count twice."""
    whole = set(builder.columns[0]) if parts else set()
    for number, line in parts:
        if int(_number(path, number, 0, _columns(path, number, line)[0])) in whole:
            builder.left_out[PART] += 1
        else:
            _read_odd_line(path, number, line, builder, None)


def _read_odd_line(
    path: Path, number: int, line: bytes, builder: TraceBuilder, parts: list[tuple[int, bytes]] | None
) -> bool:
    """Read a line that is not 18 columns of integers; return whether it holds a job.

    A part of a job is put off into `parts`, if there are any.
    """
    text = line.removeprefix(BYTE_ORDER_MARK).strip()
    if not text or text.startswith(b";"):
        if started := _STARTED.match(text):
            builder.unix_start_s = int(started[1])
        return False
    fields = _columns(path, number, text)
    if fields[_STATUS] in PARTS and parts is not None:
        parts.append((number, text))
        return True
    values = {index: _number(path, number, index, fields[index]) for index in NAMES}
    processors = max(values[4], values[7])
    if any(value != value.to_integral_value() for value in (processors, values[0])):
        raise TraceError(path, number, "job id and processors must be whole numbers; correct them")
    if values[1] == _UNKNOWN:
        builder.left_out[NO_SUBMIT_TIME] += 1
        return True
    try:
        # All are converted before the last is used: a fraction in any changes the ticks.
        wait = _wait(fields[2]) if builder.starts is not None else Decimal(_UNKNOWN)
        for value in (values[1], values[3], values[8], wait):
            builder.ticks(value)
        submit, run, estimate = (builder.ticks(values[index]) for index in (1, 3, 8))
        start = submit + builder.ticks(wait) if wait >= 0 else _UNKNOWN
        builder.add(int(values[0]), submit, run, int(processors), estimate, start)
    except OverflowError:
        raise TraceError(path, number, "a number is too large; correct the line") from None
    return True


def _columns(path: Path, number: int, text: bytes) -> list[bytes]:
    semicolons = text.split(b";")
    if len(semicolons) >= COLUMNS:
        return [column.strip() for column in semicolons]
    columns = semicolons[0].split()  # a comment may follow the columns
    if len(columns) < COLUMNS:
        found = max(len(columns), len(semicolons) if len(semicolons) > 1 else 0)
        raise TraceError(
            path, number, f"{found} columns where SWF has {COLUMNS}; complete or remove the line"
        )
    return columns


def _wait(column: bytes) -> Decimal:
    """Return the time from submission to start, -1 if it is not known: nobody else needs this column."""
    try:
        value = Decimal(column.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return Decimal(_UNKNOWN)
    return value if value.is_finite() and value < BEYOND else Decimal(_UNKNOWN)


def _number(path: Path, number: int, index: int, column: bytes) -> Decimal:
    if not column and index > 1:
        return Decimal(_UNKNOWN)
    try:
        value = Decimal(column.decode("ascii"))
        if value.is_finite() and abs(value) < BEYOND:
            return value
    except (InvalidOperation, UnicodeDecodeError):
        pass
    shown = column.decode("ascii", "replace")
    raise TraceError(path, number, f"{NAMES[index]} {shown!r} is not a usable number; correct the line")


def swf_lines(jobs: Iterable[tuple[int, int, int, int]], header: Iterable[str]) -> Iterator[str]:
    """Format jobs of (submit_s, run_s, processors, estimate_s), ids from 1 on.

    An estimate of -1 means that there is none. `header` holds lines like `MaxProcs: 256`.
    """
    for line in header:
        yield f"; {line}\n"
    for job, (submit_s, run_s, processors, estimate_s) in enumerate(jobs, 1):
        yield (
            f"{job} {submit_s} -1 {run_s} {processors} -1 -1 {processors} {estimate_s} -1 1"
            " -1 -1 -1 -1 -1 -1 -1\n"
        )
