"""Memory to disk in turns, and a checkpoint of it where one was ordered."""

from __future__ import annotations

from backfill.core.model.actions import KeepCheckpoint, SuspendInstance
from backfill.core.model.fence import judge
from backfill.core.model.fleet import Checkpoint, Instance, InstanceState
from backfill.core.model.lifecycle import CheckpointOrder, ManagedNode, Phase
from backfill.core.model.refusals import Aside, Code, Goal, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress

_KIND = SuspendInstance.__name__


_STILL = (InstanceState.PAUSED, InstanceState.SUSPENDED)


def kept_in_memory(instance: Instance | None) -> Reason | None:
    """Return why an instance that stands still can neither be saved nor moved, if it cannot.

    To let go of devices its guest would have to run, on a host that others were given.
    """
    if instance is None or instance.state is not InstanceState.PAUSED or not instance.plugged:
        return None
    return because(Code.HOLDS_DEVICES, job=instance.devices_of)


def suspend(builder: PlanBuilder, node: ManagedNode, reason: str) -> Progress:
    """Write the instance's memory to disk when it is its turn."""
    kept = kept_in_memory(builder.instance(node))
    if kept:
        builder.refuse(node.name, Goal.SUSPEND, kept)
        return Progress.FINAL
    world, queue = builder.world, builder.policies.disk_queue
    expected_s = _expected_s(builder, node)
    action = SuspendInstance(node.name, node.generation, reason, node.host, expected_s)
    if world.running(action.key):
        return Progress.RUNNING
    writing = {name: _used_mb(builder, name) for name in builder.under_way(_KIND, but=node.name)}
    here_mb = sum(mb for name, mb in writing.items() if _is_on(builder, name, node.host))
    refusal = queue.refusal(_used_mb(builder, node.name), here_mb, sum(writing.values()))
    if refusal:
        builder.awaits(Topic.DISK)
        others = Aside(tuple(sorted(writing)))
        builder.refuse(node.name, Goal.SUSPEND, refusal.plus(others=others))
        return Progress.WAITING
    return builder.do(action)


def _is_on(builder: PlanBuilder, name: str, host: str) -> bool:
    node = builder.world.managed.get(name)
    return node is not None and node.host == host


def _used_mb(builder: PlanBuilder, name: str) -> int:
    """How much of its memory there is to write, as far as the hypervisor tells."""
    node = builder.world.managed.get(name)
    instance = None if node is None else builder.instance(node)
    if instance is None:
        return 0
    return min(instance.rss_mb or instance.resources.memory_mb, instance.resources.memory_mb)


def _expected_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """By what this host did before; 0 when it has not been learned."""
    rate = builder.world.rates.get(node.host)
    return (rate.predict_s(_used_mb(builder, node.name)) or 0.0) if rate is not None else 0.0


def keep_checkpoint(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, instance: Instance
) -> None:
    """The order of a checkpoint: all members stand still, then memory to disk, then keep it."""
    members = _members(builder, order)
    ordered_s = node.since_s if node.ordered_s is None else node.ordered_s
    drained = [s for m in members if (s := m.stopping.drained_s) is not None]
    late_s = max(drained, default=ordered_s) - ordered_s
    window_s = builder.policies.checkpoints.window_s
    stopped = all(_stopped(builder, m) for m in members)
    if late_s > window_s or (not stopped and builder.now_s >= ordered_s + window_s):
        _no_checkpoint(builder, node, order, f"its nodes did not all stop within {window_s:g} s")
        return
    if not stopped:
        builder.wake_at(ordered_s + window_s)
        return
    if instance.state is InstanceState.PAUSED:
        if suspend(builder, node, f"for checkpoint {order.id}") is Progress.FINAL:
            kept = kept_in_memory(instance)
            why = sentence(kept) if kept else "its memory could not be written"
            _no_checkpoint(builder, node, order, why)
        return
    if builder.busy_with(node):
        return  # it is seen on disk before the call that wrote it is back, which keeps it until then
    action = KeepCheckpoint(
        node.name,
        node.generation,
        f"checkpoint {order.id} was ordered",
        node.host,
        _wanted(builder, node, order, members),
        builder.policies.checkpoints.quota_mb,
    )
    operation = builder.operation(action)
    if operation is not None and operation.problem and not operation.running:
        _no_checkpoint(builder, node, order, operation.problem)
        return
    builder.do(action)


def _members(builder: PlanBuilder, order: CheckpointOrder) -> list[ManagedNode]:
    """All nodes of the order that have not got theirs yet."""
    managed = builder.world.managed.values()
    return [m for m in managed if m.order is not None and m.order.id == order.id]


def _stopped(builder: PlanBuilder, node: ManagedNode) -> bool:
    instance = builder.instance(node)
    still = instance is not None and instance.state in _STILL
    return still and node.phase is Phase.PARKED


def _wanted(
    builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, members: list[ManagedNode]
) -> Checkpoint:
    held, policies = judge(node.name, node.held, builder.world.jobs).keep[0], builder.policies
    names = sorted({*order.members, *(m.name for m in members)})
    return Checkpoint(
        id=order.id,
        name=node.name,
        job=held.id,
        restarts=held.restarts,
        generation=node.generation,
        host=node.host,
        members=tuple(names),
        created_s=float(builder.now_s),
        expires_s=builder.now_s + policies.saving.kept_s(order.id, policies.checkpoints.keep_s),
    )


def _no_checkpoint(builder: PlanBuilder, node: ManagedNode, order: CheckpointOrder, why: str) -> None:
    """It is given up and the instance goes back to work; the story tells why."""
    builder.note(node, f"no checkpoint {order.id}: {why}", order=None)
