"""Reads slurm.conf as the site has written it, with what it includes; changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backfill.core.model.quantities import parse_hostlist

_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\"[^\"]*\"|\S*)")
_DEEPEST = 10


class SiteError(ValueError):
    """slurm.conf cannot be used so; the message is one sentence with place and remedy."""


class UnreadableSiteError(SiteError):
    """slurm.conf, or what it includes, cannot be read: nobody knows what it says."""


@dataclass(frozen=True, slots=True)
class ConfLine:
    """One logical line (continuations joined), without comments; it stands from line `number` to `last`."""

    file: Path
    number: int
    text: str
    last: int

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.number}"

    def value(self, key: str) -> str | None:
        """Return the value that the line gives to this key, the last one; None: it gives none."""
        found = [v.strip('"') for k, v in _PAIR.findall(self.text) if k.casefold() == key.casefold()]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Site:
    """All lines in the order in which Slurm reads them; those of `managed` are not among them.

    `include` is the line that brings the managed file in, `before` how many lines stand before it.
    """

    conf: Path
    lines: tuple[ConfLine, ...]
    include: ConfLine | None = None
    before: int = 0

    def values(self, key: str) -> list[tuple[ConfLine, str]]:
        """Every value that the site gives to this key, in order."""
        return [(line, value) for line in self.lines if (value := line.value(key)) is not None]

    def value(self, key: str) -> str:
        """Return the value that counts, the last one; empty when the site gives none."""
        return ([""] + [value for _, value in self.values(key)])[-1]

    def overrides(self, key: str) -> ConfLine | None:
        """Find the site's line behind ours that would take a key out of our hands."""
        later = {line.place for line in self.lines[self.before :]}
        return next((line for line, _ in self.values(key) if line.place in later), None)

    def partition(self, name: str) -> tuple[ConfLine, tuple[str, ...]] | None:
        """Find a partition's line, and the words of its Nodes, which may be a DEFAULT line's before it."""
        found = self.partition_values("Nodes").get(name)
        return (found[0], tuple(_split(found[1]))) if found is not None else None

    def partition_values(self, key: str) -> dict[str, tuple[ConfLine, str]]:
        """Every partition with its line, and its value for a key, which may be a DEFAULT line's before it.

        Of several lines the last one counts.
        """
        inherited, found = "", {}
        for line, name in self.values("PartitionName"):
            said = line.value(key) or inherited
            if name.casefold() == "default":
                inherited = said
            else:
                found[name] = line, said
        return found

    def nodes(self) -> dict[str, ConfLine]:
        """Every node name of the site with its line; what cannot be read is skipped."""
        return {name: line for line, text in self.values("NodeName") for name in _expand(text)}

    def addresses(self) -> dict[str, ConfLine]:
        """Every node address of the site, as written, with its line."""
        return {a: line for line, text in self.values("NodeAddr") for a in _expand(text)}


def read_site(conf: Path, managed: Path, text: str | None = None) -> Site:
    """Read slurm.conf and its includes. SiteError where one cannot be read.

    `text`: what slurm.conf would hold instead of what it holds.
    """
    lines: list[ConfLine] = []
    includes: list[tuple[ConfLine, int]] = []
    for line, file in _ConfReader(managed).walk(conf, text):
        if file is None:
            lines.append(line)
        else:
            includes.append((line, len(lines)))
    if len(includes) > 1:
        first, second = includes[0][0], includes[1][0]
        raise SiteError(f"{second.place}: includes {managed.name}, as {first.place} already does")
    if not includes:
        return Site(conf, tuple(lines))
    return Site(conf, tuple(lines), *includes[0])


def has_all(nodes: Sequence[str]) -> bool:
    """Return True for ALL, which stands alone and means dynamic nodes as well, whenever they come.

    slurmctld/read_config.c, nodespec_to_hostlist: a partition's nodes are found anew with each new node.
    """
    return [word.casefold() for word in nodes] == ["all"]


def inlined(conf: Path, managed: Path, text: str, main: str | None = None) -> str:
    """Write the whole configuration as one text, with `text` in the place of the managed file.

    `main`: what slurm.conf would hold instead of what it holds.
    """
    out = []
    for line, file in _ConfReader(managed).walk(conf, main):
        out.append(line.text + "\n" if file is None else text)
    return "".join(out)


class _ConfReader:
    """Follows slurm.conf through what it includes, in the order in which Slurm reads it."""

    def __init__(self, managed: Path) -> None:
        self._managed = managed
        self._cluster = ""  # ClusterName, once it was read

    def walk(
        self, file: Path, text: str | None = None, depth: int = 0
    ) -> Iterator[tuple[ConfLine, Path | None]]:
        """Yield each line, and with the line that includes the managed file that file."""
        if depth > _DEEPEST:
            raise SiteError(f"{file}: includes itself")
        for line in _logical(file, _read(file) if text is None else text):
            match = _INCLUDE.match(line.text)
            if match is None:
                self._cluster = line.value("ClusterName") or self._cluster
                yield line, None
                continue
            # Slurm takes a relative name from the directory of slurm.conf, and %c is the cluster's name.
            target = self._managed.parent / match[1].replace("%c", self._cluster.lower())
            if target == self._managed:
                yield line, target
            else:
                yield from self.walk(target, depth=depth + 1)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UnreadableSiteError(
            f"{file}: cannot be read ({error.strerror}); correct slurm.conf in the policy file, or "
            "run as a user who may read it"
        ) from error


def _logical(file: Path, text: str) -> Iterator[ConfLine]:
    """Lines without comments and blanks, those that end with a backslash joined to the next.

    As Slurm's parser does it: nothing comes in the place of the backslash, so that a word goes on.
    """
    pending, start = "", 0
    for number, raw in enumerate(text.split("\n"), 1):
        start = start if pending else number
        part = re.sub(r"(?<!\\)#.*", "", raw).rstrip()
        if len(part) - len(part.rstrip("\\")) & 1:
            pending += part[:-1]
            continue
        whole, pending = pending + part, ""
        if whole.strip():
            yield ConfLine(file, start, whole, number)


def _split(nodes: str) -> list[str]:
    """Blanks between quotes are commas to Slurm; within brackets they are none of ours."""
    return re.findall(r"(?:\[[^\]]*\]|[^,\s\[])+", nodes)


def _expand(text: str) -> tuple[str, ...]:
    try:
        return parse_hostlist(text)
    except ValueError:
        return (text,)
