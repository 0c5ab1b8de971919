"""The managed file: our nodes and settings for slurm.conf, with a checksum against other hands."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.conf.site import Site
from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec

_TITLE = "# Made by backfill. Do not edit: `backfill slurm apply` writes it from the policy file.\n"
_SUM = re.compile(r"# checksum: ([0-9a-f]{64})\n")
_SECTION = re.compile(r"# section: ([a-z]+)$")
_PAIR = re.compile(r"([A-Za-z]+)=(\S*)")

CLOUD_SECTION = "cloud"
# INFINITE would switch power saving off altogether; nodes are put away by us, not for idling.
_NEVER_S = 365 * 86400
# A node that never exists. Slurm refuses a job at once whose constraint no node's line has.
FEATURES_NODE = "backfill-features"


class LineState(StrEnum):
    """The state that slurmctld gives to a node when it reads its line at its start.

    FUTURE keeps jobs away until the node has proven itself; a proven one must not be FUTURE, or a
    restart of slurmctld would take it away from its suspended job (measured on 22.05).
    """

    FUTURE = "FUTURE"
    UNKNOWN = "UNKNOWN"
    CLOUD = "CLOUD"


class ForeignEditError(ValueError):
    """The file is not as we wrote it; the message is one sentence without the file's name."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node as it stands in the file."""

    spec: NodeSpec
    state: LineState

    def text(self) -> str:
        """Write the line, without its end."""
        spec = self.spec
        features = f" Feature={','.join(spec.features)}" if spec.features else ""
        return (
            f"NodeName={spec.name} NodeAddr={spec.address} CPUs={spec.cpus} "
            f"RealMemory={spec.memory_mb}{features} State={self.state}"
        )


@dataclass(frozen=True, slots=True)
class Managed:
    """The file's content. `settings` are keys and values by the section that they belong to."""

    nodes: tuple[NodeLine, ...] = ()
    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    def node(self, name: str) -> NodeLine | None:
        """Find the line of this node."""
        return next((line for line in self.nodes if line.spec.name == name), None)

    def names(self) -> frozenset[str]:
        """All nodes that have a line."""
        return frozenset(line.spec.name for line in self.nodes)

    def with_nodes(self, *lines: NodeLine) -> Managed:
        """Add these lines, or put them in the place of those of the same names."""
        known = {line.spec.name: line for line in self.nodes}
        known |= {line.spec.name: line for line in lines}
        return replace(self, nodes=tuple(known.values()))

    def only_nodes(self, lines: tuple[NodeLine, ...]) -> Managed:
        """Keep the settings with exactly these lines."""
        return replace(self, nodes=lines)

    def section(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the settings of one section, empty where it is absent."""
        return dict(self.settings).get(name, ())

    def with_section(self, name: str, pairs: tuple[tuple[str, str], ...]) -> Managed:
        """Put this section in; without pairs, leave the section out."""
        sections = {**dict(self.settings), name: pairs}
        return replace(self, settings=tuple((n, p) for n, p in sections.items() if p))

    def pairs(self) -> list[tuple[str, str]]:
        """All settings of all sections."""
        return [pair for _, pairs in self.settings for pair in pairs]


EMPTY = Managed()


def render(managed: Managed) -> str:
    """Write the file's text."""
    body = "".join(f"{line.text()}\n" for line in managed.nodes)
    for name, pairs in managed.settings:
        body += f"# section: {name}\n" + "".join(f"{key}={value}\n" for key, value in pairs)
    return f"{_TITLE}# checksum: {_digest(body)}\n{body}"


def parse(text: str) -> Managed:
    """Read the content of a text that `render` made; ForeignEditError for any other text."""
    head, body = text[: len(_TITLE)], text[len(_TITLE) :]
    match = _SUM.match(body)
    if head != _TITLE or match is None:
        raise ForeignEditError("it was not written by backfill")
    body = body[match.end() :]
    if _digest(body) != match[1]:
        raise ForeignEditError("somebody else has changed it since backfill wrote it")
    managed, section = EMPTY, ""
    for line in body.splitlines():
        begins = _SECTION.match(line)
        if begins:
            section = begins[1]
        elif section:
            key, _, value = line.partition("=")
            managed = managed.with_section(section, (*managed.section(section), (key, value)))
        else:
            managed = replace(managed, nodes=(*managed.nodes, _node(line)))
    return managed


def _node(line: str) -> NodeLine:
    words = dict(_PAIR.findall(line))
    try:
        spec = NodeSpec(
            words["NodeName"],
            words["NodeAddr"],
            int(words["CPUs"]),
            int(words["RealMemory"]),
            tuple(filter(None, words.get("Feature", "").split(","))),
        )
        return NodeLine(spec, LineState(words["State"]))
    except (KeyError, ValueError) as error:
        raise ForeignEditError(f"the line {line!r} is of another release of backfill") from error


def salvage(text: str) -> Managed:
    """Read the lines that are still ours in a text that somebody else has changed."""
    managed = EMPTY
    for line in text.splitlines():
        if line.startswith("NodeName="):
            try:
                managed = managed.with_nodes(_node(line))
            except ForeignEditError:
                continue
    return managed


def named_in(text: str) -> frozenset[str]:
    """Every node that a text defines, whoever has written it."""
    found: set[str] = set()
    for word in re.findall(r"^\s*NodeName\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE):
        try:
            found.update(parse_hostlist(word))
        except ValueError:
            found.add(word)
    return frozenset(found)


def difference(old: str, new: str, name: str) -> str:
    """Return the change as a unified diff that can be printed; empty if nothing would change.

    The checksum is left out: it says nothing to a reader.
    """
    before, after = ([s for s in t.splitlines(keepends=True) if not _SUM.match(s)] for t in (old, new))
    diff = "".join(difflib.unified_diff(before, after, f"{name} (now)", f"{name} (new)", n=2))
    return diff.encode("utf-8", "backslashreplace").decode().replace("\r", "\\r")


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()


class Method(StrEnum):
    """The way in which our nodes come to be known to Slurm."""

    DYNAMIC = "dynamic"
    CONF = "conf"
    CLOUD = "cloud"


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """The nodes that `apply` is to bring about. `poke` is the program that Slurm calls for CLOUD nodes.

    `known_by` is a node of the shape of ours, which never comes, with all features that jobs may
    ask for before any node has them; None where there are none.
    """

    method: Method
    specs: Sequence[NodeSpec]
    poke: str
    boot_within_s: float
    known_by: NodeSpec | None = None

    def change(self, now: Managed, site: Site) -> Managed:
        """Return the file's next content. Nodes that stay keep what is known of their state."""
        specs = () if self.method is Method.DYNAMIC else self.specs
        fresh = LineState.CLOUD if self.method is Method.CLOUD else LineState.FUTURE
        lines = []
        for spec in specs:
            known = now.node(spec.name)
            if known is not None and self._lends(known.spec, spec):
                keeps = LineState.CLOUD not in (known.state, fresh)
                lines.append(known if keeps else NodeLine(known.spec, fresh))
            else:
                lines.append(NodeLine(spec, fresh))
        if self.known_by is not None:
            lines.append(NodeLine(self.known_by, LineState.FUTURE))
        made = now.only_nodes(tuple(lines))
        cloud = self._power_saving(site) if self.method is Method.CLOUD else ()
        return made.with_section(CLOUD_SECTION, cloud)

    def _lends(self, known: NodeSpec, spec: NodeSpec) -> bool:
        """Return True if it is this node, be it with more features that jobs may ask for."""
        more = set(self.known_by.features) if self.known_by is not None else set()
        same = replace(known, features=spec.features) == spec
        return same and set(spec.features) <= set(known.features) <= {*spec.features, *more}

    def _power_saving(self, site: Site) -> tuple[tuple[str, str], ...]:
        for key in ("ResumeProgram", "SuspendProgram"):
            for line, value in site.values(key):
                raise RefusedError(
                    line.place,
                    f"{key}={value} is the site's own power saving, which registration: cloud "
                    "would take over",
                    "use registration: conf or dynamic",
                )
        shown = [word for word in site.value("PrivateData").split(",") if word]
        return (
            ("ResumeProgram", self.poke),
            ("SuspendProgram", self.poke),
            ("SuspendTime", str(_NEVER_S)),
            ("SuspendTimeout", "1"),
            ("ResumeTimeout", str(int(self.boot_within_s) + 60)),
            # Slurm hides nodes that are powered down, and we have to see ours.
            ("PrivateData", ",".join(dict.fromkeys([*shown, "cloud"]))),
        )
