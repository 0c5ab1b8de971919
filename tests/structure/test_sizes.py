"""No file of ours is longer than a reader can take in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 600


def test_no_python_file_is_longer_than_a_reader_can_take_in() -> None:
    """Aim for 100 to 500 lines; split it by what it is about, never only for its length."""
    files = [f for top in ("backfill", "tests") for f in (ROOT / top).rglob("*.py")]
    assert len(files) > 100
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
