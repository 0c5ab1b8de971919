"""The glossary tells of the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `(\w+)` \|$", re.MULTILINE)


def test_every_word_has_its_name_in_the_code() -> None:
    """A word whose class was renamed gets its new name here, or goes."""
    code = {
        word for path in (ROOT / "backfill").rglob("*.py") for word in re.findall(r"\w+", path.read_text())
    }
    rows = _ROW.findall(GLOSSARY)
    assert len(rows) > 40
    assert [(word, name) for word, _, name in rows if name not in code] == []


def test_a_word_has_one_meaning() -> None:
    """It is explained once."""
    words = [word for word, _, _ in _ROW.findall(GLOSSARY)]
    assert sorted(set(words)) == sorted(words)


def test_phases_and_rungs_are_explained() -> None:
    """People meet them in messages."""
    words = {word for word, _, _ in _ROW.findall(GLOSSARY)}
    assert {phase.value.replace("-", " ") for phase in Phase} <= words
    named = GLOSSARY[GLOSSARY.index("| rung |") :].partition("\n")[0]
    assert [rung for rung in Rung if rung is not Rung.CANCEL and rung.value not in named] == []
