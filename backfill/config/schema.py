"""The policy file's JSON schema (draft 2020-12), for editors that complete and check YAML."""

from __future__ import annotations

from dataclasses import MISSING
from enum import StrEnum
from typing import Any

from backfill.config import forms
from backfill.config.phrases import allowed
from backfill.config.shapes import (
    Addresses,
    Amount,
    Flag,
    Hostlist,
    Key,
    Many,
    Maybe,
    Named,
    OneOf,
    Section,
    Shape,
    Text,
    root,
)


def json_schema() -> dict[str, Any]:
    """Return the schema as plain JSON data. What holds between keys is beyond it: `check` knows."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "backfill policy file",
        **_schema(root()),
    }


def _schema(shape: Shape) -> dict[str, Any]:
    match shape:
        case Section():
            return _section(shape)
        case Many():
            return {"type": "array", "items": _schema(shape.item)}
        case Named():
            return {"type": "object", "additionalProperties": _schema(shape.item)}
        case Maybe():
            return {"anyOf": [_schema(shape.item), {"type": "null"}]}
        case Hostlist() | Addresses():
            texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
            return {"anyOf": [{"type": "string"}, texts], "description": allowed(shape)}
        case _:
            return _leaf(shape)


def _leaf(shape: Text | Amount | Flag | OneOf) -> dict[str, Any]:
    match shape:
        case OneOf():
            return {"enum": list(shape.known)}
        case Flag():
            return {"type": "boolean"}
        case Text(form="share"):
            kinds = [{"type": "integer", "minimum": 0}, {"type": "string"}]
            return {"anyOf": kinds, "description": forms.ALLOWED["share"]}
        case Text():
            least = {} if shape.may_be_empty else {"minLength": 1}
            return {"type": "string", "description": forms.ALLOWED[shape.form], **least}
        case Amount():
            bound = "exclusiveMinimum" if shape.open else "minimum"
            kind = "integer" if shape.whole else "number"
            number = {"type": kind, bound: shape.least, "maximum": shape.most}
            if not shape.unit:
                return number
            return {"anyOf": [number, {"type": "string"}], "description": allowed(shape)}


def _section(shape: Section) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _key(key) for key in shape.keys},
        "required": [key.name for key in shape.keys if key.required],
    }
    if shape.listed:
        return {"anyOf": [_schema(shape.keys[0].shape), keys]}
    return keys


def _key(key: Key) -> dict[str, Any]:
    found = _schema(key.shape)
    if key.told:
        found = {**found, "description": key.told}
    if _is_plain(key.default):
        value = key.default
        found = {**found, "default": value.value if isinstance(value, StrEnum) else value}
    return found


def _is_plain(value: Any) -> bool:
    return value is not MISSING and isinstance(value, str | int | float | None)
