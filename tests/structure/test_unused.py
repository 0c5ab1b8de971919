"""No definition of the program is there for nobody, or for tests alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from backfill.ui.command_line import COMMANDS, SCENARIO

ROOT = Path(__file__).parents[2]
# What only tests use, and why it is there; a folder stands for all below it.
ALLOWED = {
    "backfill/drivers/simulated": "the simulated world is driven by tests, as a site drives a real one",
    "backfill/lab": "a lab is there for tests, and offers them its names",
    "backfill/ports/capabilities.py MemoryGiver": "no decision uses balloons yet; drivers offer them",
    "backfill/sim/scenarios/rehearsal.py until": "rehearsals are driven by tests",
    "backfill/ui/commands/daemon.py formatMessage": "logging calls it",
    "backfill/ui/commands/daemon.py formatException": "logging calls it",
    "backfill/ui/web/exposition.py collect": "prometheus_client calls it",
    "backfill/ui/web/client_bounds.py connection_made": "asyncio calls it",
    "backfill/ui/web/client_bounds.py connection_lost": "asyncio calls it",
    "backfill/ui/web/client_bounds.py data_received": "asyncio calls it",
    "backfill/ui/web/client_bounds.py timeout_keep_alive_handler": "uvicorn calls it",
    "backfill/ui/parser.py _check_value": "argparse calls it",
    "backfill/ui/remote.py redirect_request": "urllib calls it",
}
# These run by themselves, in guests, or in another program's interpreter.
PROGRAMS = ("/inside/", "/inside.py", "__main__.py", "pyslurm_child.py")


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes and constants of a file, and the methods of its classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = (name for target in targets for name in ast.walk(target))
            yield from ((name.id, node) for name in named if isinstance(name, ast.Name))
        if isinstance(node, ast.ClassDef):
            yield from ((part.name, part) for part in node.body if isinstance(part, ast.FunctionDef))


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a piece of code uses, in text (forward references, getattr) as well."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text
            case ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


def _called_by_name() -> set[str]:
    words = [command.functions or command.name for command in (*COMMANDS, SCENARIO)]
    return {name for word in words for name in (f"add_{word}_arguments", f"run_{word}")}


def test_every_definition_is_used_by_the_program() -> None:
    """An import in an `__init__` is no use: it only offers the name to others."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "backfill").rglob("*.py"))}
    here = {path: Counter(_names(tree)) for path, tree in trees.items()}
    used = sum((names for path, names in here.items() if path.name != "__init__.py"), Counter[str]())
    by_name = _called_by_name()
    unused = []
    for path, tree in trees.items():
        if any(word in str(path) for word in PROGRAMS):
            continue
        for name, node in _definitions(tree):
            if used[name] > here[path][name] or name.startswith("__") or name in by_name:
                continue
            constant = isinstance(node, ast.Assign | ast.AnnAssign)
            if used[name] <= (0 if constant else Counter(_names(node))[name]):
                unused.append(f"{path.relative_to(ROOT)} {name}")
    assert [one for one in unused if not one.startswith(tuple(ALLOWED))] == []
    assert [allowed for allowed in ALLOWED if not any(one.startswith(allowed) for one in unused)] == []
