"""Walks the file's tree along the shapes: values where all is well, problems where it is not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any

from backfill.config import addresses, forms, leaves
from backfill.config.phrases import allowed
from backfill.config.problems import Place, Problem, quote
from backfill.config.shapes import Hostlist, Key, Many, Maybe, Named, Section, Shape, Text
from backfill.config.tree import Entries, Listing, Scalar, Tree
from backfill.core.policy import Template

MAX_PROBLEMS = 100
_MOST_NAMES = 5 * leaves.MOST_NAMES  # a name is one of ours, of an image and of a network at most
BAD = object()  # stands for a value that could not be read; its problem is already noted
_WORD = re.compile(r"[A-Za-z0-9_-]{1,60}")
_LAST_STEP = re.compile(r"(\.[^.\[\]]*|\[[^\[\]]*\]|^[^.\[\]]*)$")


class Reader:
    """Collects the problems of one file, and where each key stands."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.places: dict[str, Place] = {}
        self._names_left = _MOST_NAMES
        self._whole = Section(dict, ())  # what the file may have at all

    @property
    def full(self) -> bool:
        """Return True if no further problem would be kept: reading on is of no use."""
        return len(self.problems) >= MAX_PROBLEMS

    def note(self, place: Place | None, path: str, what: str, remedy: str = "") -> object:
        """Note a problem; without a place, at the nearest key that has one. Returns BAD."""
        spot = place or self._nearest(path)
        if not self.full:
            self.problems.append(Problem(self.file, spot.line, spot.column, path, what, remedy))
        return BAD

    def _nearest(self, path: str) -> Place:
        while path and path not in self.places:
            shorter = _LAST_STEP.sub("", path)
            path = shorter if shorter != path else ""
        return self.places.get(path, Place(1, 1))

    def read(self, shape: Shape, tree: Tree, path: str) -> Any:
        """Return the value of `tree`, or BAD."""
        self.places.setdefault(path, tree.place)
        if self.full:
            return BAD
        if leaves.is_null(tree):
            if isinstance(shape, Maybe):
                return None
            return self.note(tree.place, path, "has no value", f"write {allowed(shape)}")
        match shape:
            case Maybe():
                return self.read(shape.item, tree, path)
            case Section():
                return self._section(shape, tree, path)
            case Many():
                return self._many(shape, tree, path)
            case Named():
                return self._named(shape, tree, path)
            case _:
                return self._leaf(shape, tree, path)

    def _leaf(self, shape: Shape, tree: Tree, path: str) -> Any:
        try:
            return self._hostlist(tree) if isinstance(shape, Hostlist) else leaves.read(shape, tree)
        except leaves.WrongError as wrong:
            return self.note(wrong.place, path, wrong.what, wrong.remedy)

    def _hostlist(self, tree: Tree) -> tuple[str, ...]:
        """Expand one. A few characters stand for many names, so those of the whole file are limited."""
        if self._names_left <= 0:
            what = f"comes after hostlists with {_MOST_NAMES} names or mistakes in them"
            raise leaves.WrongError(tree.place, what, "correct those, or name fewer")
        cost = leaves.MOST_NAMES  # of one that cannot be read
        try:
            names = leaves.hostlist(tree)
            cost = len(names)
        finally:
            self._names_left -= cost
        return names

    def _wrong_kind(self, shape: Shape, tree: Tree, path: str) -> object:
        given = tree.text[:60] if isinstance(tree, Scalar) else ""
        remedy = f"write {allowed(shape, given)}"
        return self.note(tree.place, path, f"is {leaves.kind(tree)}", remedy)

    def _section(self, shape: Section, tree: Tree, path: str) -> Any:
        if shape.listed and isinstance(tree, Listing):
            items = self.read(shape.keys[0].shape, tree, path)
            return BAD if items is BAD else shape.make(**{shape.listed: items})
        if not isinstance(tree, Entries):
            return self._wrong_kind(shape, tree, path)
        found = self.keys(shape, tree, path)
        if BAD in found.values():
            return BAD
        if shape.make is Template and not self._pair(found, path):
            return BAD
        return shape.make(**found)

    def keys(self, shape: Section, tree: Entries, path: str) -> dict[str, Any]:
        """Return the values of a section's keys; what is absent, unknown or wrong is BAD."""
        if not path:
            self._whole = shape
        known = {key.name: key for key in shape.keys}
        given = {name.text for name, _ in tree.pairs}
        found: dict[str, Any] = {}
        meant: set[str] = set()
        for name, value in tree.pairs:
            if name.text not in known:
                meant.add(self._unknown(shape, name, path, given))
                continue
            inner = join(path, name.text)
            self.places[inner] = name.place
            found[name.text] = self._value(known[name.text], value, inner)
        for key in shape.keys:
            if key.required and key.name not in found | dict.fromkeys(meant):
                what, remedy = "is missing", f"add it: {allowed(key.shape)}"
                self.note(tree.place, join(path, key.name), what, remedy)
                found[key.name] = BAD
        return found | dict.fromkeys(meant, BAD)

    def _value(self, key: Key, tree: Tree, path: str) -> Any:
        if key.required or not leaves.is_null(tree) or isinstance(key.shape, Maybe):
            return self.read(key.shape, tree, path)
        remedy = f"write {allowed(key.shape)}, or leave it out"
        return self.note(tree.place, path, "has no value", remedy)

    def _unknown(self, shape: Section, name: Scalar, path: str, given: Collection[str]) -> str:
        """Note an unknown key; returns the key that was probably meant, or an empty text."""
        if self.full:
            return ""
        known = [key.name for key in shape.keys]
        near = difflib.get_close_matches(name.text[:80], known, 1)
        elsewhere = [inner for inner, key in walk(self._whole, "") if key.name == name.text]
        hint = ""
        if near and near[0] not in given:
            hint = f"did you mean {near[0]}? "
        elif elsewhere:  # such as a key that should be indented below its section
            hint = f"did you mean {elsewhere[0]}? "
        elif near:
            hint = f"did you mean {near[0]}, which is there already? "
        remedy = f"{hint}known keys here: {', '.join(known)}"
        self.note(name.place, join(path, name.text), "is not a known key", remedy)
        return near[0] if near else ""

    def _many(self, shape: Many, tree: Tree, path: str) -> Any:
        if not isinstance(tree, Listing):
            return self._wrong_kind(shape, tree, path)
        found: list[Any] = []
        texts = set[str]()
        for index, item in enumerate(tree.items):
            inner = f"{path}[{index}]"
            value = self.read(shape.item, item, inner)
            if isinstance(shape.item, Text) and value is not BAD:
                if value in texts:
                    value = self.note(item.place, inner, f"repeats {quote(value)}", "name it once")
                else:
                    texts.add(value)
            found.append(value)
        return BAD if BAD in found else tuple(found)

    def _named(self, shape: Named, tree: Tree, path: str) -> Any:
        if not isinstance(tree, Entries):
            return self._wrong_kind(shape, tree, path)
        found: dict[str, Any] = {}
        for name, value in tree.pairs:
            inner = join(path, name.text)
            self.places[inner] = name.place
            found[name.text] = self.read(shape.item, value, inner)
            if forms.wrong("name", name.text):
                remedy = f"use {forms.ALLOWED['name']}"
                found[name.text] = self.note(name.place, inner, "is not a name", remedy)
        return BAD if BAD in found.values() else found

    def _pair(self, found: dict[str, Any], path: str) -> bool:
        """Give every name of the instances its address; False after a problem."""
        names, given = found["names"], found["addresses"]
        inner = join(path, "addresses")
        if isinstance(given, tuple):
            if len(given) == len(names):
                return True
            what = f"has {len(given)} addresses for {len(names)} names"
            self.note(None, inner, what, "give as many, or only the first to count upwards from")
            return False
        try:
            found["addresses"] = addresses.count_up(given, names)
        except addresses.AddressError as error:
            self.note(None, inner, str(error), "begin lower, or use a larger network")
            return False
        return True


def join(path: str, name: str) -> str:
    """Return the path of a key below `path`; an odd name is shown in quotes."""
    shown = name if _WORD.fullmatch(name) else quote(name)
    return f"{path}.{shown}" if path else shown


def walk(shape: Shape, path: str) -> Iterator[tuple[str, Key]]:
    """All keys below `path` with their paths, depth first; `[]` stands for any item."""
    match shape:
        case Section():
            for key in shape.keys:
                inner = path
                if key.name != shape.listed:
                    inner = join(path, key.name)
                    yield inner, key
                yield from walk(key.shape, inner)
        case Many():
            yield from walk(shape.item, f"{path}[]")
        case Named():
            yield from walk(shape.item, f"{path}.<name>")
        case Maybe():
            yield from walk(shape.item, path)
        case _:
            pass
