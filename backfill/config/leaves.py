"""Reads what stands at a tree's tips: text, numbers, durations, sizes, hostlists, addresses."""

from __future__ import annotations

import re
from typing import Any

from backfill.config import addresses, forms, values
from backfill.config.phrases import allowed
from backfill.config.problems import Place, quote
from backfill.config.shapes import Addresses, Amount, Flag, Hostlist, OneOf, Shape, Text
from backfill.config.tree import Entries, Listing, Scalar, Tree
from backfill.core.model.quantities import parse_hostlist

_NUMBER = re.compile(r"[-+]?(\d[\d_]*|\d[\d_]*\.\d*|\.\d+)([eE][-+]?\d+)?")
MOST_NAMES = 65533  # slurm.conf(5), MaxNodeCount
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class WrongError(Exception):
    """A value cannot be read; `what` follows the key's name in a sentence."""

    def __init__(self, place: Place, what: str, remedy: str) -> None:
        self.place, self.what, self.remedy = place, what, remedy
        super().__init__(what)


def is_null(tree: Tree) -> bool:
    """Return True if nothing, or null, was written."""
    return isinstance(tree, Scalar) and tree.plain and tree.text in _NULLS


def kind(tree: Tree) -> str:
    """Say in a sentence's words what `tree` is."""
    if isinstance(tree, Listing):
        return "a list"
    if isinstance(tree, Entries):
        return "a section with keys of its own"
    if tree.plain and _NUMBER.fullmatch(tree.text):
        return f"the number {tree.text[:40]}"
    if tree.plain and tree.text in _FLAGS:
        return f"the truth value {tree.text}"
    return f"the text {quote(tree.text)}"


def read(shape: Shape, tree: Tree) -> Any:
    """Read a value that has no keys and is no hostlist. Raises WrongError."""
    if isinstance(shape, Addresses):
        return _addresses(tree)
    if not isinstance(tree, Scalar):
        raise WrongError(tree.place, f"is {kind(tree)}", f"write {allowed(shape)}")
    match shape:
        case Text():
            return _text(shape, tree)
        case Amount():
            return _amount(shape, tree)
        case Flag() if tree.plain and tree.text in _FLAGS:
            return _FLAGS[tree.text]
        case OneOf() if tree.text in shape.known:
            return shape.values(tree.text)
    raise WrongError(tree.place, f"is {kind(tree)}", f"write {allowed(shape, tree.text)}")


def _text(shape: Text, tree: Scalar) -> str:
    number = _NUMBER.fullmatch(tree.text) and shape.form != "share"
    if tree.plain and (number or tree.text in _FLAGS):
        remedy = f'write {allowed(shape)}; if this is meant, put it in quotes: "{tree.text[:40]}"'
        raise WrongError(tree.place, f"is {kind(tree)}", remedy)
    if tree.text == "":
        if shape.may_be_empty:
            return ""
        raise WrongError(tree.place, "is empty", f"write {allowed(shape)}")
    what = forms.wrong(shape.form, tree.text)
    if what:
        raise WrongError(tree.place, f"is {quote(tree.text)}, which {what}", f"write {allowed(shape)}")
    return tree.text


def _amount(shape: Amount, tree: Scalar) -> int | float:
    try:
        value = _parsed(shape, tree)
    except values.AmountError as error:
        what = f"is {quote(tree.text)}, which {error}"
        raise WrongError(tree.place, what, f"write {allowed(shape)}") from error
    if shape.whole and value != int(value):
        raise WrongError(tree.place, f"is {tree.text}", "write a whole number")
    if value < shape.least or (shape.open and value == shape.least):
        bound = f"more than {shape.least:g}" if shape.open else f"{shape.least:g} or more"
        raise WrongError(tree.place, f"is {tree.text[:40]}", f"it must be {bound}")
    if value > shape.most:
        raise WrongError(tree.place, f"is {tree.text[:40]}", f"it must be {shape.most:g} or less")
    return int(value) if shape.whole else float(value)


def _parsed(shape: Amount, tree: Scalar) -> float:
    if shape.unit == "s":
        return values.duration_s(tree.text)
    if shape.unit == "MB":
        return values.size_mb(tree.text)
    if shape.unit == "GB":
        return values.size_mb(tree.text, unit_mb=1024) / 1024
    if not tree.plain:
        raise values.AmountError("is text in quotes")
    return values.number(tree.text)


def _no_node(name: str) -> bool:
    """Return True if Slurm cannot have a node of this name: it reads two words as something else."""
    return bool(forms.wrong("name", name)) or name.upper() in ("ALL", "DEFAULT")


def hostlist(tree: Tree) -> tuple[str, ...]:
    """Expand a hostlist, or a list of them. Raises WrongError."""
    names: dict[str, None] = {}
    for text in tree.items if isinstance(tree, Listing) else (tree,):
        remedy = f"write {allowed(Hostlist())}"
        if not isinstance(text, Scalar):
            raise WrongError(text.place, f"has {kind(text)}", remedy)
        try:
            more = parse_hostlist(text.text, 2 * MOST_NAMES)
        except ValueError as error:
            raise WrongError(text.place, f"cannot be read: {error}", remedy) from error
        wrong = next((name for name in more if _no_node(name)), None)
        if wrong is not None:
            raise WrongError(text.place, f"has {quote(wrong)}, which is no name", remedy)
        twice = next((name for name in more if name in names), None)
        if twice is not None:
            raise WrongError(text.place, f"names {twice} twice", "name it once")
        names |= dict.fromkeys(more)
        if len(names) > MOST_NAMES:
            what = f"names more than {MOST_NAMES} nodes, which is more than Slurm can have"
            raise WrongError(text.place, what, "name fewer")
    if not names:
        raise WrongError(tree.place, "names no node", f"write {allowed(Hostlist())}")
    return tuple(names)


def _addresses(tree: Tree) -> tuple[str, ...] | addresses.Interface:
    if isinstance(tree, Scalar):
        return _address(tree)
    if not isinstance(tree, Listing):
        raise WrongError(tree.place, f"is {kind(tree)}", f"write {allowed(Addresses())}")
    found: dict[str, None] = {}
    for item in tree.items:
        address = str(_address(item))
        if address in found:
            raise WrongError(item.place, f"has {address} twice", "give every instance its own")
        found[address] = None
    return tuple(found)


def _address(tree: Tree) -> addresses.Interface:
    remedy = f"write {allowed(Addresses())}"
    if not isinstance(tree, Scalar):
        raise WrongError(tree.place, f"has {kind(tree)}", remedy)
    try:
        return addresses.read(tree.text)
    except addresses.AddressError as error:
        raise WrongError(tree.place, str(error), remedy) from error
