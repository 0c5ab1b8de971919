"""A checkpoint back in its place: all instances of the job at rest, then all replaced, then on."""

from __future__ import annotations

from backfill.core.actions import PutBackCheckpoint
from backfill.core.condemn import condemn
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import Cause, ManagedNode, Phase
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.steps.to_disk import keep_checkpoint, suspend

# Once a fellow has been replaced it is tried so often before the job is given up here.
_TRIES = 5


def step_ordered(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Drive one stopped node a step further for which a checkpoint was ordered, or ordered back."""
    if node.restoring:
        put_back(builder, node, instance)
    else:
        keep_checkpoint(builder, node, instance)


def put_back(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Drive one stopped node whose job is to go on from a checkpoint.

    No instance is replaced before all of the order are at rest, and none goes on before all are
    replaced: old and new states of one job never meet.
    """
    members = [builder.world.managed.get(name) for name in node.checkpoint_of]
    fellows = [m for m in members if m is not None and m.checkpoint == node.checkpoint]
    if len(fellows) < len(node.checkpoint_of):
        _without_all(builder, node, fellows)
        return
    if all(m.put_back for m in fellows):
        builder.note(node, f"checkpoint {node.checkpoint} is in place", **_OVER)
        return
    if instance.state is InstanceState.PAUSED:
        _to_rest(builder, node)
    elif not node.put_back and all(_at_rest(builder, m) for m in fellows):
        _replace(builder, node, fellows)


_OVER: dict[str, object] = {"checkpoint": "", "checkpoint_of": (), "restoring": False, "put_back": False}


def _without_all(builder: PlanBuilder, node: ManagedNode, fellows: list[ManagedNode]) -> None:
    """A fellow has left the order: because all are in place, or because it came to nothing."""
    if builder.busy_with(node):
        return  # what becomes of it now decides
    if node.put_back and all(m.put_back for m in fellows):
        builder.note(node, f"checkpoint {node.checkpoint} is in place", **_OVER)
    else:
        _give_up(builder, node, "another instance of the job has left the order")


def _at_rest(builder: PlanBuilder, node: ManagedNode) -> bool:
    instance = builder.instance(node)
    saved = instance is not None and instance.state is InstanceState.SUSPENDED
    return saved and node.phase is Phase.PARKED


def _to_rest(builder: PlanBuilder, node: ManagedNode) -> None:
    reason = f"checkpoint {node.checkpoint} takes its place"
    if suspend(builder, node, reason) is Progress.FINAL:
        _give_up(builder, node, "its memory could not be written")


def _replace(builder: PlanBuilder, node: ManagedNode, fellows: list[ManagedNode]) -> None:
    reason = f"checkpoint {node.checkpoint} was ordered back"
    action = PutBackCheckpoint(node.name, node.generation, node.host, node.checkpoint, reason)
    operation = builder.operation(action)
    if operation is not None and operation.problem and not operation.running:
        others = [m for m in fellows if m.name != node.name]
        untouched = not any(m.put_back or builder.busy_with(m) for m in others)
        if untouched or operation.final or operation.attempts >= _TRIES:
            _give_up(builder, node, operation.problem)
            return
    builder.do(action)


def _give_up(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    """An instance that has the old state goes on with it; one that was replaced never does."""
    if node.put_back:
        condemn(builder, node, Cause.HALF, f"half a checkpoint is none: {why}", fail=True)
    else:
        builder.note(node, f"checkpoint {node.checkpoint} is not put back: {why}", **_OVER)
