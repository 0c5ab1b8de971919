"""Reads a trace of any known format, told apart by what the file's first lines hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from backfill.sim.traces.files import open_lines
from backfill.sim.traces.sacct import read_sacct
from backfill.sim.traces.swf import BYTE_ORDER_MARK, read_swf
from backfill.sim.traces.trace import JobTrace
from backfill.sim.traces.window import WHOLE, TraceWindow, cut

READERS: Mapping[str, Callable[[Path, bool], JobTrace]] = {"swf": read_swf, "sacct": read_sacct}


def read_trace(path: Path, form: str = "auto", window: TraceWindow = WHOLE) -> JobTrace:
    """Read what a trace has within this window. `form`: a key of READERS, or `auto`.

    TraceError if it is broken.
    """
    trace = READERS[detect(path) if form == "auto" else form](path, bool(window))
    return cut(path, trace, window) if window else trace


def detect(path: Path) -> str:
    """Return the format: sacct's header names its columns, SWF starts with `;` or a number."""
    with open_lines(path) as lines:
        first = lines.readline().removeprefix(BYTE_ORDER_MARK)
    return "sacct" if b"JobID" in first and not first.startswith(b";") else "swf"
