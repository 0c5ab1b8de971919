"""One class name has one meaning: no two modules of the program define a class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "backfill"


def classes(root: Path) -> dict[str, list[str]]:
    """The files that define each class at their top level, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(root)))
    return found


def test_no_class_name_has_two_meanings() -> None:
    """Whoever reads `Window` must not have to look which of two it is."""
    known = classes(PROGRAM)
    assert len(known) > 500
    assert {name: files for name, files in known.items() if len(files) > 1} == {}


def test_a_name_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    """In whichever files; another name for the same class is none."""
    (tmp_path / "one.py").write_text("class Window: ...\nclass Door: ...\n")
    (tmp_path / "two.py").write_text("from one import Door as Gate\nclass Window: ...\n")
    assert classes(tmp_path) == {"Window": ["one.py", "two.py"], "Door": ["one.py"]}
