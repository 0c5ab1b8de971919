"""Where an instance may move now: what has room, and where a move of it has not just failed."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.actions import MigrateInstance
from backfill.core.model.lifecycle import ManagedNode
from backfill.core.model.operations import Operation
from backfill.core.model.refusals import Reason, call_failed, no_host
from backfill.core.placement import find_host
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import unplaced
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.room import need_of


@dataclass(frozen=True, slots=True)
class NoMove:
    """Why it cannot move now. `again`: a host has room, and a move there that failed is tried again soon."""

    why: Reason
    again: bool = False


def whereto(builder: PlanBuilder, node: ManagedNode) -> str | NoMove:
    """Return a host to which the node can move now: it has room, and no move there has just failed."""
    full, need = builder.budget_full(), need_of(builder.world, builder.policies, node)
    builder.awaits(Topic.ROOM)
    failed: list[Operation] = []

    def fails(host: str) -> Reason | None:
        operation = _failed_move(builder, node, host)
        if operation is None:
            return None
        failed.append(operation)
        return call_failed(operation.problem)

    target, why_not = find_host(
        builder.world,
        builder.policies,
        builder.policies.gaps.return_pays_s,
        skip=node.host,
        need=need,
        slow=fails,
    )
    full = full or unplaced(builder)
    if full is not None:
        return NoMove(full)
    if target is not None:
        return target
    if not failed:
        return NoMove(no_host(why_not.values()))
    soon = [operation for operation in failed if not operation.final]
    return NoMove(call_failed((soon or failed)[0].problem), again=bool(soon))


def _failed_move(builder: PlanBuilder, node: ManagedNode, host: str) -> Operation | None:
    """Return the move to a host that failed before, if it is not to be tried again now."""
    operation = builder.operation(
        MigrateInstance(subject=node.name, generation=node.generation, reason="", host=node.host, target=host)
    )
    if operation is None or not (operation.final or builder.now_s < operation.not_before_s):
        return None
    builder.wake_at(operation.not_before_s)
    return operation
