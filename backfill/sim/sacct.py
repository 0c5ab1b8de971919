"""Reads `sacct -P` dumps: arrays, merged steps, odd units, any choice and order of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from backfill.sim.sacct_fields import (
    JobName,
    memory_is_per_cpu,
    parse_duration_s,
    parse_instant_s,
    parse_job_name,
    parse_memory_mb,
    parse_tres_count,
)
from backfill.sim.trace import LARGEST, NO_RUN_TIME, Trace, TraceBuilder, TraceError
from backfill.sim.tracefile import ByteLines, open_lines

ASK = "make the dump with `sacct -a -P -o JobID,Submit,Start,ElapsedRaw,ReqCPUS,AllocCPUS,Timelimit`"
# Columns whose text is free: a separator inside one of them shifts the rest of its line.
FREE_TEXT = ("JobName", "Comment", "Constraints", "AdminComment", "SystemComment", "WorkDir")
NO_SUBMIT = "no submit or start time"
ORPHAN_STEP = "steps without their job"
SUPERSEDED = "an earlier run of a requeued job"
STILL_RUNNING = "still running: time so far taken"
ID_BITS = 32
TASK_BITS = 24  # Slurm allows 4,000,001 tasks in an array

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SacctJob:
    """One job of a dump, its steps merged; None is what the dump does not tell.

    `memory_mb` is what was asked for in total, `max_rss_mb` the largest of any step's task.
    """

    name: JobName
    raw_id: int
    state: str
    submit_s: int | None
    start_s: int | None
    elapsed_s: int
    requested: int
    allocated: int
    limit_s: int | None
    memory_mb: float | None
    max_rss_mb: float | None
    steps: int


def read_sacct(path: Path) -> Trace:
    """Read a dump as a trace; a job without Submit counts as submitted at its start.

    The trace's `job_id` orders jobs of the same submit time by (array, task); names are labels.
    """
    builder = TraceBuilder()
    count = 0
    with open_lines(path) as lines:
        header, separator = _header(path, lines)
        _require(path, header)
        for job in _jobs(path, lines, header, separator, builder):
            _add(job, builder)
            count += 1
    if not count:
        raise TraceError(path, 0, f"holds no job; {ASK}")
    return _last_runs(builder.build())


def read_jobs(path: Path) -> Iterator[SacctJob]:
    """Yield the jobs of a dump in its order, whatever columns it has besides JobID."""
    with open_lines(path) as lines:
        header, separator = _header(path, lines)
        yield from _jobs(path, lines, header, separator, TraceBuilder())


def _header(path: Path, lines: ByteLines) -> tuple[list[str], str]:
    text = lines.readline().decode("utf-8-sig", "replace").rstrip("\r\n")
    for separator in ("|", "\t", ";", ","):
        names = text.split(separator)
        if "JobID" in names or "JobIDRaw" in names:
            return names, separator
    raise TraceError(path, 1, f"no header with JobID; {ASK}")


def _require(path: Path, header: list[str]) -> None:
    twice = next((name for name in header if name and header.count(name) > 1), "")
    if twice:
        raise TraceError(path, 1, f"column {twice} is there twice; {ASK}")
    needs = {
        "Submit or Start": ("Submit", "Start"),
        "ElapsedRaw, Elapsed or End": ("ElapsedRaw", "Elapsed", "End"),
        "ReqCPUS or AllocCPUS": ("ReqCPUS", "AllocCPUS", "NCPUS", "ReqTRES", "AllocTRES"),
    }
    for wanted, names in needs.items():
        if not any(name in header for name in names):
            raise TraceError(path, 1, f"no column {wanted}; {ASK}")


def _jobs(
    path: Path, lines: ByteLines, header: list[str], separator: str, builder: TraceBuilder
) -> Iterator[SacctJob]:
    """Yield each job once the lines of its steps, which follow it, have been read."""
    current: SacctJob | None = None
    for number, line in enumerate(lines, 2):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text.strip():
            continue
        job = _parse_line(path, number, text.split(separator), header, separator)
        if not job.name.step:
            if current is not None:
                yield current
            current = job
        elif current is not None and current.name.label == job.name.label:
            rss = [job.max_rss_mb or 0.0, current.max_rss_mb or 0.0]
            current = replace(current, max_rss_mb=max(rss) or None, steps=current.steps + 1)
        else:
            builder.noted[ORPHAN_STEP] += 1
    if current is not None:
        yield current


def _parse_line(path: Path, number: int, fields: list[str], header: list[str], separator: str) -> SacctJob:
    problem = f"{len(fields)} columns where the header has {len(header)}"
    for candidate in _repairs(fields, header, separator):
        try:
            return _parse(dict(zip(header, candidate, strict=True)))
        except ValueError as error:
            problem = str(error)
    raise TraceError(path, number, f"{problem}; correct or remove the line")


def _repairs(fields: list[str], header: list[str], separator: str) -> Iterator[list[str]]:
    """Yield the line, or with a separator inside a free text: each way to join it again."""
    surplus = len(fields) - len(header)
    if surplus == 0:
        yield fields
    for name in FREE_TEXT if surplus > 0 else ():
        if name in header:
            at = header.index(name)
            joined = separator.join(fields[at : at + surplus + 1])
            yield [*fields[:at], joined, *fields[at + surplus + 1 :]]


def _parse(row: Row) -> SacctJob:
    get = row.get
    name = parse_job_name(get("JobID") or get("JobIDRaw", ""))
    raw = parse_job_name(get("JobIDRaw") or f"{name.base}")
    start_s = parse_instant_s(get("Start", ""))
    requested = _count(row, "ReqCPUS", "ReqTRES")
    allocated = max(_count(row, "AllocCPUS", "AllocTRES"), _count(row, "NCPUS", ""))
    limit_s = _limit_s(row)
    if max(requested, allocated, limit_s or 0) > LARGEST or name.base >> ID_BITS:
        raise ValueError("a number is too large")
    memory = get("ReqMem", "")
    memory_mb = parse_memory_mb(memory)
    if memory_mb is not None and memory_is_per_cpu(memory):
        memory_mb *= max(requested, allocated, 1)
    return SacctJob(
        name=name,
        raw_id=raw.base,
        state=get("State", "").partition(" ")[0],
        submit_s=parse_instant_s(get("Submit", "")),
        start_s=start_s,
        elapsed_s=_elapsed_s(row, start_s),
        requested=requested,
        allocated=allocated,
        limit_s=limit_s,
        memory_mb=memory_mb,
        max_rss_mb=parse_memory_mb(get("MaxRSS", "")),
        steps=0,
    )


def _count(row: Row, column: str, tres: str) -> int:
    text = row.get(column, "")
    if text and not text.isdecimal():
        raise ValueError(f"{column} {text!r} is not a number")
    return int(text) if text else parse_tres_count(row.get(tres, ""), "cpu")


def _elapsed_s(row: Row, start_s: int | None) -> int:
    elapsed_s = parse_duration_s(row.get("ElapsedRaw") or row.get("Elapsed", ""))
    if elapsed_s is not None:
        return elapsed_s
    end_s = parse_instant_s(row.get("End", ""))
    return 0 if end_s is None or start_s is None else end_s - start_s


def _limit_s(row: Row) -> int | None:
    raw = row.get("TimelimitRaw", "")
    if raw.isdecimal():
        return int(raw) * 60
    return parse_duration_s(row.get("Timelimit", ""))


def _add(job: SacctJob, builder: TraceBuilder) -> None:
    submit_s = job.start_s if job.submit_s is None else job.submit_s
    if job.elapsed_s <= 0:
        builder.left_out[NO_RUN_TIME] += job.name.count
    elif submit_s is None:
        builder.left_out[NO_SUBMIT] += job.name.count
    else:
        processors = max(job.requested, job.allocated)
        order = (job.name.base << TASK_BITS) + job.name.task + 1
        if builder.add(order, submit_s, job.elapsed_s, processors, job.limit_s or -1):
            builder.labels.append(job.name.label)
            if job.state in {"RUNNING", "SUSPENDED"}:
                builder.noted[STILL_RUNNING] += 1


def _last_runs(trace: Trace) -> Trace:
    """Keep the last of several lines for one job, which `sacct -D` prints after a requeue."""
    keys = trace.job_id
    order = sorted(range(len(keys)), key=keys.__getitem__)
    dropped = {one for one, following in pairwise(order) if keys[one] == keys[following]}
    if not dropped:
        return trace
    left_out = Counter(trace.left_out)
    left_out[SUPERSEDED] += len(dropped)
    return trace.taken([index for index in range(len(trace)) if index not in dropped], left_out)
