"""Writes docs/soak.md: what `make soak` holds, and how long each part took when it was noted."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tests.real.side_by_side import ROOT, durations_file

PAGE = ROOT / "docs/soak.md"
MARKS = "soak"
_HEAD = """\
# What `make soak` holds

`make soak` runs the long tests, and those of other releases of Slurm and of hypervisors; `make test`
does not. First it tries random input (`make search`) and prints the seed. To run one file alone:
`make soak FILES=tests/real/test_soak_page.py`.

This page is generated (`make pages`), and a test compares it with the existing tests. Minutes are
those of the last recorded run, on two cores; "—" means not measured.

| file | minutes | what |
|---|---|---|
"""
_ROW = re.compile(r"^\| `(?P<file>\S+)` \| (?P<minutes>\S+) \|", re.MULTILINE)


def held() -> set[str]:
    """The files that have soak tests, as pytest collects them."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-m",
        MARKS,
        "-p",
        "no:cacheprovider",
        "tests/real",
        "tests/contract",
    ]
    told = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.split("::")[0] for line in told.splitlines() if "::" in line}


def noted() -> dict[str, str]:
    """The minutes that the page has for each file."""
    return {found["file"]: found["minutes"] for found in _ROW.finditer(PAGE.read_text())}


def measured() -> dict[str, str]:
    """The minutes that each file took in this checkout's latest runs."""
    try:
        seconds: dict[str, float] = json.loads(durations_file(MARKS).read_text())
    except FileNotFoundError:
        return {}
    return {name: f"{took_s / 60:.1f}" for name, took_s in seconds.items()}


def page(files: Collection[str], minutes: Mapping[str, str]) -> str:
    """The whole page, from what there is and how long it took."""
    return _HEAD + "".join(_rows(files, minutes))


def _rows(files: Collection[str], minutes: Mapping[str, str]) -> Iterator[str]:
    for file in sorted(files):
        what = (ast.get_docstring(ast.parse((ROOT / file).read_text())) or "").split("\n")[0]
        yield f"| `{file}` | {minutes.get(file, '—')} | {what} |\n"


def main() -> int:
    files = held()
    fresh = {
        file: minutes
        for name, minutes in measured().items()
        for file in files
        if Path(file).stem == f"test_{name}"
    }
    PAGE.write_text(page(files, noted() | fresh))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
