"""While an instance stands still Slurm must not find its node: nothing may wait for it there."""

from __future__ import annotations

from backfill.core.actions import SetAddress
from backfill.core.cluster import NOWHERE
from backfill.core.lifecycle import ManagedNode
from backfill.core.plan_builder import PlanBuilder, Progress


def hide(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Let whatever slurmctld sends to the node fail at once; whether this is the first try."""
    reason = "nothing shall wait for it while it stands still"
    action = SetAddress(node.name, node.generation, reason, NOWHERE)
    tried = builder.operation(action) is not None
    return builder.do(action) is Progress.BEGUN and not tried


def show(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether Slurm looks for the node where it is; where it does not, that is changed.

    It was hidden by us, or somebody or a reload gave it another address: Slurm would go on sending
    there, and jobs on the node would never end.
    """
    seen = builder.world.nodes.get(node.name)
    address = node.address.split("/")[0]
    if seen is None or seen.address in ("", address):  # empty: Slurm has not told
        return True
    builder.do(SetAddress(node.name, node.generation, "its instance can be reached", address))
    return False
