"""A checkpoint back in its place: all instances of the job at rest, then all replaced, then on."""

from __future__ import annotations

from backfill.core.actions import PutBackCheckpoint
from backfill.core.condemn import condemn
from backfill.core.draft import Draft, Progress
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import Cause, ManagedNode, Phase
from backfill.core.steps.to_disk import keep_checkpoint, suspend

# Once a fellow has been replaced it is tried so often before the job is given up here.
_TRIES = 5


def step_ordered(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Drive one stopped node a step further for which a checkpoint was ordered, or ordered back."""
    if node.restoring:
        put_back(draft, node, instance)
    else:
        keep_checkpoint(draft, node, instance)


def put_back(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Drive one stopped node whose job is to go on from a checkpoint.

    No instance is replaced before all of the order are at rest, and none goes on before all are
    replaced: old and new states of one job never meet.
    """
    members = [draft.world.managed.get(name) for name in node.checkpoint_of]
    fellows = [m for m in members if m is not None and m.checkpoint == node.checkpoint]
    if len(fellows) < len(node.checkpoint_of):
        _without_all(draft, node, fellows)
        return
    if all(m.put_back for m in fellows):
        draft.note(node, f"checkpoint {node.checkpoint} is in place", **_OVER)
        return
    if instance.state is InstanceState.PAUSED:
        _to_rest(draft, node)
    elif not node.put_back and all(_at_rest(draft, m) for m in fellows):
        _replace(draft, node, fellows)


_OVER: dict[str, object] = {"checkpoint": "", "checkpoint_of": (), "restoring": False, "put_back": False}


def _without_all(draft: Draft, node: ManagedNode, fellows: list[ManagedNode]) -> None:
    """A fellow has left the order: because all are in place, or because it came to nothing."""
    if draft.busy_with(node):
        return  # what becomes of it now decides
    if node.put_back and all(m.put_back for m in fellows):
        draft.note(node, f"checkpoint {node.checkpoint} is in place", **_OVER)
    else:
        _give_up(draft, node, "another instance of the job has left the order")


def _at_rest(draft: Draft, node: ManagedNode) -> bool:
    instance = draft.instance(node)
    saved = instance is not None and instance.state is InstanceState.SUSPENDED
    return saved and node.phase is Phase.DISPLACED


def _to_rest(draft: Draft, node: ManagedNode) -> None:
    reason = f"checkpoint {node.checkpoint} takes its place"
    if suspend(draft, node, reason) is Progress.FINAL:
        _give_up(draft, node, "its memory could not be written")


def _replace(draft: Draft, node: ManagedNode, fellows: list[ManagedNode]) -> None:
    reason = f"checkpoint {node.checkpoint} was ordered back"
    action = PutBackCheckpoint(node.name, node.generation, node.host, node.checkpoint, reason)
    operation = draft.operation(action)
    if operation is not None and operation.problem and not operation.running:
        others = [m for m in fellows if m.name != node.name]
        untouched = not any(m.put_back or draft.busy_with(m) for m in others)
        if untouched or operation.final or operation.attempts >= _TRIES:
            _give_up(draft, node, operation.problem)
            return
    draft.do(action)


def _give_up(draft: Draft, node: ManagedNode, why: str) -> None:
    """An instance that has the old state goes on with it; one that was replaced never does."""
    if node.put_back:
        condemn(draft, node, Cause.HALF, f"half a checkpoint is none: {why}", fail=True)
    else:
        draft.note(node, f"checkpoint {node.checkpoint} is not put back: {why}", **_OVER)
