"""`make unit` stays quick: what it runs starts no process, thread or server, and opens no socket."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Whoever needs one of these belongs into tests/component.
_AT_WORK = {
    *("asyncio", "aiohttp", "concurrent", "http", "multiprocessing", "pty", "signal", "socket"),
    *("socketserver", "sqlite3", "ssl", "subprocess", "threading", "urllib"),
}
_PARTS = ("tests.component", "backfill.ui.commands.replay")
UNITS = sorted((TESTS / "unit").glob("*.py"))


def at_work(tree: ast.AST) -> Iterator[str]:
    """Yield each module that it imports for parts at work."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in _AT_WORK or name.startswith(_PARTS))


def test_unit_tests_are_values_in_and_values_out() -> None:
    """A test of a part at work stands in tests/component."""
    assert len(UNITS) > 100
    wrong = {path.name: found for path in UNITS if (found := [*at_work(ast.parse(path.read_text()))])}
    assert not wrong, f"move these to tests/component, or take the import out: {wrong}"


@pytest.mark.parametrize(
    "text",
    [
        "import threading",
        "from concurrent.futures import Future",
        "from tests.component.living_daemon import living",
    ],
)
def test_what_is_at_work_is_found(text: str) -> None:
    """Wherever it stands."""
    assert [*at_work(ast.parse(f"def f():\n    {text}\n"))]


def test_plain_imports_are_none() -> None:
    """Nor is the name of such a module in another's."""
    assert not [*at_work(ast.parse("import json\nfrom backfill.core.queue import Kind\nimport signals\n"))]
