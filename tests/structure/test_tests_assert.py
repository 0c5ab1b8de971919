"""Every test asserts something: itself, or through a helper of the tests that does."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What fails by itself when what it is given does not hold.
_CHECKS = {"raises", "warns", "fail", "RaisesGroup", "deprecated_call"}
# This fails as well; but tests also let time pass by it, and what they claim comes last.
_WAIT = "until"
# Methods that objects have which are none of the tests': by their bare names nobody is known.
_TYPES = (list, dict, set, str, bytes, Path, io.StringIO, subprocess.Popen, threading.Thread, threading.Event)


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions and methods; those inside others too."""
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def asserts(function: Function) -> bool:
    """Whether an assertion of its own stands in it, in what is always reached or not."""
    return _waits(function.body[-1]) or any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Raise) and "AssertionError" in ast.dump(node))
        or (isinstance(node, ast.Call) and _name(node.func) in _CHECKS)
        for node in ast.walk(function)
    )


def _waits(last: ast.stmt) -> bool:
    """Whether this statement waits for something at its end."""
    match last:
        case ast.With(body=body) | ast.For(body=body):
            return _waits(body[-1])
        case ast.Expr(value=ast.Call(func=called)) | ast.Return(value=ast.Call(func=called)):
            return _name(called) == _WAIT
        case _:
            return False


def _name(node: ast.AST | None) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


@dataclass(frozen=True, slots=True)
class Helper:
    """A function of the tests: the names by which it is called, and the names of what it calls."""

    function: Function
    names: frozenset[str]
    calls: frozenset[str]


@dataclass
class Suite:
    """All modules of the tests by their names, and the names that others have as well.

    A function is known as `module.name`, a method as `Class.name`, for no two classes have the same
    name. Where nothing tells of which class an object is, a method is known as `.name`, unless
    something else than the tests has a method of that name too.
    """

    trees: Mapping[str, ast.Module]
    foreign: frozenset[str] = frozenset()
    _bases: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        classes = (n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
        self._bases = {one.name: [_name(base) for base in one.bases] for one in classes}

    def helpers(self) -> Iterator[Helper]:
        """All functions of all modules and classes, tests as well."""
        for module, tree in self.trees.items():
            known = _known(module, tree)
            for node in tree.body:
                if isinstance(node, Function):
                    yield Helper(node, frozenset({f"{module}.{node.name}"}), self._calls(node, known, ""))
                if isinstance(node, ast.ClassDef):
                    yield from self._methods(module, node, known)

    def _methods(self, module: str, owner: ast.ClassDef, known: Mapping[str, str]) -> Iterator[Helper]:
        for node in owner.body:
            if not isinstance(node, Function):
                continue
            names = {f"{owner.name}.{node.name}"}
            if node.name not in self.foreign:
                names.add(f".{node.name}")
            if node.name in ("__init__", "__enter__", "__post_init__"):
                names.add(f"{module}.{owner.name}")
            yield Helper(node, frozenset(names), self._calls(node, known, owner.name))

    def _calls(self, function: Function, known: Mapping[str, str], owner: str) -> frozenset[str]:
        """What it calls, or hands on to be called."""
        of = {"self": owner}
        for one in ast.walk(function):
            if isinstance(one, ast.arg) and one.annotation is not None:
                of[one.arg] = _name(one.annotation)
        found: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                for used in (node.func, *node.args, *(word.value for word in node.keywords)):
                    found |= self._called(used, known, of)
        return frozenset(found)

    def _called(self, used: ast.expr, known: Mapping[str, str], of: Mapping[str, str]) -> set[str]:
        match used:
            case ast.Name(id=name) if name in known:
                return {known[name]}
            case ast.Attribute(attr=name) if name == _WAIT:
                return set()
            case ast.Attribute(value=ast.Name(id=thing), attr=name):
                module = known.get(thing, "")
                if module in self.trees:
                    return {f"{module}.{name}"}
                return {f".{name}", *(f"{one}.{name}" for one in self._kinds(of.get(thing, "")))}
            case ast.Attribute(attr=name):
                return {f".{name}"}
            case _:
                return set()

    def _kinds(self, name: str) -> Iterator[str]:
        if name in self._bases:
            yield name
            for base in self._bases[name]:
                yield from self._kinds(base)

    def idle(self) -> list[str]:
        """Tests that assert nothing."""
        every = list(self.helpers())
        found = {name for one in every if asserts(one.function) for name in one.names}
        while more := {n for one in every if one.calls & found for n in one.names} - found:
            found |= more
        tests = (one for one in every if one.function.name.startswith("test_"))
        return [one.function.name for one in tests if not asserts(one.function) and not one.calls & found]


def _known(module: str, tree: ast.Module) -> dict[str, str]:
    """What the names of a module mean that the tests define, there or elsewhere."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tests":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[one.name] = f"{module}.{one.name}"
    return found


def _foreign() -> frozenset[str]:
    """Names of functions of the program, and of methods of Python's own types."""
    texts = (path.read_text() for path in (ROOT / "backfill").rglob("*.py"))
    ours = {name for text in texts for name in re.findall(r"^ *(?:async )?def (\w+)", text, re.MULTILINE)}
    return frozenset(ours.union(*map(dir, _TYPES)))


def test_every_test_asserts_something() -> None:
    files = [f for f in (ROOT / "tests").rglob("*.py") if "bench" not in f.parts]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    trees = {name: ast.parse(file.read_text(), str(file)) for name, file in zip(names, files, strict=True)}
    assert sum(f.name.startswith("test_") for tree in trees.values() for f in functions(tree)) > 1000
    assert Suite(trees, _foreign()).idle() == []


HELPERS = """
def helped(): assert 1
def twice_helped(x): helped()
def run(): return 1
class Base:
    def sure(self): assert 1
    def until(self, what): assert what()
class Rig(Base):
    def start(self): assert 1
    def twice(self): self.sure()
    def does(self): return self.until(run)
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("run()", True),
        ("return", True),
        ("assert run()", False),
        ("with pytest.raises(OSError): run()", False),
        ("helped()", False),
        ("h.helped()", False),
        ("pool.helped()", True),
        ("other_helped()", True),
        ("twice_helped(1)", False),
        ("pool.submit(helped)", False),
        ("pool.sure()", False),
        ("rig.twice()", False),
        ("rig.does()", False),
        ("rig.start()", False),
        ("pool.start()", True),
        ("rig.until(run); run()", True),
        ("run(); rig.until(run)", False),
    ],
)
def test_one_that_asserts_nothing_is_found(body: str, found: bool) -> None:
    """A name that others have too, and a wait on the way, are no assertions."""
    imports = "from tests import helpers as h\nfrom tests.helpers import Rig, helped, run, twice_helped\n"
    test = ast.parse(f"{imports}def test_it(rig: Rig):\n    {body}\n")
    suite = Suite({"tests.helpers": ast.parse(HELPERS), "tests.test_it": test}, frozenset({"start"}))
    assert suite.idle() == (["test_it"] if found else [])
