"""Takes the meaning of a dataclass's fields from the comments beside them in its source."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize


def field_comments(make: type) -> dict[str, str]:
    """The comment of each field or enumeration member: behind it, or in the lines above it.

    A comment above also holds for the fields that follow without one of their own.
    """
    source = textwrap.dedent(inspect.getsource(make))
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    own_line, behind = _comments(source)
    found: dict[str, str] = {}
    above: list[str] = []
    last_line = 0
    for statement in tree.body:
        name = _name(statement)
        if name is None:
            continue
        between = range(last_line + 1, statement.lineno)
        block = [own_line[line] for line in between if line in own_line]
        if block or last_line == 0:
            above = block
        end = statement.end_lineno or statement.lineno
        after = behind.get(end)
        if after is not None:
            above = []
        found[name] = after if after is not None else " ".join(above)
        last_line = end
    return found


def docstring(make: type) -> str:
    """The class's docstring as one paragraph, without the marks of code."""
    return " ".join((inspect.getdoc(make) or "").split())


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Comments by line: those that have the line for themselves, and those behind code."""
    own_line: dict[int, str] = {}
    behind: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            (own_line if alone else behind)[token.start[0]] = token.string.lstrip("# ")
    return own_line, behind


def _name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None
