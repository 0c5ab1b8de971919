"""Checkpoints of a job as one: all of its instances are kept or none, and all go on from one or none.

A job on several nodes is a web of connections. Its parts fit together only when none of them has run
between the first stop and the last: so all stand still before the first is saved, and none goes on
before the last is kept. Likewise none is replaced before all are at rest, and none goes on before all
are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backfill.core.model.actions import KeepCheckpoint, PutBackCheckpoint
from backfill.core.model.fence import judge
from backfill.core.model.fleet import STILL, Checkpoint, Instance, InstanceState
from backfill.core.model.lifecycle import ABSENT, Cause, CheckpointOrder, ManagedNode, Phase, SavedRun
from backfill.core.model.operations import Operation
from backfill.core.model.refusals import Code, Goal, because, call_failed, no_host
from backfill.core.model.sentences import sentence
from backfill.core.placement import find_host
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import unplaced
from backfill.core.reconcile.builder import PlanBuilder, Progress, failed_suspends, kept_in_memory, suspend
from backfill.core.reconcile.condemn import condemn, forget_lost, work_on
from backfill.core.room import need_of

# So many tries to write memory before all go on without it.
_TRIES = 5
# So often in a row a checkpoint has to be found of no use before a job that needs it starts over.
_READINGS = 3
# Of what is left of a job's patience a checkpoint may use so much: the way back takes its time, too.
_OF_PATIENCE = 0.5


def step_ordered(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> None:
    """Drive one stopped node a step further for which a checkpoint was ordered, or ordered back."""
    order = node.order
    assert order is not None
    fellows = fellows_of(builder, order)
    if len(fellows) < len(order.members):
        _without_all(builder, node, order, fellows)
    elif order.restoring:
        _put_back(builder, node, order, fellows, instance)
    elif instance is not None:
        _keep(builder, node, order, fellows, instance)


def fellows_of(builder: PlanBuilder, order: CheckpointOrder) -> list[ManagedNode]:
    """All nodes that are still under this order."""
    members = (builder.world.managed.get(name) for name in order.members)
    return [m for m in members if m is not None and m.order is not None and m.order.id == order.id]


def _without_all(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, fellows: list[ManagedNode]
) -> None:
    """Deal with a node of the order that is being removed: its job starts over, or has ended.

    Who has the new state waits for Slurm's word about that, which then ends it, too.
    """
    if builder.world.busy(node.name):
        return  # what becomes of it now decides
    missing = [builder.world.managed.get(name) for name in order.members]
    alive = all(m is not None and m.phase not in ABSENT for m in missing)
    if order.put_back and alive:
        builder.note(node, f"checkpoint {order.id} is in place", order=None)
    elif not order.put_back:
        _leave(builder, fellows, f"no checkpoint {order.id}: another instance of the job has left the order")


def _leave(builder: PlanBuilder, fellows: Sequence[ManagedNode], why: str) -> None:
    """End the order for all of its nodes in the same step; they go on as they are."""
    for one in fellows:
        builder.note(one, why, order=None)


# --- making one ----------------------------------------------------------------------------------


def _keep(
    builder: PlanBuilder,
    node: ManagedNode,
    order: CheckpointOrder,
    fellows: list[ManagedNode],
    instance: Instance,
) -> None:
    """All stand still, then all go to disk, then all are kept, and then all go on."""
    if all(_is_kept(one) for one in fellows):
        _all_kept(builder, order, fellows)
        return
    bar = _too_late(builder, node, fellows) or _shared(builder, fellows)
    if bar:
        _leave(builder, fellows, f"no checkpoint {order.id}: {bar}")
    elif order.kept or not all(_stands_still(builder, one) for one in fellows):
        return
    elif instance.state is InstanceState.PAUSED:
        progress = suspend(builder, node, f"for checkpoint {order.id}")
        if progress is Progress.FINAL or _tried_on(builder, node, progress):
            kept = kept_in_memory(instance)
            why = sentence(kept) if kept else _unwritten(node)
            _leave(builder, fellows, f"no checkpoint {order.id}: {why}")
    elif not builder.world.busy(
        node.name
    ):  # seen on disk before the call that wrote it is back, which keeps it
        _keep_here(builder, node, order, fellows)


def _tried_on(builder: PlanBuilder, node: ManagedNode, progress: Progress) -> bool:
    """Return True if writing its memory failed so often that the job waits for it no longer."""
    return progress is Progress.WAITING and failed_suspends(builder, node) >= _TRIES


def _unwritten(node: ManagedNode) -> str:
    return f"the memory of {node.name} could not be written"


def _is_kept(node: ManagedNode) -> bool:
    return node.order is not None and node.order.kept


def _all_kept(builder: PlanBuilder, order: CheckpointOrder, fellows: Sequence[ManagedNode]) -> None:
    held = judge(fellows[0].name, fellows[0].held, builder.world.jobs).keep
    for one in fellows:
        saved = SavedRun(order.id, held[0].id, held[0].restarts, order.members) if len(held) == 1 else None
        builder.note(one, f"checkpoint {order.id} is kept", order=None, saved=saved)


def _too_late(builder: PlanBuilder, node: ManagedNode, fellows: Sequence[ManagedNode]) -> str | None:
    """Say why the job stands still for longer than it may for a checkpoint, if it does."""
    ordered_s = node.since_s if node.ordered_s is None else node.ordered_s
    window_s = _window_s(builder, node)
    drained = [s for m in fellows if (s := m.stopping.drained_s) is not None]
    late_s = max(drained, default=ordered_s) - ordered_s
    stopped = all(_stands_still(builder, m) for m in fellows)
    if late_s > window_s or (not stopped and builder.now_s >= ordered_s + window_s):
        return f"its nodes did not all stop within {window_s:g} s"
    if not stopped:
        builder.wake_at(ordered_s + window_s)
    for held in node.held:
        if held.patience is not None:
            over_s = held.patience.since_s + _OF_PATIENCE * held.patience.left_s
            builder.wake_at(over_s)
            if builder.now_s >= over_s:
                return f"job {held.id} would stand still for longer than it can"
    return None


def _shared(builder: PlanBuilder, fellows: Sequence[ManagedNode]) -> str | None:
    """Say which node more than one job has to be kept on, if there is one: an order is for one job.

    Another one may begin there until the node is closed.
    """
    for one in fellows:
        held = judge(one.name, one.held, builder.world.jobs).keep
        if len(held) > 1:
            return f"jobs {', '.join(job.id for job in held)} are on {one.name} together"
    return None


def _window_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """How far apart the stops of its job's nodes may be: as its workload says, or the policy."""
    jobs = [builder.world.jobs[held.id] for held in node.held if held.id in builder.world.jobs]
    found = builder.policies.workloads.shortest(jobs)
    skew_s = None if found is None else found.terms.skew_s
    return builder.policies.checkpoints.window_s if skew_s is None else skew_s


def _stands_still(builder: PlanBuilder, node: ManagedNode) -> bool:
    instance = builder.instance(node)
    still = instance is not None and instance.state in STILL
    return still and node.phase is Phase.PARKED


def _keep_here(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, fellows: Sequence[ManagedNode]
) -> None:
    held, policies = judge(node.name, node.held, builder.world.jobs).keep[0], builder.policies
    wanted = Checkpoint(
        id=order.id,
        name=node.name,
        job=held.id,
        restarts=held.restarts,
        generation=node.generation,
        host=node.host,
        members=tuple(sorted(order.members)),
        created_s=float(builder.now_s),
        expires_s=builder.now_s + policies.saving.kept_s(order.id, policies.checkpoints.keep_s),
    )
    reason, quota_mb = f"checkpoint {order.id} was ordered", policies.checkpoints.quota_mb
    action = KeepCheckpoint(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        host=node.host,
        wanted=wanted,
        quota_mb=quota_mb,
    )
    operation = builder.operation(action)
    if operation is not None and operation.problem and not operation.running:
        _leave(builder, fellows, f"no checkpoint {order.id}: {operation.problem}")
    else:
        builder.do(action)


# --- going on from one ---------------------------------------------------------------------------


def _put_back(
    builder: PlanBuilder,
    node: ManagedNode,
    order: CheckpointOrder,
    fellows: list[ManagedNode],
    instance: Instance | None,
) -> None:
    """Old and new states of one job never meet: where not all can be replaced it starts over."""
    if order.failed:
        condemn(builder, node, Cause.HALF, f"half a checkpoint is none: {order.failed}", fail=True)
    elif all(_in_place(one) for one in fellows):
        for one in fellows:
            builder.note(one, f"checkpoint {order.id} is in place", order=None)
    elif instance is not None and instance.state is InstanceState.PAUSED:
        reason = f"checkpoint {order.id} takes its place"
        progress = suspend(builder, node, reason)
        # Where they cannot all go on as they were, a disk that fails is no reason to start over.
        in_vain = _tried_on(builder, node, progress) and _intact(builder, fellows)
        if in_vain or progress is Progress.FINAL:
            _fail(builder, order, fellows, _unwritten(node))
    elif builder.world.busy(node.name):
        # It is seen on disk before the call that wrote it is back, which keeps it until then; and what a
        # call that failed has left is seen later.
        _say_failure(builder, node, order)
    elif not order.put_back and all(_at_rest(builder, one) for one in fellows):
        _replace(builder, node, order, fellows)


def _in_place(node: ManagedNode) -> bool:
    return node.order is not None and node.order.put_back


def _at_rest(builder: PlanBuilder, node: ManagedNode) -> bool:
    if node.phase is not Phase.PARKED:
        return False
    instance = builder.instance(node)
    suspended = instance is not None and instance.state is InstanceState.SUSPENDED
    return suspended or awaits_state(builder, node)


def awaits_state(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its instance has no state, and is to have a checkpoint's.

    It is to come into being on another host, or a call that was to give it that state was cut off in
    the middle.
    """
    instance = builder.instance(node)
    if instance is None:
        return _placed_anew(node)
    return _awaits_checkpoint(node) and instance.state in (InstanceState.OFF, InstanceState.CRASHED)


def _placed_anew(node: ManagedNode) -> bool:
    """Return True if its instance is to come into being by a checkpoint, on another host than before."""
    return _awaits_checkpoint(node) and node.left not in ("", node.host)


def _awaits_checkpoint(node: ManagedNode) -> bool:
    return node.order is not None and node.order.restoring and not node.order.put_back


def _replace(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, fellows: Sequence[ManagedNode]
) -> None:
    shared = _shared(builder, fellows)
    if shared:
        _fail(builder, order, fellows, shared)
        return
    action = _put_back_of(node, order)
    operation = builder.operation(action)
    failed = operation is not None and operation.problem and not operation.running
    if operation is not None and failed and _give_up(builder, operation, fellows):
        _fail(builder, order, fellows, operation.problem)
    else:
        builder.insist(action, Goal.CHECKPOINT)


def _put_back_of(node: ManagedNode, order: CheckpointOrder) -> PutBackCheckpoint:
    reason = f"checkpoint {order.id} was ordered back"
    return PutBackCheckpoint(
        subject=node.name, generation=node.generation, reason=reason, host=node.host, id=order.id
    )


def _say_failure(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder) -> None:
    """Say why it was not put back by the last try, while its host is asked what that has left."""
    operation = builder.operation(_put_back_of(node, order))
    if operation is not None and operation.problem and not operation.running:
        builder.refuse(node.name, Goal.CHECKPOINT, call_failed(operation.problem))


def _give_up(builder: PlanBuilder, failed: Operation, fellows: Sequence[ManagedNode]) -> bool:
    """Return True if it is tried no more: all can go on as they were, or it is of no use for good.

    That a service is out is no reason to start over.
    """
    return _intact(builder, fellows) or failed.finals >= _READINGS


def _fail(builder: PlanBuilder, order: CheckpointOrder, fellows: Sequence[ManagedNode], why: str) -> None:
    """Give up putting it back: where no part has it yet all go on as they were, else the job starts over.

    A part that was lost with its host has no state to go on with.
    """
    if _untouched(builder, fellows):
        _leave(builder, fellows, f"checkpoint {order.id} is not put back: {why}")
        return
    for one in fellows:
        assert one.order is not None
        builder.note(
            one, f"checkpoint {order.id} cannot be put back: {why}", order=replace(one.order, failed=why)
        )


def _untouched(builder: PlanBuilder, fellows: Sequence[ManagedNode]) -> bool:
    """Return True if none has been replaced, nor was lost with its host."""
    lost = any(_placed_anew(one) or builder.world.lost(one.host) for one in fellows)
    return not lost and not any(_in_place(one) or builder.world.busy(one.name) for one in fellows)


def _intact(builder: PlanBuilder, fellows: Sequence[ManagedNode]) -> bool:
    """Return True if all can go on as they were."""
    return _untouched(builder, fellows) and not any(awaits_state(builder, one) for one in fellows)


# --- a host that is off for good -------------------------------------------------------------------


def order_back(builder: PlanBuilder, node: ManagedNode) -> Progress:
    """Order the last whole checkpoint of a lost node's job back, on all of the job's nodes.

    FINAL: there is none of this very run, or not all of its nodes can go on from it.
    """
    saved, world = node.saved, builder.world
    if node.order is not None and not node.order.restoring:
        fellows = fellows_of(builder, node.order)
        _leave(builder, fellows, f"no checkpoint {node.order.id}: {node.host} is off for good")
        return Progress.BEGUN
    if saved is None or not builder.policies.checkpoints.go_on or not _holds_that_run(builder, node, saved):
        return Progress.FINAL
    members = [m for name in saved.members if (m := world.managed.get(name)) is not None]
    same = [m for m in members if m.saved == saved and m.phase not in ABSENT]
    if len(same) < len(saved.members):
        return Progress.FINAL
    busy = [
        m.name for m in same if m.order is not None or m.phase is Phase.MOVING or builder.world.busy(m.name)
    ]
    if busy:
        builder.refuse(node.name, Goal.CHECKPOINT, because(Code.JOB_WAITS, job=saved.job, nodes=tuple(busy)))
        return Progress.WAITING
    order = CheckpointOrder(saved.id, saved.members, restoring=True)
    for one in same:
        reason = f"checkpoint {saved.id} is put back: {node.host} is off for good"
        builder.note(one, reason, order=order, ordered_s=builder.now_s)
    return Progress.BEGUN


def _holds_that_run(builder: PlanBuilder, node: ManagedNode, saved: SavedRun) -> bool:
    """Return True if Slurm holds the kept run of the job on these nodes, and no other job on the node."""
    job = builder.world.jobs.get(saved.job)
    if job is None or not job.active or job.restarts != saved.restarts:
        return False
    alone = all(held.id == saved.job for held in work_on(builder, node))
    return alone and set(job.nodes) == set(saved.members)


def lost_order(builder: PlanBuilder, node: ManagedNode) -> str | None:
    """Say why the order that a lost node is under can come to nothing any more, if it cannot."""
    order = node.order
    assert order is not None
    if len(fellows_of(builder, order)) < len(order.members):
        return "another instance of the job has left the order"
    if order.put_back:
        return "it was lost once more"
    return order.failed or None


def place_elsewhere(builder: PlanBuilder, node: ManagedNode) -> None:
    """Forget what a lost node has on its host, and choose another one for it."""
    world, old = builder.world, node.host
    if forget_lost(builder, node):
        return
    builder.awaits(Topic.ROOM)
    need = need_of(world, builder.policies, node)
    target, why_not = find_host(world, builder.policies, 0.0, skip=old, need=need)
    unseen = unplaced(builder)
    if target is None or unseen is not None:
        builder.refuse(node.name, Goal.MOVE, unseen or no_host(why_not.values()))
        return
    builder.note(node, f"its checkpoint is put back on {target}", host=target, left=old)
