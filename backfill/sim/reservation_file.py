"""Reads a file of reservations for a replay: which nodes are kept, when, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backfill.config.problems import ConfigError, Place
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Section
from backfill.config.tree import Entries, parse
from backfill.sim.scenario import ReservationEntry
from backfill.sim.scenario_reader import reservations_key
from backfill.sim.scenario_rules import reservation_mistakes

MAX_BYTES = 1_000_000


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
    whole = Place(0, 0)
    try:
        text = path.read_bytes()[:MAX_BYTES].decode("utf-8-sig")
    except OSError as error:
        what = f"the reservations cannot be read: {error.strerror}"
        reader.note(whole, "", what, "check the path")
        return ()
    except UnicodeDecodeError:
        reader.note(whole, "", "the reservations are not UTF-8", "save the file as UTF-8")
        return ()
    tree, flaws = parse(text)
    for flaw in flaws:
        reader.note(flaw.place, "", flaw.what, flaw.remedy)
    if not isinstance(tree, Entries):
        if not flaws:
            reader.note(Place(1, 1), "", "the file has no keys", "give reservations: [...]")
        return ()
    found = reader.keys(Section(dict, (reservations_key(),)), tree, "").get("reservations", ())
    return () if found is BAD or reader.problems else found
