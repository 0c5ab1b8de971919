"""Reads `sacct -P` dumps: arrays, merged steps, odd units, any choice and order of columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from math import ceil
from pathlib import Path

from backfill.sim.traces.files import ByteLines, open_lines
from backfill.sim.traces.trace import LARGEST, NO_RUN_TIME, JobDetails, JobTrace, TraceBuilder, TraceError

ASK = "make the dump with `sacct -a -P -o JobID,Submit,Start,ElapsedRaw,ReqCPUS,AllocCPUS,Timelimit`"
# Columns whose text is free: a separator inside one of them shifts the rest of its line.
FREE_TEXT = (
    *("JobName", "SubmitLine", "Comment", "Constraints", "AdminComment", "SystemComment", "Extra", "WCKey"),
    *("WorkDir", "StdIn", "StdOut", "StdErr", "Container", "Licenses", "Reason", "McsLabel"),
)
NO_SUBMIT = "no submit or start time"
ORPHAN_STEP = "steps without their job"
SUPERSEDED = "an earlier run of a requeued job"
STILL_RUNNING = "still running: time so far taken"
NO_ELAPSED = "still running, for a time that the dump does not tell: add ElapsedRaw to its columns"
NO_LIMIT = "no time limit: a year taken, as Slurm's backfill does"
RUNS = frozenset({"RUNNING", "SUSPENDED"})
YEAR_S = 365 * 86_400  # Slurm's YEAR_SECONDS
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
    details: JobDetails
    wall: bool | None  # its times are what the clocks there showed, of an untold zone; None: it has none
    offsets: bool  # they have an offset from UTC


def read_sacct(path: Path, starts: bool = False) -> JobTrace:
    """Read a dump as a trace; a job without Submit counts as submitted at its start.

    The trace's `job_id` orders jobs of the same submit time by (array, task); names are labels.
    """
    builder = TraceBuilder(starts=starts)
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
    raise TraceError(path, 1, f"no header with JobID between separators; {ASK}, or give --format swf")


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
    for job in _entries(path, lines, header, separator):
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


def _entries(path: Path, lines: ByteLines, header: list[str], separator: str) -> Iterator[SacctJob]:
    """Yield a job or step for each line; all have times of one style."""
    first: tuple[int, bool] | None = None
    for number, line in enumerate(lines, 2):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text.strip():
            continue
        job = _parse_line(path, number, text.split(separator), header, separator)
        if job.wall is not None:
            first = first or (number, job.wall)
            if job.wall is not first[1]:
                what = f"its times {'do not tell' if job.wall else 'tell'} their offset from UTC"
                remedy = "make the whole dump with one SLURM_TIME_FORMAT"
                raise TraceError(path, number, f"{what}, unlike those of line {first[0]}; {remedy}")
        yield job


def _parse_line(path: Path, number: int, fields: list[str], header: list[str], separator: str) -> SacctJob:
    problem = f"{len(fields)} columns where the header has {len(header)}"
    for candidate in _repairs(fields, header, separator):
        try:
            return _parse(dict(zip(header, candidate, strict=True)))
        except ValueError as error:
            if candidate is fields:
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
    memory_mb = parse_memory_mb(get("ReqMem", ""))
    if max(requested, allocated, limit_s or 0, memory_mb or 0) > LARGEST:
        raise ValueError("a number is too large")
    if name.base >> ID_BITS or name.task >> TASK_BITS > 0:
        raise ValueError("a number is too large")
    times = [text for text in (get(column, "") for column in _TIMES) if text.lower() not in UNKNOWN]
    if memory_mb is not None and memory_is_per_cpu(get("ReqMem", "")):
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
        details=_details(
            get("Partition", "").partition(",")[0],
            *(get(column, "") for column in ("User", "Account", "QOS")),
            0 if memory_mb is None else ceil(memory_mb),
        ),
        wall=_is_wall(times),
        offsets=any(not text.isdecimal() and _moment(text).tzinfo is not None for text in times),
    )


def _is_wall(texts: list[str]) -> bool | None:
    """Return True if these times are of a zone that they do not tell. ValueError: some of them tell it."""
    walls = {not text.isdecimal() and _moment(text).tzinfo is None for text in texts}
    if len(walls) > 1:
        raise ValueError("it has times with and without an offset from UTC")
    return walls.pop() if walls else None


@lru_cache
def _details(partition: str, user: str, account: str, qos: str, memory_mb: int) -> JobDetails:
    """Return one value for all jobs alike: a dump has millions."""
    return JobDetails(partition, user, account, qos, memory_mb)


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
    text = row.get("Timelimit") or raw
    return YEAR_S if text.lower() == "unlimited" else parse_duration_s(text)


def _add(job: SacctJob, builder: TraceBuilder) -> None:
    builder.wall |= bool(job.wall)
    builder.offsets |= job.offsets
    submit_s = job.start_s if job.submit_s is None else job.submit_s
    if job.elapsed_s <= 0:
        builder.left_out[NO_ELAPSED if job.state in RUNS else NO_RUN_TIME] += job.name.count
    elif submit_s is None:
        builder.left_out[NO_SUBMIT] += job.name.count
    else:
        processors = max(job.requested, job.allocated)
        start_s = -1 if job.start_s is None else job.start_s
        order = (job.name.base << TASK_BITS) + job.name.task + 1
        if builder.add(order, submit_s, job.elapsed_s, processors, job.limit_s or -1, start_s):
            builder.labels.append(job.name.label)
            builder.details.append(job.details)
            reasons = ((STILL_RUNNING, job.state in RUNS), (NO_LIMIT, job.limit_s == YEAR_S))
            builder.noted.update(reason for reason, holds in reasons if holds)


def _last_runs(trace: JobTrace) -> JobTrace:
    """Keep the last of several lines for one job, which `sacct -D` prints after a requeue."""
    keys = trace.job_id
    order = sorted(range(len(keys)), key=keys.__getitem__)
    dropped = {one for one, following in pairwise(order) if keys[one] == keys[following]}
    if not dropped:
        return trace
    left_out = Counter(trace.left_out)
    left_out[SUPERSEDED] += len(dropped)
    return trace.taken([index for index in range(len(trace)) if index not in dropped], left_out)


UNKNOWN = frozenset({"", "unknown", "none", "n/a", "invalid", "unlimited", "partition_limit"})
DIGITS = 11
_TIMES = ("Submit", "Start", "End")
_JOB = re.compile(
    r"(?P<base>\d+)(?:_(?P<task>\d+)|_\[(?P<tasks>[^\]]*)\]|\+(?P<part>\d+))?(?:\.(?P<step>.+))?"
)
_TIME = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@dataclass(frozen=True, slots=True)
class JobName:
    """`123`, `123_4` (array task), `123_[5-9%2]` (tasks still pending) or `123+1` (part of a job).

    `base` is what stands before the mark, `task` the number after it (-1 if there is none),
    `count` how many jobs it stands for, `step` the step's name or "".
    """

    base: int
    task: int
    count: int
    step: str
    label: str


def parse_job_name(text: str) -> JobName:
    """ValueError if it is no job name of Slurm."""
    match = _JOB.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no Slurm job id")
    number = match["task"] or match["part"]
    count = _count_tasks(match["tasks"]) if match["tasks"] is not None else 1
    step = match["step"] or ""
    label = text.removesuffix(f".{step}") if step else text
    return JobName(int(match["base"]), int(number) if number else -1, count, step, label)


def _count_tasks(text: str) -> int:
    """Count the tasks of `1,4-9,20-30:5%2`; what Slurm cut off as `...` is not known."""
    count = 0
    for part in text.partition("%")[0].split(","):
        span, _, stride = part.partition(":")
        first, dash, last = span.partition("-")
        if first.isdecimal():
            end = int(last) if dash and last.isdecimal() else int(first)
            count += len(range(int(first), end + 1, max(int(stride or 1), 1)))
    return max(count, 1)


def parse_instant_s(text: str) -> int | None:
    """Return seconds since 1970 of `2019-12-11T20:35:17` or of a plain number; None if unknown.

    sacct prints local time, without a zone unless SLURM_TIME_FORMAT has %z (`…17+0100`). Without, it is
    read as if it were UTC: the same result on every machine, and differences are right except across a
    change of summer time.
    """
    if text.lower() in UNKNOWN:
        return None
    if text.isdecimal() and len(text) <= DIGITS:
        return int(text)
    at = _moment(text)
    try:
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())
    except OverflowError:
        raise ValueError(f"{text!r} is no time") from None


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time") from None


def parse_duration_s(text: str) -> int | None:
    """Return seconds of `1-02:03:04`, `02:03:04`, `03:04.567` or `184`; None if unknown."""
    if text.lower() in UNKNOWN:
        return None
    if text.isdecimal() and len(text) <= DIGITS:
        return int(text)
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_memory_mb(text: str) -> float | None:
    """Return MB of `504K`, `2659.95M`, `2.10G`, `7996Mc` (per CPU) or bytes; None if unknown.

    The suffix for "per node" or "per CPU" is dropped: see `memory_is_per_cpu`.
    """
    if text.lower() in UNKNOWN:
        return None
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory")
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()]


def memory_is_per_cpu(text: str) -> bool:
    """Return True if ReqMem counts per CPU (`7996Mc`), as Slurm before 21.08 prints it."""
    return text.endswith("c")


def parse_tres_count(text: str, name: str) -> int:
    """Return the count of `name` in `billing=1,cpu=4,mem=7996M`; 0 if it is not listed."""
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key == name and value.isdecimal():
            return int(value)
    return 0
