"""A replay for other people's tools: Perfetto's trace viewer, and what reads Batsim's output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice

from backfill.sim.replay.bare import ROWS_PER_CHUNK, quoted
from backfill.sim.replay.policy_replay import Setting
from backfill.sim.replay.trace_cluster import JobTale
from backfill.ui.report.gantt import GanttSpan, Look
from backfill.ui.report.replay_text import Played, time_text

# As Batsim 4 writes it (https://batsim.readthedocs.io, "Outputs"); `metadata` has what is ours.
# A resource is a node. Its stretch is turnaround by execution, which is not bounded.
BATSIM_COLUMNS = (
    "job_id",
    "workload_name",
    "profile",
    "submission_time",
    "requested_number_of_resources",
    "requested_time",
    "success",
    "final_state",
    "starting_time",
    "execution_time",
    "finish_time",
    "waiting_time",
    "turnaround_time",
    "stretch",
    "allocated_resources",
    "consumed_energy",
    "metadata",
)
_US = 1e6


def spans_of(setting: Setting, one: Played) -> list[GanttSpan]:
    """Return the stretches of one run, which must have been drawn."""
    assert one.gantt is not None
    return one.gantt.spans(one.run.tales, setting.high.name)


def perfetto_chunks(setting: Setting, played: Sequence[Played]) -> Iterator[str]:
    """Yield a trace in the Trace Event Format: a process per policy and host, a thread per lane.

    Each policy's events are in order of time, what encloses others before them.
    """
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    events = (event for number, one in enumerate(played) for event in _events(setting, one, number))
    first = True
    while chunk := list(islice(events, ROWS_PER_CHUNK)):
        yield ("" if first else ",\n") + ",\n".join(json.dumps(event) for event in chunk)
        first = False
    yield "\n]}\n"


def _events(setting: Setting, one: Played, number: int) -> Iterator[dict[str, object]]:
    pids = {host: 1 + number * len(setting.node_names) + i for i, host in enumerate(setting.node_names)}
    for host, pid in pids.items():
        name = {"name": f"{one.name}: {host}"}
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": name}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for span in sorted(spans_of(setting, one), key=lambda s: (s.start_s, -s.end_s)):
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.look.value,
            # A job lies in its instance, and a trace viewer wants what lies inside to be shorter.
            "ts": round((span.start_s - setting.start_s) * _US),
            "dur": round((span.end_s - span.start_s) * _US),
            "pid": pids[span.host],
            "tid": 2 * span.lane + (span.look is Look.LOW),
            "args": {"what": span.look.value},
        }


def batsim_chunks(setting: Setting, one: Played) -> Iterator[str]:
    """Yield `out_jobs.csv` of one run, high-priority jobs first, in the trace's own time."""
    yield ",".join(BATSIM_COLUMNS) + "\n"
    number = {name: i for i, name in enumerate(setting.node_names)}
    rows = (_batsim_row(setting, tale, number) for tale in one.run.tales)
    while chunk := "".join(islice(rows, ROWS_PER_CHUNK)):
        yield chunk


def _batsim_row(setting: Setting, tale: JobTale, number: dict[str, int]) -> str:
    trace = setting.high if tale.high else setting.low
    assert trace is not None
    kind = "high" if tale.high else "low"
    ended = tale.start_s >= 0 and tale.end_s >= tale.start_s
    begun = ended or tale.start_s >= 0
    run_s = tale.end_s - tale.start_s if ended else 0.0
    wait_s = tale.start_s - tale.submit_s if begun else 0.0
    fields = (
        quoted(trace.name(tale.index)),
        kind,
        kind,
        time_text(setting, tale.submit_s),
        str(len(tale.hosts) or -(-trace.processors[tale.index] // setting.cluster.cpus)),
        f"{trace.estimate[tale.index] / trace.ticks_per_s:.3f}",
        str(int(tale.completed)),
        _state(tale),
        time_text(setting, tale.start_s),
        f"{run_s:.3f}" if ended else "",
        time_text(setting, tale.end_s),
        f"{wait_s:.3f}" if begun else "",
        f"{wait_s + run_s:.3f}" if ended else "",
        f"{(wait_s + run_s) / run_s:.6f}" if run_s else "",
        _intervals([number[host] for host in tale.hosts]) if begun else "",
        "-1",  # not known
        f'"restarts={tale.restarts};lost_s={tale.lost_s:.3f}"',
    )
    return ",".join(fields) + "\n"


def _state(tale: JobTale) -> str:
    if tale.completed:
        return "COMPLETED_SUCCESSFULLY"
    return "REJECTED" if tale.start_s < 0 else "COMPLETED_KILLED"


def _intervals(numbers: list[int]) -> str:
    """Resources as Batsim writes them: `0-3 7`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)
