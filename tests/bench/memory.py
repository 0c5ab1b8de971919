"""What emulators take of a host's memory: PSS, which shares out pages that several of them use."""

from __future__ import annotations

from pathlib import Path


def pss_mb(pid: int) -> float:
    """Proportional set size of a process, MB (proc(5), smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no Pss of process {pid}")
