"""The totals that the documents tell of the way of one job through the code are those counted now."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/performance.md"

_FIGURES = {
    "files": r"always the same: (\d+) files",
    "passes": r"always the same: \d+ files and (\d+) passes",
    "core_files": r"The core has (\d+) files",
    "core_depth": r"the longest chain of imports goes through (\d+)",
}


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.way"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("figure", _FIGURES)
def test_the_page_tells_what_is_counted(counted: dict[str, int], figure: str) -> None:
    """It grew from 324 passes to 492 while the page, and everybody's notes, still said the first."""
    page = " ".join((ROOT / PAGE).read_text().split())
    told = re.findall(_FIGURES[figure], page)
    assert told == [str(counted[figure])], (
        f"{PAGE} has another figure for {figure} than `make bench NAME=way`"
    )


def test_the_parts_of_the_way_are_all_of_it(counted: dict[str, int]) -> None:
    section = (ROOT / PAGE).read_text().split("## The way of one job", 1)[1].split("\n## ", 1)[0]
    parts = re.findall(r"^\|[^|]+\| (\d+) \|", section, flags=re.MULTILINE)
    assert len(parts) == 6
    assert sum(map(int, parts)) == counted["passes"]
    assert f"so this is {counted['passes'] // 2} calls into another file" in " ".join(section.split())
