"""How values look: ages, times, tables, colours only where somebody sees them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.ui.cli import main
from backfill.ui.client import print_json
from backfill.ui.terminal import age, aligned, guarded_streams, local_time

_TABLE = (
    "from backfill.ui.terminal import emphasis, table; print(emphasis('title')); "
    "table(('NODE', 'PHASE'), [('vn1', 'ready'), ('vn2', 'given-up')])"
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0.0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (123, "2m03s"),
        (3599.7, "1h00m"),
        (14_700, "4h05m"),
        (86_399.9, "1d00h"),
        (266_400, "3d02h"),
    ],
)
def test_an_age_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_times_are_local_iso_with_their_offset() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", local_time(1_700_000_000.25))


def test_columns_stand_below_one_another() -> None:
    assert aligned([("A", "B"), ("long", "x")]) == ["A     B", "long  x"]


def in_terminal(**environment: str) -> str:
    """The table's output when stdout is a terminal."""
    ours, theirs = pty.openpty()
    known = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
    subprocess.run([sys.executable, "-c", _TABLE], stdout=theirs, check=True, env={**known, **environment})
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # the end of what a terminal was written
        while piece := os.read(ours, 65536):
            text += piece
    os.close(ours)
    return text.decode()


def test_a_terminal_gets_colours_unless_they_are_unwanted() -> None:
    assert "\x1b[" in in_terminal(TERM="xterm-256color")
    assert "\x1b[3" not in in_terminal(TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[" not in in_terminal(TERM="dumb")
    assert "given-up" in in_terminal(TERM="dumb")


@contextlib.contextmanager
def latin() -> Iterator[io.TextIOWrapper]:
    """What is printed in a terminal of western Europe, as it was before UTF-8."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with contextlib.redirect_stdout(out):
        yield out
    out.seek(0)


def test_marks_that_the_output_lacks_have_plain_ones(tmp_path: Path) -> None:
    """Neither becomes a question mark, which means something else."""
    with latin() as out:
        assert main(["doctor", "--config", str(tmp_path)]) == 1
        assert main(["replay", "first_day"]) == 0
    told = out.read()
    assert told.startswith("x the policy file can be read\n")
    assert "\n + all 7 jobs ended exactly once" in told


def test_what_else_the_output_lacks_is_an_escape() -> None:
    """In a JSON document it is one of JSON's own."""
    with latin() as out, guarded_streams():
        print("Björk \u2713")
        print_json("Björk \U0001f600")
    for_people, document = out.read().splitlines()
    assert for_people == "Björk \\u2713"
    assert json.loads(document) == "Björk \U0001f600"
