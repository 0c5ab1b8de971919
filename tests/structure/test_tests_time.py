"""No test asserts how quick the machine is: that is for benchmarks, which only print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
_CLOCKS = {"monotonic", "perf_counter", "process_time", "time", "thread_time"}


def timed(tree: ast.AST) -> Iterator[int]:
    """Lines of assertions that something of a clock is below a number that stands there."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            spans = _spans(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Assert) and any(_limits(part, spans) for part in ast.walk(node.test)):
                    yield node.lineno


def _spans(function: ast.AST) -> set[str]:
    """Names that hold a difference of times of a clock."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_span(node.value, set()):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _is_span(node: ast.AST, spans: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in spans
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and any(map(_reads_clock, ast.walk(node)))
    )


def _reads_clock(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)):
            return name in _CLOCKS
        case _:
            return False


def _limits(node: ast.AST, spans: set[str]) -> bool:
    """Whether it compares a span with a number, from above."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides[:-1], node.ops, sides[1:], strict=True):
        below = isinstance(operator, ast.Lt | ast.LtE)
        above = isinstance(operator, ast.Gt | ast.GtE)
        small, large = (left, right) if below else (right, left)
        if (below or above) and _is_span(small, spans) and isinstance(large, ast.Constant):
            return True
    return False


def test_no_test_asserts_a_time_of_the_machine() -> None:
    """Await a condition, or compare with what the same test has measured (CONTRIBUTING.md)."""
    files = [file for file in TESTS.rglob("*.py") if "bench" not in file.parts]
    found = [
        f"{file.relative_to(TESTS)}:{line}" for file in files for line in timed(ast.parse(file.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("assert time.monotonic() - began_s < 10", True),
        ("took_s = time.time() - began_s\n    assert 0.3 <= took_s <= 2.0", True),
        ("took_s = time.time() - began_s\n    assert 5 > took_s", True),
        ("took_s = time.time() - began_s\n    assert took_s >= 0.3", False),
        ("took_s = time.time() - began_s\n    assert took_s < other_s", False),
        ("assert time.monotonic() < deadline_s", False),
    ],
)
def test_such_an_assertion_is_found(body: str, found: bool) -> None:
    assert bool(list(timed(ast.parse(f"def test_it():\n    {body}\n")))) is found
