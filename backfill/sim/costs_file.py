"""Reads a file of step costs: durations, rates, shared transfers, and how often calls fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Amount, Key, Section, section
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay_costs import MAY_FAIL, ReplayCosts


def load_costs(path: str | os.PathLike[str]) -> ReplayCosts:
    """Read and check a YAML file whose keys are the fields of StepCosts and ReplayCosts.

    Raises ConfigError with every problem.
    """
    reader = Reader(os.fspath(path))
    found = _read(reader, Path(path))
    if reader.problems or found is None:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    failures = found.pop("failures", {})
    transfers = found.pop("transfers", 0)
    return ReplayCosts(StepCosts(**found), transfers, failures)


def _read(reader: Reader, path: Path) -> dict[str, Any] | None:
    text = read_text(reader, path, "costs file")
    if text is None:
        return None
    tree = read_keys(reader, text, "costs file", "give boot_s: 30s, for example")
    if tree is None:
        return None
    found = reader.keys(_shape(), tree, "")
    return None if BAD in found.values() else found


def _shape() -> Section:
    """Durations as in a policy file, 0 included; rates are seconds per MB, as plain numbers."""
    rate, duration = Amount(open=False), Amount(unit="s", open=False)
    steps = tuple(
        Key(key.name, rate if key.name.endswith("_per_mb") else duration, key.default)
        for key in section(StepCosts).keys
    )
    share = Amount(most=1, open=False)
    failures = Section(dict, tuple(Key(call, share, 0.0) for call in MAY_FAIL))
    many = Amount(whole=True, open=False)
    return Section(dict, (*steps, Key("transfers", many, 0), Key("failures", failures, {})))
