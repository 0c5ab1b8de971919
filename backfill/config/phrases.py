"""Says in words what may be written under a key."""

from __future__ import annotations

import difflib

from backfill.config import forms, values
from backfill.config.shapes import (
    Addresses,
    Amount,
    Flag,
    Hostlist,
    Many,
    Maybe,
    Named,
    OneOf,
    Section,
    Shape,
    Text,
)


def allowed(shape: Shape, given: str = "") -> str:
    """Say what may be written for this shape, as the object of "write …"; `given` was wrong."""
    match shape:
        case Many():
            item = allowed(shape.item)
            short = f"[{given}]" if given and isinstance(shape.item, Text | OneOf) else "a list"
            return f"{short}, each item {item}"
        case Named():
            return f"names with {allowed(shape.item)} each"
        case Maybe():
            return f"{allowed(shape.item)}, or null"
        case Section():
            if shape.listed:
                return allowed(shape.keys[0].shape)
            return f"the keys {', '.join(key.name for key in shape.keys)}"
        case _:
            return _allowed_leaf(shape, given)


def _allowed_leaf(shape: Text | Amount | Flag | OneOf | Hostlist | Addresses, given: str = "") -> str:
    match shape:
        case Text():
            return forms.ALLOWED[shape.form]
        case Amount():
            return _allowed_amount(shape)
        case Flag():
            return "true or false"
        case OneOf():
            return _allowed_choice(list(shape.known), given)
        case Hostlist():
            return "names as Slurm does, such as vn[1-16]"
        case Addresses():
            return "the first address with its prefix, such as 10.77.1.1/16, or a list of them"


def _allowed_amount(shape: Amount) -> str:
    if shape.unit == "s":
        return values.DURATIONS
    if shape.unit:
        return values.SIZES.format(unit=shape.unit)
    return "a whole number" if shape.whole else "a number"


def _allowed_choice(known: list[str], given: str) -> str:
    letters = {one.casefold(): one for one in known}
    near = [letters[one] for one in difflib.get_close_matches(given[:40].casefold(), letters, 1)]
    listed = " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return f"{listed} (did you mean {near[0]}?)" if near else listed
