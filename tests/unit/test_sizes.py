"""No file of ours is longer than a reader can take in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 300


def test_no_python_file_is_longer_than_three_hundred_lines() -> None:
    """Split it by what it is about; nothing is exempt."""
    files = [f for top in ("backfill", "tests") for f in (ROOT / top).rglob("*.py")]
    assert len(files) > 100
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
