"""The three ways in which a node of ours comes to be known to Slurm: dynamic, conf and cloud."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from backfill.core.model.cluster import OUR_REASON, Node, NodeBase
from backfill.core.model.quantities import fold_hostlist
from backfill.drivers.slurm.checks import difference, is_dynamic
from backfill.drivers.slurm.conf.managed import FEATURES_NODE
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from backfill.ports.workload import NodeSpec

_LOG = logging.getLogger("backfill.slurm")
# Nodes that never come, see `Dynamic.announce`.
ROOM_NODE = "backfill-room"
_LOOK_BEYOND = 64
UNPROVEN = f"{OUR_REASON} not proven yet"
_NEVER = f"{OUR_REASON} this node never comes"

_Wish = TypeVar("_Wish")
# How a piece of work went for each wish of it, by its place: None where it went well.
Ends = Mapping[int, DriverError | None]


class NodeTools(Protocol):
    """The calls of the driver that a way of registering needs."""

    def raw_node(self, name: str) -> Node | None:
        """Read the node as Slurm shows it, nothing hidden."""

    def raw_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Those of these nodes that Slurm has, as it shows them."""

    def scontrol(self, subject: str, *argv: str) -> None:
        """Run scontrol."""

    def set_drain(self, name: str, reason: str) -> None:
        """Drain, whatever the node's state; also several, by a hostlist."""

    def busy(self, names: Sequence[str]) -> Mapping[str, BusyError]:
        """Those of these nodes that a job holds, each with what is to be said."""


class Registration(Protocol):
    """One way. All calls are idempotent and raise DriverError only."""

    def create(self, tools: NodeTools, spec: NodeSpec) -> None:
        """Make the node known and drained. The specification has been checked."""

    def delete(self, tools: NodeTools, name: str) -> None:
        """Take away a node that no job holds, or put it where no job can reach it.

        BusyError while a job holds it, RefusedError where it is not ours; gone already: fine.
        """

    def proven(self, name: str) -> None:
        """Note that the node is about to be opened to jobs for the first time."""

    def view(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """Show the nodes as the engine is to see them: what is put away is absent."""


@dataclass(eq=False, slots=True)
class _Ticket(Generic[_Wish]):
    """A wish that waits for its turn, and how that ended."""

    wish: _Wish
    done: bool = False
    error: DriverError | None = None


class Together(Generic[_Wish]):
    """Whoever comes first carries out what all who wait by then want; nobody waits for more."""

    def __init__(self) -> None:
        self._waiting: list[_Ticket[_Wish]] = []
        self._list_lock = threading.Lock()
        self._turn = threading.Lock()

    def want(self, wish: _Wish, work: Callable[[Sequence[_Wish]], Ends]) -> None:
        """Have the wish carried out by `work`, mine or another's; raises its DriverError.

        What else `work` raises is for whoever called it; the others hear that they may try again.
        """
        ticket = _Ticket(wish)
        with self._list_lock:
            self._waiting.append(ticket)
        with self._turn:
            if not ticket.done:
                self._carry_out(work)
        if ticket.error is not None:
            raise ticket.error

    def _carry_out(self, work: Callable[[Sequence[_Wish]], Ends]) -> None:
        with self._list_lock:
            batch, self._waiting = self._waiting, []
        ends: Ends = {}
        try:
            ends = work([ticket.wish for ticket in batch])
        except DriverError as error:
            ends = dict.fromkeys(range(len(batch)), error)
        except BaseException as error:
            broken_off = DriverError("Slurm", f"the combined request to Slurm failed: {error}")
            ends = dict.fromkeys(range(len(batch)), broken_off)
            raise
        finally:
            for place, ticket in enumerate(batch):
                ticket.done, ticket.error = True, ends.get(place)


class Dynamic:
    """Added while slurmctld runs, by `scontrol create`; slurmd registers with -Z.

    Nothing is written anywhere. It needs MaxNodeCount and select/cons_tres. Nodes that are wanted
    at the same time are made by one command where they are alike, and those that are to go at the
    same time by one; where that fails, one by one, so that each gets an answer of its own.
    """

    def __init__(self) -> None:
        self._together: Together[NodeSpec] = Together()
        self._leaving: Together[str] = Together()

    def create(self, tools: NodeTools, spec: NodeSpec) -> None:
        """Make it FUTURE: Slurm hides an unregistered CLOUD node, yet gives it jobs at once."""
        self._together.want(spec, lambda specs: self._create_all(tools, specs))

    def _create_all(self, tools: NodeTools, specs: Sequence[NodeSpec]) -> Ends:
        names = [spec.name for spec in specs]
        known = tools.raw_nodes(names)
        missing = [spec for spec in specs if spec.name not in known]
        refused = _make(tools, missing)
        if missing:
            # 22.05 reports success also when it has made nothing.
            known = tools.raw_nodes(names)
        ends: dict[int, DriverError | None] = {}
        for place, spec in enumerate(specs):
            wrong = _objection(known, spec)
            ends[place] = refused.get(spec.name, wrong) if wrong is not None else None
        fresh = [
            n
            for n in (known[s.name] for i, s in enumerate(specs) if ends[i] is None)
            if n.slurmd_start_s == 0 and not n.drained
        ]
        if fresh:
            tools.set_drain(",".join(node.name for node in fresh), UNPROVEN)
        return ends

    def announce(self, tools: NodeTools, specs: Sequence[NodeSpec]) -> list[str]:
        """Let Slurm know what could be there, by nodes that never come; what could not be done.

        24.11 refuses a job at once that no node of its partition could run, also where there is
        none at all yet. FUTURE nodes count. What was announced before for wider jobs goes. What
        somebody has woken is made anew: it is up for Slurm, and a job that got it would never start.
        """
        known = tools.raw_nodes([spec.name for spec in specs])
        woken = [name for name, node in known.items() if node.base is not NodeBase.FUTURE]
        if woken:
            _LOG.warning("%s: nodes that never come were woken; they are made anew", fold_hostlist(woken))
            # Slurm takes back what it has sent there, which no slurmd has heard of.
            listed = ",".join(woken)
            tools.scontrol(listed, "update", f"NodeName={listed}", "State=DOWN", f"Reason={_NEVER}")
        old = [s.name for s in specs if s.name in known and difference(known[s.name], s)]
        gone = list(dict.fromkeys([*woken, *old]))
        refused = _delete(tools, [*gone, *_beyond(tools, len(specs))])
        made = [s for s in specs if s.name not in known or s.name in {*gone} - refused.keys()]
        refused |= _make(tools, made)
        return [
            f"Slurm may refuse jobs while it has no node of ours that could run them: {error}"
            for error in refused.values()
        ]

    def delete(self, tools: NodeTools, name: str) -> None:
        """`scontrol delete`; only what was added."""
        self._leaving.want(name, lambda names: self._delete_all(tools, names))

    def _delete_all(self, tools: NodeTools, names: Sequence[str]) -> Ends:
        known = tools.raw_nodes(names)
        # 22.05 would obey and lose a node of slurm.conf until its next restart.
        errors: dict[str, DriverError] = {
            name: RefusedError(name, "it is a node of slurm.conf, not one that was added")
            for name, node in known.items()
            if not is_dynamic(node)
        }
        # 22.05 crashes when a node is deleted under a suspended job.
        errors |= tools.busy([name for name in known if name not in errors])
        errors |= _delete(tools, [name for name in known if name not in errors])
        return {place: errors.get(name) for place, name in enumerate(names)}

    def proven(self, name: str) -> None:
        """Nothing is written anywhere."""

    def view(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """As they are, without those that never come."""
        return {name: node for name, node in nodes.items() if not never_comes(name)}


def _beyond(tools: NodeTools, count: int) -> list[str]:
    """Announced nodes with higher numbers than this; there are no gaps between numbers."""
    found: list[str] = []
    while True:
        first = count + len(found) + 1
        names = [f"{ROOM_NODE}-{i}" for i in range(first, first + _LOOK_BEYOND)]
        there = tools.raw_nodes(names)
        found += there
        if len(there) < _LOOK_BEYOND:
            return found


def never_comes(name: str) -> bool:
    """Return True if it only makes something known, such as features."""
    return name == FEATURES_NODE or name.startswith(f"{ROOM_NODE}-")


def _make(tools: NodeTools, specs: Sequence[NodeSpec]) -> dict[str, DriverError]:
    """Make all of them, those that are alike by one command; what was refused, by name."""
    alike: dict[NodeSpec, list[NodeSpec]] = {}
    for spec in dict.fromkeys(specs):
        alike.setdefault(replace(spec, name="", address=""), []).append(spec)
    refused: dict[str, DriverError] = {}
    for group in alike.values():
        try:
            _make_alike(tools, group)
        except UnreachableError:
            raise
        except DriverError as error:
            if len(group) == 1:
                refused[group[0].name] = error
                continue
            _LOG.warning("Slurm does not make %d nodes at once (%s); trying one by one", len(group), error)
            made = tools.raw_nodes([spec.name for spec in group])
            for spec in group:
                refused |= _make(tools, [] if spec.name in made else [spec])
    return refused


def _make_alike(tools: NodeTools, specs: Sequence[NodeSpec]) -> None:
    first = specs[0]
    names = ",".join(spec.name for spec in specs)
    addresses = ",".join(spec.address for spec in specs)
    tools.scontrol(
        names,
        "create",
        f"NodeName={names}",
        f"NodeAddr={addresses}",
        f"CPUs={first.cpus}",
        f"RealMemory={first.memory_mb}",
        "State=FUTURE",
        *([f"Feature={','.join(first.features)}"] if first.features else []),
    )


def _delete(tools: NodeTools, names: Sequence[str]) -> dict[str, DriverError]:
    """Delete all of them by one command; what was refused, by name."""
    if not names:
        return {}
    listed = fold_hostlist(names)
    try:
        tools.scontrol(listed, "delete", f"NodeName={listed}")
    except UnreachableError:
        raise
    except DriverError as error:
        if len(names) == 1:
            return {} if isinstance(error, NotFoundError) else {names[0]: error}
        _LOG.warning("Slurm does not delete %d nodes at once (%s); trying one by one", len(names), error)
        refused: dict[str, DriverError] = {}
        for name in tools.raw_nodes(names):
            refused |= _delete(tools, [name])
        return refused
    return {}


def _objection(known: Mapping[str, Node], spec: NodeSpec) -> DriverError | None:
    """Return the error of a node that is not as it should be in Slurm."""
    node = known.get(spec.name)
    if node is None:
        return NoCapacityError(spec.name, "Slurm did not add the node", "raise MaxNodeCount in slurm.conf")
    differs = difference(node, spec)
    if differs:
        return AlreadyThereError(
            spec.name, f"Slurm has another node of this name ({differs})", "choose another"
        )
    return None
