"""The values that each key may have, reflected from the dataclasses: field names are the keys.

Units come from the names: `*_s` is a duration, `*_mb` and `*_gb` are sizes. A number may be 0 where
its default is 0, and must be more otherwise. A field says more in its metadata: see `core.model.keys`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from dataclasses import MISSING, dataclass
from enum import StrEnum
from typing import Any

from backfill.config.model import Config
from backfill.core.policy import PolicySet

MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Text:
    """Text; `form` names what kind (see `forms`), an empty one is allowed where it is default."""

    form: str = "text"
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """A number. `unit`: "" a count, "s" a duration, "MB" or "GB" a size; open: `least` excluded."""

    unit: str = ""
    whole: bool = False
    least: float = 0
    open: bool = True
    most: float = MOST


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the values of an enumeration; `but` are those that the file may not name (yet)."""

    values: type[StrEnum]
    but: frozenset[str] = frozenset()

    @property
    def known(self) -> tuple[str, ...]:
        """Return the texts that may be written, in the enumeration's order."""
        return tuple(value.value for value in self.values if value.value not in self.but)


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Named:
    """Free names, each with a value."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Maybe:
    """The same, or null."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Hostlist:
    """Names of nodes as Slurm writes them."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """A list of addresses, or the first one, from which the others are counted upwards."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section. `default` is MISSING for a key that must be given."""

    name: str
    shape: Shape
    default: Any = MISSING
    meaning: str = ""  # one sentence or a few; empty: see `told`

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def told(self) -> str:
        """The key's meaning, or else what the section below it is about, for the manual."""
        return self.meaning or _about(self.shape)


@dataclass(frozen=True, slots=True)
class Section:
    """Keys of one dataclass; `listed`: the key whose list may stand for the whole section."""

    make: type[Any]
    keys: tuple[Key, ...]
    listed: str = ""


def docstring(make: type[Any]) -> str:
    """Return the class's docstring as one paragraph."""
    return " ".join((inspect.getdoc(make) or "").split())


def _about(shape: Shape) -> str:
    """Return the first sentence of a section's dataclass."""
    match shape:
        case Section():
            return docstring(shape.make).partition(". ")[0]
        case Many() | Maybe():
            return _about(shape.item)
        case _:
            return ""


Shape = Text | Amount | Flag | OneOf | Many | Named | Maybe | Hostlist | Addresses | Section


@functools.cache
def root() -> Section:
    """Return the whole file: the policies' keys beside those of daemon, Slurm, hosts and providers."""
    outer = {key.name: key for key in section(Config).keys if key.name not in _OURS}
    inner = {key.name: key for key in section(PolicySet).keys}
    return Section(dict, tuple({**inner, **outer}.values()))


_OURS = ("policies", "source", "lines")  # made by the reader, not written in the file


def section(make: type[Any]) -> Section:
    """Reflect a dataclass."""
    hints = typing.get_type_hints(make)
    given = [f for f in dataclasses.fields(make) if f.init and not f.metadata.get("filled_in")]
    keys = tuple(_key(make, f, hints[f.name]) for f in given)
    first = keys[0].shape
    listed = keys[0].name if isinstance(first, Many) and isinstance(first.item, Section) else ""
    return Section(make, keys, listed)


def _key(make: type[Any], f: dataclasses.Field[Any], hint: Any) -> Key:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    shape = Text() if f.name in _OURS else _shape(make, f, hint, default)
    return Key(f.name, shape, default, f.metadata.get("meaning", ""))


def _shape(make: type[Any], f: dataclasses.Field[Any], hint: Any, default: Any) -> Shape:
    named = _NAMED.get(f.metadata.get("form", ""))
    if named is not None:
        return named
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return Maybe(_shape(make, f, arguments[0], default))
    if origin is tuple:
        return Many(_shape(make, f, arguments[0], MISSING))
    if origin is dict:
        return Named(_shape(make, f, arguments[1], MISSING))
    if dataclasses.is_dataclass(hint):
        return section(typing.cast("type[Any]", hint))
    return _simple(make, f, hint, default)


# Forms of several texts together, and not of each.
_NAMED: dict[str, Shape] = {"hostlist": Hostlist(), "addresses": Addresses()}


def _simple(make: type[Any], f: dataclasses.Field[Any], hint: Any, default: Any) -> Shape:
    if hint is bool:
        return Flag()
    if hint is str:
        return Text(f.metadata.get("form", "text"), may_be_empty=default == "")
    if hint in (int, float):
        return _amount(f, hint, default)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return OneOf(hint, frozenset(f.metadata.get("but", ())))
    raise TypeError(f"{make.__name__}.{f.name}: the policy file has no form for {hint}")


def _amount(f: dataclasses.Field[Any], hint: Any, default: Any) -> Amount:
    named = {"s": "s", "mb": "MB", "gb": "GB"}.get(f.name.rpartition("_")[2], "")
    return Amount(
        unit=f.metadata.get("unit", named),  # a rate such as *_mb_s is a mere number
        whole=hint is int,
        least=f.metadata.get("least", 0),
        open="least" not in f.metadata and default != 0,
        most=f.metadata.get("most", MOST),
    )
