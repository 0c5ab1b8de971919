"""What the daemons of a lab last wrote, beside the report of a test that failed: CI keeps no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from backfill.lab.cluster import Lab

_LAST = 12  # lines of each
_WIDTH = 300
_LOGS = (
    "*.log",
    "daemon/*.log",
    "machines/*/*.out",
    "machines/*/*.log",
    "machines/*/log/*.out",
    "machines/*/log/*.log",
    "machines/*/log/*/*.log",
    "machines/*/libvirt-log/*.log",
    "machines/*/libvirt-log/qemu/*.log",
)


def labs_of(fixtures: Iterable[object]) -> Iterator[Lab]:
    """Yield each lab among the fixtures of a test, or that one of them has."""
    seen: set[Path] = set()
    for fixture in fixtures:
        held = fixture
        while held is not None and not isinstance(held, Lab):
            held = getattr(held, "lab", None) or getattr(held, "rig", None)
        if isinstance(held, Lab) and held.dir not in seen:
            seen.add(held.dir)
            yield held


def last_words(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each log of a lab that is not empty, and its last lines."""
    for pattern in _LOGS:
        for file in sorted(directory.glob(pattern)):
            lines = file.read_text(errors="replace").splitlines()[-_LAST:] if file.is_file() else []
            if lines:
                yield str(file.relative_to(directory)), "\n".join(line[:_WIDTH] for line in lines)


def attach(report: pytest.TestReport, fixtures: Iterable[object]) -> None:
    """Add the last words of the labs of a failed test to its report."""
    for lab in labs_of(fixtures):
        report.sections.extend(last_words(lab.dir))
