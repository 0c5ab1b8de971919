"""How values look: ages, times, tables, colours only where somebody sees them."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

from backfill.ui.terminal import age, aligned, local_time

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
