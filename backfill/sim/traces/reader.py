"""Reads a trace of any known format, told apart by what the file's first lines hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from backfill.sim.traces.files import open_lines
from backfill.sim.traces.sacct import read_sacct
from backfill.sim.traces.swf import BYTE_ORDER_MARK, read_swf
from backfill.sim.traces.trace import JobTrace

READERS: Mapping[str, Callable[[Path], JobTrace]] = {"swf": read_swf, "sacct": read_sacct}


def read_trace(path: Path, form: str = "auto") -> JobTrace:
    """Read a trace of this format, a key of READERS or `auto`; TraceError if it is broken."""
    return READERS[detect(path) if form == "auto" else form](path)


def detect(path: Path) -> str:
    """Return the format: sacct's header names its columns, SWF starts with `;` or a number."""
    with open_lines(path) as lines:
        first = lines.readline().removeprefix(BYTE_ORDER_MARK)
    return "sacct" if b"JobID" in first and not first.startswith(b";") else "swf"
