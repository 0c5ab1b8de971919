"""What may stand under each key, reflected from the dataclasses: field names are the keys.

Units come from the names: `*_s` is a duration, `*_mb` and `*_gb` are sizes. A number may be 0 where
its default is 0, and must be more otherwise. A field says more in its metadata: `form` of a text,
`least` and `most` of a number.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import MISSING, dataclass
from enum import StrEnum
from typing import Any

from backfill.config.model import Config
from backfill.core.lifecycle import Rung
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
class Choice:
    """One of the values of an enumeration; `but` are those that the file may not name (yet)."""

    values: type[StrEnum]
    but: frozenset[str] = frozenset()

    @property
    def known(self) -> tuple[str, ...]:
        """What may be written, in the enumeration's order."""
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
    owner: type[Any] = object  # the dataclass that has it

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True, slots=True)
class Section:
    """Keys of one dataclass; `listed`: the key whose list may stand for the whole section."""

    make: type[Any]
    keys: tuple[Key, ...]
    listed: str = ""


Shape = Text | Amount | Flag | Choice | Many | Named | Maybe | Hostlist | Addresses | Section

# Fields of the core that say nothing about themselves: what their type cannot tell.
_SPECIAL: dict[tuple[str, str], Shape] = {
    ("Template", "names"): Hostlist(),
    ("Template", "addresses"): Addresses(),
    ("Template", "image"): Text("name"),
    ("Template", "features"): Many(Text("name")),
    ("ImageEntry", "names"): Hostlist(),
    ("PolicySet", "cluster"): Text("name"),
    ("Quota", "cpus"): Amount(whole=True, open=False),
    ("Priorities", "low"): Many(Text("name")),
    ("Priorities", "high"): Many(Text("name")),
    # The ladder never chooses it by itself, so a policy that names it would be a lie.
    ("RungRule", "rung"): Choice(Rung, but=frozenset({Rung.CANCEL})),
}
_MAY_BE_ZERO = {
    ("Comeback", "move_after_s"),
    ("Scale", "idle_s"),
    ("Notice", "waiting_after_s"),
    ("Flavour", "memory_margin_mb"),
    ("Victims", "protect_after"),
    ("Gaps", "boot_pays_s"),
    ("DaemonSettings", "policy_s"),
    ("Gaps", "return_pays_s"),
}


@functools.cache
def root() -> Section:
    """The whole file: the policies' keys beside those of daemon, Slurm, hosts and providers."""
    outer = {key.name: key for key in section(Config).keys if key.name not in _OURS}
    inner = {key.name: key for key in section(PolicySet).keys}
    return Section(dict, tuple({**inner, **outer}.values()))


_OURS = ("policies", "source", "lines")  # made by the reader, not written in the file


def section(make: type[Any]) -> Section:
    """Reflect a dataclass."""
    hints = typing.get_type_hints(make)
    given = [f for f in dataclasses.fields(make) if f.init and not f.metadata.get("ours")]
    keys = tuple(_key(make, f, hints[f.name]) for f in given)
    first = keys[0].shape
    listed = keys[0].name if isinstance(first, Many) and isinstance(first.item, Section) else ""
    return Section(make, keys, listed)


def _key(make: type[Any], f: dataclasses.Field[Any], hint: Any) -> Key:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    shape = _SPECIAL.get((make.__name__, f.name))
    if shape is None and f.name not in _OURS:
        shape = _shape(make, f, hint, default)
    return Key(f.name, shape or Text(), default, make)


def _shape(make: type[Any], f: dataclasses.Field[Any], hint: Any, default: Any) -> Shape:
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


def _simple(make: type[Any], f: dataclasses.Field[Any], hint: Any, default: Any) -> Shape:
    if hint is bool:
        return Flag()
    if hint is str:
        return Text(f.metadata.get("form", "text"), may_be_empty=default == "")
    if hint in (int, float):
        return _amount(make, f, hint, default)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Choice(hint)
    raise TypeError(f"{make.__name__}.{f.name}: the policy file has no form for {hint}")


def _amount(make: type[Any], f: dataclasses.Field[Any], hint: Any, default: Any) -> Amount:
    named = {"s": "s", "mb": "MB", "gb": "GB"}.get(f.name.rpartition("_")[2], "")
    unit = f.metadata.get("unit", named)  # a rate such as *_mb_s is a mere number
    may_be_zero = default == 0 or (make.__name__, f.name) in _MAY_BE_ZERO
    return Amount(
        unit=unit,
        whole=hint is int,
        least=f.metadata.get("least", 0),
        open="least" not in f.metadata and not may_be_zero,
        most=f.metadata.get("most", MOST),
    )
