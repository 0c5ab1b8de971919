"""Reads a file of reservations for a replay: what is kept, when, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Key, Many, Section, section
from backfill.sim.machine import Cluster
from backfill.sim.reserved_pool import PoolEntry
from backfill.sim.scenario import ReservationEntry
from backfill.sim.scenario_reader import reservations_key
from backfill.sim.scenario_rules import Contradiction, reservation_mistakes

EntryT = TypeVar("EntryT")


def load_reservations(path: Path, names: Sequence[str]) -> tuple[ReservationEntry, ...]:
    """The entries of its `reservations:`, as a scenario has them; `names`: of the nodes there are.

    Raises ConfigError with every problem.
    """
    return _load(path, reservations_key(), lambda found: reservation_mistakes(found, names))


def load_kept(path: Path, cluster: Cluster) -> tuple[PoolEntry, ...]:
    """The same for a pool of processors, which has no nodes to name."""
    key = Key("reservations", Many(section(PoolEntry)), ())
    return _load(path, key, lambda found: _too_many(found, cluster))


def _too_many(entries: Sequence[PoolEntry], cluster: Cluster) -> Iterator[Contradiction]:
    for index, entry in enumerate(entries):
        if entry.processors > cluster.processors:
            what = f"is {entry.processors}, but the cluster has {cluster.processors}"
            yield f"reservations[{index}].processors", what, "lower it, or leave it out for all"


def _load(
    path: Path, key: Key, mistakes: Callable[[tuple[EntryT, ...]], Iterable[Contradiction]]
) -> tuple[EntryT, ...]:
    reader = Reader(str(path))
    entries: tuple[EntryT, ...] = _read(reader, path, key)
    for where, what, remedy in mistakes(entries):
        reader.note(None, where, what, remedy)
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    return entries


def _read(reader: Reader, path: Path, key: Key) -> Any:
    text = read_text(reader, path, "reservations file")
    if text is None:
        return ()
    tree = read_keys(reader, text, "reservations file", "give reservations: [...]")
    if tree is None:
        return ()
    found = reader.keys(Section(dict, (key,)), tree, "").get(key.name, ())
    return () if found is BAD or reader.problems else found
