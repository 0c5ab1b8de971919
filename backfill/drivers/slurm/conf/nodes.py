"""Registration by lines of the managed file: `conf` and `cloud`. Nodes are vacant, not removed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill.core.model.cluster import OUR_REASON, Node, NodeBase
from backfill.core.model.quantities import fold_hostlist
from backfill.drivers.slurm.checks import mismatch
from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.managed import LineState, Managed, NodeLine, named_in, salvage
from backfill.drivers.slurm.conf.transaction import NotTakenError, Transactions
from backfill.drivers.slurm.registration import UNPROVEN, Ends, NodeTools, Together, never_comes
from backfill.ports.errors import AlreadyThereError, BusyError, DriverError, RefusedError
from backfill.ports.workload import NodeSpec

VACANT = f"{OUR_REASON} parked"
_FORGOTTEN = f"{OUR_REASON} (slurmctld forgot why)"


@dataclass
class Lines:
    """The lines of the managed file; many that are wanted at once become one transaction."""

    transactions: Transactions
    _together: Together[NodeLine] = field(default_factory=Together)

    def names(self) -> frozenset[str]:
        """Every node of the file, also of one that somebody else has changed."""
        return named_in(read_or_empty(self.transactions.place.managed))

    def want(self, line: NodeLine) -> None:
        """Have this line in the file and read by Slurm."""
        self._together.want(line, self._add)

    def _add(self, lines: Sequence[NodeLine]) -> Ends:
        # A line that is made from a checked specification needs no dry start. But what the site has
        # changed meanwhile slurmctld would read with it, and could end.
        new = self.transactions.is_site_new()
        try:
            self.transactions.apply(lambda managed: managed.with_nodes(*lines), dry=new)
        except NotTakenError as error:  # by the site's own line: whoever edits it goes on
            remedy = "correct slurm.conf, or say `backfill slurm apply --no-dry-start` if slurmctld takes it"
            raise BusyError(error.subject, error.problem, remedy) from error
        return {}

    def set_state(self, names: Sequence[str], state: LineState) -> None:
        """Set the state of the nodes for slurmctld's next start; it is not told now."""
        # Also in a file with others' hands in it: a node that returns must not wait for that.
        managed = salvage(read_or_empty(self.transactions.place.managed))
        if _other_state(managed, names, state):
            self.transactions.note_states(lambda now: now.with_nodes(*_other_state(now, names, state)))

    def set_features(self, spec: NodeSpec) -> None:
        """Set its features for slurmctld's next start; it is not told now."""
        if _other_features(salvage(read_or_empty(self.transactions.place.managed)), spec):
            self.transactions.note_states(lambda now: now.with_nodes(*_other_features(now, spec)))


def _other_state(managed: Managed, names: Sequence[str], state: LineState) -> list[NodeLine]:
    """Give this state to the lines of those of these nodes that have another."""
    lines = [line for name in names if (line := managed.node(name)) is not None]
    return [NodeLine(line.spec, state) for line in lines if line.state is not state]


def _other_features(managed: Managed, spec: NodeSpec) -> list[NodeLine]:
    """Give these features to the node's line, if it has others."""
    line = managed.node(spec.name)
    if line is None or line.spec.features == spec.features:
        return []
    return [replace(line, spec=replace(line.spec, features=spec.features))]


class ConfNodes:
    """A line of the managed file and a reload. A node that is not needed is FUTURE and drained."""

    fresh = LineState.FUTURE
    open = LineState.UNKNOWN

    def __init__(self, transactions: Transactions) -> None:
        self._lines = Lines(transactions)
        self._leaving: Together[str] = Together()

    def create(self, tools: NodeTools, spec: NodeSpec) -> None:
        """Only a line that is missing or of an earlier shape costs a transaction.

        What a node offers may be something else each time it is made: that is told by the way.
        """
        known = tools.raw_node(spec.name)
        line = self._lines.transactions.current().node(spec.name)
        if known is not None and line is None:
            raise AlreadyThereError(
                spec.name, "Slurm has another node of this name (not of our file)", "choose another"
            )
        if known is not None and not self._asleep(known):
            differs = mismatch(known, replace(spec, features=known.features))
            if differs:
                raise AlreadyThereError(
                    spec.name, f"Slurm has another node of this name ({differs})", "choose another"
                )
        if line is None or replace(line.spec, features=spec.features) != spec:
            self._lines.want(NodeLine(spec, self.fresh))
            known = tools.raw_node(spec.name)
        if known is None or self._asleep(known):
            if known is not None and known.address != spec.address:
                # It was put away while it was hidden at another address.
                address = f"NodeAddr={spec.address}"
                tools.scontrol(spec.name, "update", f"NodeName={spec.name}", address)
            self._fetch(tools, spec.name, known)
        if known is not None and sorted(known.features) != sorted(spec.features):
            told = ",".join(spec.features)
            both = (f"AvailableFeatures={told}", f"ActiveFeatures={told}")
            tools.scontrol(spec.name, "update", f"NodeName={spec.name}", *both)
        with contextlib.suppress(RefusedError):  # others' hands in the file: until the next start
            self._lines.set_features(spec)

    def _fetch(self, tools: NodeTools, name: str, known: Node | None) -> None:
        """From vacant to waiting for its slurmd."""
        tools.set_drain(name, UNPROVEN)

    def delete(self, tools: NodeTools, name: str) -> None:
        """Leave it vacant: its line stays, so that nothing has to be reloaded."""
        self._leaving.want(name, lambda names: self._park_all(tools, names))

    def _park_all(self, tools: NodeTools, names: Sequence[str]) -> Ends:
        known, ours = tools.raw_nodes(names), self._lines.names()
        errors: dict[str, DriverError] = {
            name: RefusedError(name, "it is a node of slurm.conf, not one of our own file")
            for name in known
            if name not in ours
        }
        used = [node for node in known.values() if node.name in ours and not self.vacant(node)]
        errors |= tools.busy([node.name for node in used])
        errors |= self._put_away(tools, [node for node in used if node.name not in errors])
        away = [node.name for node in used if node.name not in errors]
        with contextlib.suppress(RefusedError):  # others' hands in the file; drained it is safe
            self._lines.set_state(away, self.fresh)
        return {place: errors.get(name) for place, name in enumerate(names)}

    def _put_away(self, tools: NodeTools, nodes: Sequence[Node]) -> Mapping[str, DriverError]:
        """By one command for all; those that must wait, by name."""
        _put_to_sleep(tools, [node.name for node in nodes if node.base is not NodeBase.FUTURE])
        if nodes:
            tools.set_drain(fold_hostlist(node.name for node in nodes), VACANT)
        return {}

    def proven(self, name: str) -> None:
        """From now on a restart of slurmctld must not hide it from its jobs."""
        self._lines.set_state([name], self.open)

    def vacant(self, node: Node) -> bool:
        """Return True if it is defined, but not in use, and out of reach for jobs."""
        by_us = node.drained and node.reason.startswith(VACANT)
        return by_us or (node.base is NodeBase.FUTURE and not node.drained)

    def _asleep(self, node: Node) -> bool:
        """Not called for, vacant or not."""
        return self.vacant(node)

    def view(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """Vacant ones are absent; a drain whose reason slurmctld forgot is ours."""
        ours = self._lines.names()
        shown = {}
        for name, node in nodes.items():
            if name not in ours:
                shown[name] = node
            elif not self.vacant(node):
                forgot = node.drained and not node.reason
                shown[name] = replace(node, reason=_FORGOTTEN) if forgot else node
                if self._awaited(node):  # what it shows is from its last life
                    shown[name] = replace(shown[name], slurmd_start_s=0.0, boot_time_s=0.0)
        return shown

    def _awaited(self, node: Node) -> bool:
        """Return True if it is called for, and its slurmd has not registered yet."""
        return node.base is NodeBase.FUTURE


def _put_to_sleep(tools: NodeTools, names: Sequence[str]) -> None:
    """FUTURE, by one command; refused for one that slurmctld has not met since its start."""
    if not names:
        return
    listed = fold_hostlist(names)
    try:
        tools.scontrol(listed, "update", f"NodeName={listed}", "State=FUTURE")
    except RefusedError:  # drained it is safe, too
        for name in names if len(names) > 1 else ():
            _put_to_sleep(tools, [name])


class CloudNodes(ConfNodes):
    """Predefined State=CLOUD nodes that Slurm's power saving knows.

    Slurm gives jobs to a powered-down CLOUD node at once and boots it for them, unproven. So only
    we power ours up, once, and one that is not in use is DOWN: powering it down would lift its
    drain, and takes Slurm ten seconds and more (measured on 22.05).
    """

    fresh = LineState.CLOUD
    open = LineState.CLOUD

    def _fetch(self, tools: NodeTools, name: str, known: Node | None) -> None:
        flags = known.flags if known is not None else frozenset()
        if flags & {"POWERING_DOWN", "POWER_DOWN"}:
            raise BusyError(name, "somebody is powering it down")
        # A drain may be lifted by Slurm's own changes of power; DOWN lasts until it registers.
        tools.scontrol(name, "update", f"NodeName={name}", "State=DOWN", f"Reason={UNPROVEN}")
        tools.set_drain(name, UNPROVEN)
        if "POWERED_DOWN" in flags:
            tools.scontrol(name, "update", f"NodeName={name}", "State=POWER_UP")

    def _put_away(self, tools: NodeTools, nodes: Sequence[Node]) -> Mapping[str, DriverError]:
        # Slurm forgets the reason when it comes to it, and with it that the node is vacant.
        waiting = {
            node.name: BusyError(node.name, "Slurm is about to power it up")
            for node in nodes
            if "POWER_UP" in node.flags
        }
        listed = fold_hostlist(node.name for node in nodes if node.name not in waiting)
        if listed:
            tools.set_drain(listed, VACANT)
            down = ("State=DOWN", f"Reason={VACANT}")
            tools.scontrol(listed, "update", f"NodeName={listed}", *down)
        return waiting

    def vacant(self, node: Node) -> bool:
        """DOWN or drained by us, because it is not in use."""
        if never_comes(node.name):
            return True
        return node.reason.startswith(VACANT) and (node.drained or node.base is NodeBase.DOWN)

    def _asleep(self, node: Node) -> bool:
        # Slurm has just read its line, and nobody has called for it yet.
        new = "POWERED_DOWN" in node.flags and not node.drained
        return self.vacant(node) or new

    def _awaited(self, node: Node) -> bool:
        return node.base is NodeBase.DOWN

    def secure(self, tools: NodeTools, nodes: Mapping[str, Node]) -> list[str]:
        """Put every node of ours that jobs could power up out of their reach; their names.

        A new line is open at first, and so are all when slurmctld has lost its state.
        """
        names = self._lines.names()
        found = [n.name for n in nodes.values() if n.name in names and self._open_to_jobs(n)]
        for name in found:
            down = ("State=DOWN", f"Reason={VACANT}")
            tools.scontrol(name, "update", f"NodeName={name}", *down)
        return found

    def _open_to_jobs(self, node: Node) -> bool:
        asleep = bool(node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
        return asleep and not node.drained and node.base is not NodeBase.DOWN
