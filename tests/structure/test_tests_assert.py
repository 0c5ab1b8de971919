"""Every test asserts something: itself, or through a helper of the tests that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What fails by itself when what it is given does not hold.
_CHECKS = {"raises", "warns", "fail", "RaisesGroup", "deprecated_call"}


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions and methods; those inside others too."""
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def asserts(function: Function) -> bool:
    """Whether an assertion of its own stands in it, in what is always reached or not."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Raise) and "AssertionError" in ast.dump(node))
        or (isinstance(node, ast.Call) and _name(node.func) in _CHECKS)
        for node in ast.walk(function)
    )


def calls(function: Function) -> set[str]:
    """The names that it calls or hands on to be called, methods without their object."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            found |= {_name(node.func), *(_name(value) for value in node.args)}
    return found - {""}


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def asserting(trees: list[ast.Module]) -> set[str]:
    """Names of helpers that assert, or that call one that does."""
    helpers = [f for tree in trees for f in functions(tree) if not f.name.startswith("test_")]
    found = {f.name for f in helpers if asserts(f)}
    called = [(f.name, calls(f)) for f in helpers]
    while more := {name for name, names in called if name not in found and names & found}:
        found |= more
    return found


def idle(trees: list[ast.Module]) -> list[str]:
    """Tests that assert nothing."""
    known = asserting(trees)
    return [
        function.name
        for tree in trees
        for function in functions(tree)
        if function.name.startswith("test_") and not asserts(function) and not calls(function) & known
    ]


def test_every_test_asserts_something() -> None:
    files = [f for f in TESTS.rglob("*.py") if "bench" not in f.parts]
    trees = [ast.parse(file.read_text(), str(file)) for file in files]
    assert sum(f.name.startswith("test_") for tree in trees for f in functions(tree)) > 1000
    assert idle(trees) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("run()", True),
        ("return", True),
        ("assert run()", False),
        ("with pytest.raises(OSError): run()", False),
        ("helped()", False),
        ("rig.helped()", False),
        ("twice_helped(1)", False),
        ("pool.submit(helped)", False),
    ],
)
def test_one_that_asserts_nothing_is_found(body: str, found: bool) -> None:
    helpers = "def helped(): assert 1\ndef twice_helped(x): helped()\ndef run(): return 1\n"
    trees = [ast.parse(helpers), ast.parse(f"def test_it():\n    {body}\n")]
    assert idle(trees) == (["test_it"] if found else [])
