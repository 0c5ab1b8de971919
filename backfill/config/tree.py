"""YAML text -> a small tree that knows the place of everything, without YAML's hidden doors.

Anchors and aliases are understood. Tags, merge keys, duplicate keys and anchors, and several
documents in one file are refused: they change what a line means at another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import yaml

from backfill.config.problems import Place, quote

MAX_DEPTH = 16
MAX_NODES = 100_000
_SIMPLER = "a policy file is simpler than that"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value as written; `plain` tells that it stood there without quotes."""

    place: Place
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """A YAML sequence."""

    place: Place
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """A YAML mapping, each key once."""

    place: Place
    pairs: tuple[tuple[Scalar, Tree], ...]


Tree = Scalar | Listing | Entries


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is wrong at a place, whatever the file is about."""

    place: Place
    what: str
    remedy: str = ""


class _HopelessError(Exception):
    """Reading cannot go on after this flaw."""

    def __init__(self, flaw: Flaw) -> None:
        self.flaw = flaw
        super().__init__(flaw.what)


def parse(text: str) -> tuple[Tree | None, list[Flaw]]:
    """Read one document. With a flaw that stops reading, or with no document, the tree is None."""
    composer = _Composer(text)
    try:
        tree = composer.document()
    except _HopelessError as error:
        return None, [*composer.flaws, error.flaw]
    return tree, composer.flaws


class _Composer:
    """Turns PyYAML's events into a tree; its own composer forgets aliases and allows loops."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._loader: yaml.SafeLoader | None = None
        self._anchors: dict[str, tuple[Tree, int]] = {}  # and of how many values each is
        self._left = MAX_NODES
        self.flaws: list[Flaw] = []

    def document(self) -> Tree | None:
        self._event()  # the stream's start
        event = self._event()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        tree = self._node(self._event(), 0)
        self._event()  # the document's end
        event = self._event()
        if not isinstance(event, yaml.StreamEndEvent):
            what = "a second YAML document begins"
            self.flaws.append(Flaw(_place(event), what, "a policy file is one document"))
        return tree

    def _event(self) -> yaml.Event:
        try:
            if self._loader is None:
                self._loader = yaml.SafeLoader(self._text)
            return cast("yaml.Event", self._loader.get_event())  # type: ignore[no-untyped-call]
        except yaml.reader.ReaderError as error:
            raise _HopelessError(_unprintable(self._text, error.position)) from error
        except yaml.MarkedYAMLError as error:
            raise _HopelessError(_syntax(self._text, error)) from error
        except (ValueError, OverflowError) as error:  # an escape or a version beyond all limits
            what = "this is not valid YAML: a number is too large"
            raise _HopelessError(Flaw(self._here(), what)) from error

    def _here(self) -> Place:
        """Return the place that reading has come to."""
        if self._loader is None:
            return Place(1, 1)
        return Place(self._loader.line + 1, self._loader.column + 1)

    def _node(self, event: yaml.Event, depth: int) -> Tree:
        place = _place(event)
        left = self._left
        self._spend(1, place)
        if depth > MAX_DEPTH:
            raise _HopelessError(Flaw(place, "the file is nested too deeply", _SIMPLER))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            what = f"a value has the tag {quote(event.tag)}"
            self.flaws.append(Flaw(place, what, "write the plain value, in quotes if it is text"))
        tree: Tree
        if isinstance(event, yaml.ScalarEvent):
            tree = Scalar(place, event.value, plain=event.style is None)
        elif isinstance(event, yaml.SequenceStartEvent):
            tree = self._listing(place, depth)
        else:
            tree = self._entries(place, depth)
        self._remember(event, place, tree, left - self._left)
        return tree

    def _spend(self, values: int, place: Place) -> None:
        """Count what a reader of the tree will meet, wherever it is written."""
        self._left -= values
        if self._left < 0:
            what = f"the file has over {MAX_NODES} values, each alias counted as what it stands for"
            raise _HopelessError(Flaw(place, what, _SIMPLER))

    def _remember(self, event: yaml.NodeEvent, place: Place, tree: Tree, values: int) -> None:
        if event.anchor is None:
            return
        if event.anchor in self._anchors:
            what = f"the anchor {quote('&' + event.anchor)} is used a second time"
            self.flaws.append(Flaw(place, what, "give every anchor a name of its own"))
        self._anchors[event.anchor] = (tree, values)

    def _alias(self, event: yaml.AliasEvent, place: Place) -> Tree:
        name = event.anchor or ""
        known = self._anchors.get(name)
        if known is None:
            what = f"the alias {quote('*' + name)} names no anchor that stands before it"
            raise _HopelessError(Flaw(place, what, "define it above, or put the text in quotes"))
        tree, values = known
        self._spend(values - 1, place)
        return tree

    def _listing(self, place: Place, depth: int) -> Listing:
        items = []
        while not isinstance(event := self._event(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return Listing(place, tuple(items))

    def _entries(self, place: Place, depth: int) -> Entries:
        pairs: dict[str, tuple[Scalar, Tree]] = {}
        while not isinstance(event := self._event(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(self._event(), depth + 1)
            if not isinstance(key, Scalar):
                self.flaws.append(Flaw(_place(event), "there is a list or a section where a key must stand"))
            elif key.plain and key.text == "<<":
                what = "is a merge key, which hides where a value comes from"
                self.flaws.append(Flaw(key.place, f"<< {what}", "write the keys out"))
            elif key.text in pairs:
                what = f"the key {quote(key.text)} was already given"
                first = pairs[key.text][0].place.line
                self.flaws.append(Flaw(key.place, f"{what} in line {first}", "keep one of them"))
            else:
                pairs[key.text] = (key, value)
        return Entries(place, tuple(pairs.values()))


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)


def _place_of_index(text: str, index: int) -> Place:
    before = text[:index]
    return Place(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def _unprintable(text: str, index: int) -> Flaw:
    what = f"there is the character U+{ord(text[index]):04X}, which YAML does not allow"
    return Flaw(_place_of_index(text, index), what, "remove it")


def _syntax(text: str, error: yaml.MarkedYAMLError) -> Flaw:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Flaw(Place(1, 1), f"this is not valid YAML: {error.problem}")
    place = Place(mark.line + 1, mark.column + 1)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent or line[mark.column : mark.column + 1] == "\t":
        return Flaw(place, "there is a tab here", "YAML wants spaces")
    context = f" {error.context}" if error.context else ""
    what = f"this is not valid YAML: {error.problem}{context}"
    return Flaw(place, what, "check indents, colons and quotes here and in the lines above")
