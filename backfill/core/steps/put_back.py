"""A checkpoint back in its place: all instances of the job at rest, then all replaced, then on."""

from __future__ import annotations

from backfill.core.actions import PutBackCheckpoint
from backfill.core.condemn import condemn
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import Cause, CheckpointOrder, ManagedNode, Phase
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.steps.to_disk import keep_checkpoint, suspend

# Once a fellow has been replaced it is tried so often before the job is given up here.
_TRIES = 5


def step_ordered(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, instance: Instance) -> None:
    """Drive one stopped node a step further for which a checkpoint was ordered, or ordered back."""
    if order.restoring:
        put_back(builder, node, order, instance)
    else:
        keep_checkpoint(builder, node, order, instance)


def put_back(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, instance: Instance) -> None:
    """Drive one stopped node whose job is to go on from a checkpoint.

    No instance is replaced before all of the order are at rest, and none goes on before all are
    replaced: old and new states of one job never meet.
    """
    members = [builder.world.managed.get(name) for name in order.members]
    fellows = [m for m in members if m is not None and m.order is not None and m.order.id == order.id]
    if len(fellows) < len(order.members):
        _without_all(builder, node, order, fellows)
        return
    if all(_in_place(m) for m in fellows):
        builder.note(node, f"checkpoint {order.id} is in place", order=None)
        return
    if instance.state is InstanceState.PAUSED:
        _to_rest(builder, node, order)
    elif builder.busy_with(node):
        return  # it is seen on disk before the call that wrote it is back, which keeps it until then
    elif not order.put_back and all(_at_rest(builder, m) for m in fellows):
        _replace(builder, node, order, fellows)


def _in_place(node: ManagedNode) -> bool:
    return node.order is not None and node.order.put_back


def _without_all(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, fellows: list[ManagedNode]
) -> None:
    """A fellow has left the order: because all are in place, or because it came to nothing."""
    if builder.busy_with(node):
        return  # what becomes of it now decides
    if order.put_back and all(_in_place(m) for m in fellows):
        builder.note(node, f"checkpoint {order.id} is in place", order=None)
    else:
        _give_up(builder, node, order, "another instance of the job has left the order")


def _at_rest(builder: PlanBuilder, node: ManagedNode) -> bool:
    instance = builder.instance(node)
    saved = instance is not None and instance.state is InstanceState.SUSPENDED
    return saved and node.phase is Phase.PARKED


def _to_rest(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder) -> None:
    reason = f"checkpoint {order.id} takes its place"
    if suspend(builder, node, reason) is Progress.FINAL:
        _give_up(builder, node, order, "its memory could not be written")


def _replace(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, fellows: list[ManagedNode]
) -> None:
    reason = f"checkpoint {order.id} was ordered back"
    action = PutBackCheckpoint(node.name, node.generation, reason, node.host, order.id)
    operation = builder.operation(action)
    if operation is not None and operation.problem and not operation.running:
        others = [m for m in fellows if m.name != node.name]
        untouched = not any(_in_place(m) or builder.busy_with(m) for m in others)
        if untouched or operation.final or operation.attempts >= _TRIES:
            _give_up(builder, node, order, operation.problem)
            return
    builder.do(action)


def _give_up(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, why: str) -> None:
    """An instance that has the old state goes on with it; one that was replaced never does."""
    if order.put_back:
        condemn(builder, node, Cause.HALF, f"half a checkpoint is none: {why}", fail=True)
    else:
        builder.note(node, f"checkpoint {order.id} is not put back: {why}", order=None)
