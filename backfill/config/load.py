"""From a policy file's path to its checked values, or to all that is wrong with it."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from backfill.config import catalogue, rules
from backfill.config.model import Config
from backfill.config.problems import ConfigError, Place, Problem
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import root
from backfill.config.tree import Entries, parse
from backfill.core.policy import PolicySet

MAX_BYTES = 1_000_000


def load(path: str | os.PathLike[str]) -> Config:
    """Read and check the whole file. Raises ConfigError with every problem; changes nothing."""
    reader = Reader(os.fspath(path))
    text = _text(reader, Path(path), "policy file")
    config = None if text is None else _config(reader, text)
    if reader.problems or config is None:
        own = reader.file
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.file != own, p.line, p.column)))
    return config


def check(path: str | os.PathLike[str]) -> list[Problem]:
    """Everything that is wrong with the file, in its order; empty when it can be used."""
    try:
        load(path)
    except ConfigError as error:
        return list(error.problems)
    return []


def _text(reader: Reader, path: Path, what_file: str) -> str | None:
    whole_file = Place(0, 0)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        reader.note(whole_file, "", f"the {what_file} cannot be read: {why}", "check the path")
        return None
    if len(data) > MAX_BYTES:
        what = f"the {what_file} is larger than {MAX_BYTES} bytes"
        reader.note(whole_file, "", what, "is it the right file?")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        reader.note(place, "", what, "save the file as UTF-8")
        return None


def _config(reader: Reader, text: str) -> Config | None:
    tree, flaws = parse(text)
    for flaw in flaws:
        reader.note(flaw.place, "", flaw.what, flaw.remedy)
    shape = root()
    if not isinstance(tree, Entries):
        if not flaws:
            what = "the policy file is empty" if tree is None else "the policy file has no keys"
            first = tree.place if tree is not None else Place(1, 1)
            required = ", ".join(key.name for key in shape.keys if key.required)
            reader.note(first, "", what, f"give at least {required}")
        return None
    found = reader.keys(shape, tree, "")
    images = catalogue.take_in(reader, found, _text)
    good = {name: value for name, value in found.items() if value is not BAD}
    given = {key.name: key.default for key in shape.keys if not key.required}
    for finding in rules.findings({**{k: v for k, v in given.items() if k not in found}, **good}):
        of_image = images is not None and finding.path.startswith("libvirt.images.")
        at = images if images is not None and of_image else reader
        path = finding.path.removeprefix("libvirt.") if of_image else finding.path
        at.note(None, path, finding.what, finding.remedy)
    reader.problems += images.problems if images is not None else []
    return None if reader.problems else _assemble(reader, good)


def _assemble(reader: Reader, found: dict[str, Any]) -> Config:
    hosts = found.pop("hosts")
    of_policy = {f.name for f in fields(PolicySet)}
    policies = PolicySet(
        hosts=tuple(host.name for host in hosts),
        **{name: value for name, value in found.items() if name in of_policy},
    )
    return Config(
        policies=policies,
        hosts=hosts,
        source=Path(reader.file),
        lines={path: place.line for path, place in reader.places.items() if path},
        **{name: value for name, value in found.items() if name not in of_policy},
    )
