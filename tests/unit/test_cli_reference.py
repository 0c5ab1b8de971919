"""The page about all commands says what the parser says."""

from __future__ import annotations

import re
from pathlib import Path

import backfill
from backfill.ui.command_line import COMMANDS
from backfill.ui.parser import VARIABLES
from backfill.ui.reference import page

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def test_the_page_is_up_to_date() -> None:
    """When this fails: python -m backfill.ui.reference > docs/cli.md"""
    assert PAGE.read_text() == page()


def test_every_command_is_on_the_page() -> None:
    text = page()
    assert all(f"\n### `backfill {c.name}`\n" in text for c in COMMANDS)
    assert "\n### `backfill replay --live`\n" in text
    assert "\n#### `backfill lab up`\n" in text


def test_every_variable_of_ours_that_is_read_is_named() -> None:
    sources = Path(backfill.__file__).parent.rglob("*.py")
    read = {n for file in sources for n in re.findall(r'environ\.get\("(BACKFILL_\w+)"', file.read_text())}
    assert len(read) >= 4
    assert read == {name for name, _ in VARIABLES if name.startswith("BACKFILL_")}
