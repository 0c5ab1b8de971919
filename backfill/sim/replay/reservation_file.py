"""Reads a file of reservations for a replay: what is kept, when, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Hostlist, Key, Many, Section, Shape, section
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.schedulers.reservations import PoolEntry, ReservationEntry

EntryT = TypeVar("EntryT")
# Path of the key, what is wrong with it, and the remedy.
Contradiction = tuple[str, str, str]


def load_reservations(path: Path, names: Sequence[str]) -> tuple[ReservationEntry, ...]:
    """Return the entries of its `reservations:`, as a scenario has them; `names`: of the nodes there are.

    Raises ConfigError with every problem.
    """
    return _load(path, reservations_key(), lambda found: reservation_mistakes(found, names))


def load_kept(path: Path, cluster: Cluster) -> tuple[PoolEntry, ...]:
    """Read the same for a pool of processors, which has no nodes to name."""
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


def reservations_key() -> Key:
    """`reservations:`, in a scenario and in a file of its own."""
    return Key("reservations", Many(with_shape(ReservationEntry, "nodes", Hostlist())), ())


def with_shape(make: type[Any], name: str, shape: Shape) -> Section:
    """Return a reflected class, one key of which its type does not tell enough about."""
    found = section(make)
    keys = (replace(key, shape=shape) if key.name == name else key for key in found.keys)
    return replace(found, keys=tuple(keys))


def reservation_mistakes(
    entries: Sequence[ReservationEntry], hosts: Sequence[str]
) -> Iterator[Contradiction]:
    """Yield what is wrong with reservations of these hosts."""
    such = f", such as {hosts[0]}" if hosts else ""
    for index, entry in enumerate(entries):
        path = f"reservations[{index}]"
        for name in entry.nodes:
            if name not in hosts:
                what = f"has {name}, which is no host"
                yield f"{path}.nodes", what, f"use host names{such}"
        if entry.for_s <= 0:
            yield f"{path}.for_s", f"is {entry.for_s:g}", "it must be more than 0"
