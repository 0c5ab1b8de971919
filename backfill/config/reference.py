"""Writes the manual of the policy file (docs/policy.md) out of the dataclasses it is read into."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any

from backfill.config import forms, values
from backfill.config.phrases import allowed
from backfill.config.reader import join
from backfill.config.shapes import (
    MOST,
    Addresses,
    Amount,
    Flag,
    Hostlist,
    Key,
    Many,
    Maybe,
    Named,
    OneOf,
    Section,
    Shape,
    Text,
    docstring,
    root,
)
from backfill.core.model.keys import Option

_INTRODUCTION = f"""\
# The policy file

<!-- Made by `python -m backfill.config.reference > docs/policy.md`; change the code, not this. -->

One YAML file says what `backfill` may do. `config/policy.yaml` is a commented sample,
`config/policy.minimal.yaml` the smallest one that works; `backfill policy check FILE` reads a file
and shows everything that is wrong with it, each with its line, and changes nothing.

- A **duration** is {values.DURATIONS}.
- A **size** in MB is {values.SIZES.format(unit="MB")}.
- Numbers may be 0 where the table says so, are never negative, and counts are whole.
- Text that looks like a number, `true` or `false` needs quotes.
- Anchors and aliases (`&a`, `*a`) may be used. Merge keys (`<<`), tags (`!x`) and duplicate keys
  are refused, because they change what a line means at another place.
- A **name** is {forms.ALLOWED["name"].removeprefix("a name ")}.
- A *list of sections* stands right under its key, such as `devices: [{{name: vf, functions: 1}}]`;
  `devices: {{entries: [...]}}` means the same.
- In the tables, **bold** keys must be given.
"""


def reference() -> str:
    """The manual as Markdown, ending with a newline."""
    parts = [_INTRODUCTION, "## All keys\n", _table(root())]
    for key in root().keys:
        parts += _sections(key.shape, key.name, 2)
        parts += filter(None, [_default_list(key)])
    return "\n".join(parts)


def _sections(shape: Shape, path: str, depth: int) -> Iterator[str]:
    """A chapter for each section at or below `path`."""
    match shape:
        case Section() if shape.listed:
            yield from _sections(shape.keys[0].shape, path, depth)
        case Section():
            yield f"{'#' * depth} `{path}`\n"
            yield f"{docstring(shape.make)}\n"
            yield _table(shape)
            for key in shape.keys:
                yield from _sections(key.shape, join(path, key.name), depth + 1)
        case Many():
            yield from _sections(shape.item, f"{path}[]", depth)
        case Named():
            yield from _sections(shape.item, f"{path}.NAME", depth)
        case Maybe():
            yield from _sections(shape.item, path, depth)
        case _:
            pass


def _table(section: Section) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in section.keys:
        name = f"**`{key.name}`**" if key.required else f"`{key.name}`"
        cells = (name, _value(key.shape), _default(key), _meaning(key))
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _value(shape: Shape) -> str:
    match shape:
        case Many() if isinstance(shape.item, Section):
            return "list of sections"
        case Many():
            return f"list, each item {_value(shape.item)}"
        case Named():
            return f"{'a section' if isinstance(shape.item, Section) else 'text'} for each name"
        case Maybe():
            return f"{_value(shape.item)}; or `null`"
        case Section():
            return "list of sections" if shape.listed else "section"
        case _:
            return _leaf(shape)


def _leaf(shape: Text | Amount | Flag | OneOf | Hostlist | Addresses) -> str:
    match shape:
        case Amount():
            return _amount(shape)
        case Text(form="name"):
            return "a name"
        case OneOf():
            return ", ".join(f"`{value}`" for value in shape.known)
        case _:
            return allowed(shape)


def _amount(shape: Amount) -> str:
    bare = "number" if not shape.whole else "whole number"
    units = {"s": "duration", "MB": "size", "GB": "size (a bare number is GB)"}
    bound = f"more than {shape.least:g}" if shape.open else f"{shape.least:g} or more"
    top = f", at most {shape.most:g}" if shape.most < MOST else ""
    return f"{units.get(shape.unit, bare)}, {bound}{top}"


def _default(key: Key) -> str:
    if key.default is MISSING:
        return ""
    return _written(key.default)


def _written(value: Any) -> str:
    """A default as it would stand in the file, in code quotes; empty for whole sections."""
    match value:
        case None:
            return "`null`"
        case StrEnum():
            return f"`{value.value}`"
        case str():
            return f"`{value}`" if value else "empty"
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            return f"`{value:g}`"
        case tuple() if not any(is_dataclass(item) for item in value):
            return f"`[{', '.join(str(item) for item in value)}]`"
        case _:
            return "see below" if value else "`{}`"


def _default_list(key: Key) -> str:
    """The default of a section that is written as a list, as YAML; empty for other keys."""
    if not isinstance(key.shape, Section) or not key.shape.listed or key.default is MISSING:
        return ""
    items = getattr(key.default, key.shape.listed)
    if not items:
        return ""
    lines = ["When the key is left out:", "", "```yaml", f"{key.name}:"]
    for item in items:
        pairs = ((f.name, getattr(item, f.name)) for f in fields(item))
        texts = [f"{name}: {_written(v).strip('`')}" for name, v in pairs if v is not None]
        lines.append(f"  - {{{', '.join(texts)}}}")
    return "\n".join([*lines, "```", ""])


def _meaning(key: Key) -> str:
    said = key.told
    choice = key.shape.item if isinstance(key.shape, Maybe) else key.shape
    if isinstance(choice, OneOf):
        members = [m for m in choice.values if isinstance(m, Option) and m.value in choice.known]
        each = "; ".join(f"`{m.value}`: {m.meaning}" for m in members if m.meaning)
        said = ". ".join(filter(None, [said.rstrip("."), each]))
    return said[:1].upper() + said[1:].rstrip(".")


if __name__ == "__main__":
    sys.stdout.write(reference())
