"""What a key of the policy file says about itself, at the field that it becomes: meaning, bounds, form.

A policy is a frozen dataclass whose fields are the keys of its section. `key` and `about` put into a
field's metadata what its name and type cannot tell; `backfill.config` reads it from there, for the
checks, the manual and the schema.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")


# The kinds of text that have a form of their own.
Form = Literal[
    "name",
    "path",
    "ip",
    "endpoint",
    "endpoints",
    "service",
    "network",
    "mount",
    "uri",
    "share",
    "schedule",
    "zone",
    "hostlist",
    "addresses",
]


# For a field that is no key: the reader fills it in.
FILLED_IN: Mapping[str, Any] = {"filled_in": True}


def about(
    meaning: str,
    *,
    form: Form | None = None,
    least: float | None = None,
    most: float | None = None,
    unit: str | None = None,
    but: Collection[str] = (),
) -> dict[str, Any]:
    """Return the metadata of a field that must be given, or whose default is made by a factory.

    form: what kind of text, or of each text in a list. least, most: bounds of a number, included; it
    must be more than 0 otherwise, and may be 0 where its default is. unit: "s", "MB" or "GB", where
    the name's end would tell another one. but: values of an enumeration that no file may name.
    """
    said = {"meaning": meaning, "form": form, "least": least, "most": most, "unit": unit, "but": but or None}
    return {name: value for name, value in said.items() if value is not None}


def key(
    default: T,
    meaning: str,
    *,
    form: Form | None = None,
    least: float | None = None,
    most: float | None = None,
    unit: str | None = None,
    compare: bool = True,
) -> T:
    """Return a field with this default; the rest is as in `about` and `dataclasses.field`."""
    said = about(meaning, form=form, least=least, most=most, unit=unit)
    made: T = field(default=default, metadata=said, compare=compare)
    return made


class Option(StrEnum):
    """An enumeration for keys. A member may say what it does: `PAUSE = "pause", "keeps memory"`."""

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member
