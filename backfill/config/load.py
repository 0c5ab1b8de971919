"""From a policy file's path to its checked values, or to all that is wrong with it."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from backfill.config import catalogue, rules
from backfill.config.files import read_keys, read_text
from backfill.config.model import Config
from backfill.config.problems import ConfigError, Problem
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import root
from backfill.config.zones import zone
from backfill.core.policies.budgets import Budgets
from backfill.core.policy import PolicySet


def load(path: str | os.PathLike[str]) -> Config:
    """Read and check the whole file. Raises ConfigError with every problem; changes nothing."""
    reader = Reader(os.fspath(path))
    text = read_text(reader, Path(path), "policy file")
    config = None if text is None else _config(reader, text)
    if reader.problems or config is None:
        own = reader.file
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.file != own, p.line, p.column)))
    return config


def check_text(text: str, name: str) -> list[Problem]:
    """Return everything that is wrong with a text from outside, by itself. `name`: how the file is called.

    No file that it names is opened.
    """
    reader = Reader(name)
    found = _read(reader, text)
    if found is not None:
        catalogue.leave_out(reader, found)
        _judge(reader, found, None)
    return sorted(reader.problems, key=lambda p: (p.line, p.column))


def _config(reader: Reader, text: str) -> Config | None:
    found = _read(reader, text)
    if found is None:
        return None
    images = catalogue.take_in(reader, found)
    _judge(reader, found, images)
    reader.problems += images.problems if images is not None else []
    good = {name: value for name, value in found.items() if value is not BAD}
    return None if reader.problems else _assemble(reader, good)


def _read(reader: Reader, text: str) -> dict[str, Any] | None:
    """Return the values by their keys at the top; None: it has none."""
    shape = root()
    required = ", ".join(key.name for key in shape.keys if key.required)
    tree = read_keys(reader, text, "policy file", f"give at least {required}")
    if tree is None:
        return None
    return reader.keys(shape, tree, "")


def _judge(reader: Reader, found: dict[str, Any], images: Reader | None) -> None:
    """Note what contradicts itself, at its place in the file or in the catalogue."""
    good = {name: value for name, value in found.items() if value is not BAD}
    given = {key.name: key.default for key in root().keys if not key.required}
    for finding in rules.findings({**{k: v for k, v in given.items() if k not in found}, **good}):
        of_image = images is not None and finding.path.startswith("libvirt.images.")
        at = images if images is not None and of_image else reader
        path = finding.path.removeprefix("libvirt.") if of_image else finding.path
        at.note(None, path, finding.what, finding.remedy)
        if at.full:
            break  # no more are shown


def _assemble(reader: Reader, found: dict[str, Any]) -> Config:
    hosts = found.pop("hosts")
    of_policy = {f.name for f in fields(PolicySet)}
    given = {name: value for name, value in found.items() if name in of_policy}
    if "budgets" in given:
        given["budgets"] = _zoned(given["budgets"])
    policies = PolicySet(hosts=tuple(host.name for host in hosts), **given)
    return Config(
        policies=policies,
        hosts=hosts,
        source=Path(reader.file),
        lines={path: place.line for path, place in reader.places.items() if path},
        **{name: value for name, value in found.items() if name not in of_policy},
    )


def _zoned(budgets: Budgets) -> Budgets:
    """Each with the table of its time zone; the core reads no files."""
    return Budgets(tuple(replace(one, zone=zone(one.time_zone)) for one in budgets.windows))
