"""Reads a file of reservations for a replay: which nodes are kept, when, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Section
from backfill.sim.scenario import ReservationEntry
from backfill.sim.scenario_reader import reservations_key
from backfill.sim.scenario_rules import reservation_mistakes


def load_reservations(path: Path, names: Sequence[str]) -> tuple[ReservationEntry, ...]:
    """The entries of its `reservations:`, as a scenario has them; `names`: of the nodes there are.

    Raises ConfigError with every problem.
    """
    reader = Reader(str(path))
    entries = _read(reader, path)
    for where, what, remedy in reservation_mistakes(entries, names):
        reader.note(None, where, what, remedy)
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    return entries


def _read(reader: Reader, path: Path) -> tuple[ReservationEntry, ...]:
    text = read_text(reader, path, "reservations file")
    if text is None:
        return ()
    tree = read_keys(reader, text, "reservations file", "give reservations: [...]")
    if tree is None:
        return ()
    found = reader.keys(Section(dict, (reservations_key(),)), tree, "").get("reservations", ())
    return () if found is BAD or reader.problems else found
