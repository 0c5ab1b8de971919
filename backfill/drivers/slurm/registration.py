"""The three ways in which a node of ours comes to be known to Slurm: dynamic, conf and cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from backfill.core.cluster import OUR_REASON, Node
from backfill.drivers.slurm.checks import difference, is_dynamic
from backfill.ports import AlreadyThereError, NoCapacityError, NodeSpec, NotFoundError, RefusedError

UNPROVEN = f"{OUR_REASON} not proven yet"


class NodeTools(Protocol):
    """What a way of registering needs of the driver."""

    def raw_node(self, name: str) -> Node | None:
        """The node as Slurm shows it, nothing hidden."""

    def scontrol(self, subject: str, *argv: str) -> None:
        """Run scontrol."""

    def set_drain(self, name: str, reason: str) -> None:
        """Drain, whatever the node's state."""

    def assert_free(self, name: str) -> None:
        """Raise BusyError while a job holds the node."""


class Registration(Protocol):
    """One way. All calls are idempotent and raise DriverError only."""

    def create(self, tools: NodeTools, spec: NodeSpec) -> None:
        """Make the node known and drained. The specification has been checked."""

    def delete(self, tools: NodeTools, node: Node) -> None:
        """Take away a node that no job holds, or put it where no job can reach it."""

    def proven(self, name: str) -> None:
        """The node is about to be opened to jobs for the first time."""

    def view(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The nodes as the engine is to see them: what is put away is absent."""


class Dynamic:
    """Added while slurmctld runs, by `scontrol create`; slurmd registers with -Z.

    Nothing is written anywhere. It needs MaxNodeCount and select/cons_tres.
    """

    def create(self, tools: NodeTools, spec: NodeSpec) -> None:
        """It is made FUTURE: Slurm hides an unregistered CLOUD node, yet gives it jobs at once."""
        known = tools.raw_node(spec.name)
        if known is None:
            tools.scontrol(
                spec.name, "create", f"NodeName={spec.name}", f"NodeAddr={spec.address}",
                f"CPUs={spec.cpus}", f"RealMemory={spec.memory_mb}", "State=FUTURE",
                *([f"Feature={','.join(spec.features)}"] if spec.features else []),
            )  # fmt: skip
            # 22.05 reports success also when it has made nothing.
            known = tools.raw_node(spec.name)
            if known is None:
                raise NoCapacityError(
                    spec.name, "Slurm did not add the node", "raise MaxNodeCount in slurm.conf"
                )
        differs = difference(known, spec)
        if differs:
            raise AlreadyThereError(
                spec.name, f"Slurm has another node of this name ({differs})", "choose another"
            )
        if known.slurmd_start_s == 0 and not known.drained:
            tools.set_drain(spec.name, UNPROVEN)

    def delete(self, tools: NodeTools, node: Node) -> None:
        """`scontrol delete`; only what was added."""
        if not is_dynamic(node):
            # 22.05 would obey and lose a node of slurm.conf until its next restart.
            raise RefusedError(node.name, "it is a node of slurm.conf, not one that was added")
        # 22.05 crashes when a node is deleted under a suspended job.
        tools.assert_free(node.name)
        try:
            tools.scontrol(node.name, "delete", f"NodeName={node.name}")
        except NotFoundError:
            return

    def proven(self, name: str) -> None:
        """Nothing is written anywhere."""

    def view(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """As they are."""
        return dict(nodes)
