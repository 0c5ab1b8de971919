"""On its way to another host: wait for the move, and see where the instance is when it has ended."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.actions import MigrateInstance
from backfill.core.model.fleet import STILL, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import ManagedNode, Phase, unwoken
from backfill.core.model.refusals import Goal
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.condemn import awaited
from backfill.core.reconcile.course import next_rung, not_worked, rule_after, rung_s


def step_moving(builder: PlanBuilder, node: ManagedNode) -> None:
    """Wait for the migration; look at both hosts, not at the error, to know where it is."""
    world = builder.world
    seen = [i for i in world.places_of(node.name) if i.tag.generation == node.generation]
    places = [i for i in seen if not world.lost(i.host)]
    target = node.target
    if target is None:
        builder.become(node, _back_phase(builder, node), "nobody knows where it was to move")
        return
    action = MigrateInstance(
        subject=node.name,
        generation=node.generation,
        reason=f"{target} has room",
        host=node.host,
        target=target,
    )
    if _too_slow(builder, node):
        return
    if _unknown_where(builder, node, action):
        return
    at = {i.host: i for i in places if i.state is not InstanceState.MIGRATING}
    if target in at and node.host not in at:
        _arrived(builder, node, at[target])
        return
    operation = builder.operation(action)
    # One that failed before this move began is its next try, or it would never come to one.
    if operation is not None and (operation.final or operation.since_s >= node.since_s):
        builder.become(
            node,
            _back_phase(builder, node),
            f"the move to {target} failed: {operation.problem}",
            stop=replace(node.stopping, target=None),
        )
        return
    if builder.taken(target):
        reason = f"{target} was taken before the move began"
        builder.become(node, _back_phase(builder, node), reason, stop=replace(node.stopping, target=None))
        return
    builder.do(action)


def _unknown_where(builder: PlanBuilder, node: ManagedNode, action: MigrateInstance) -> bool:
    """Return True while its call runs, or may have acted although it failed: its hosts are read first."""
    if node.name not in builder.world.doubts:
        return builder.world.running(_key(builder, action))
    silent = awaited(builder, node)
    if silent:
        builder.refuse(node.name, Goal.MOVE_TO, silent, action.target)
    return True


def _too_slow(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Stop an instance that runs and keeps a wanted host busy for longer than the rung allows."""
    instance = builder.instance(node)
    if instance is None or instance.state is not InstanceState.RUNNING:
        return False
    if not builder.taken_from(node):
        return False
    rule, stop = builder.rule(node), node.stopping
    if not builder.overdue(stop.since_s, rung_s(rule, stop, instance)):
        return False  # earlier tries are part of the rung's time
    why, after = not_worked(builder, node, rule.within_s), rule_after(builder, node).rung
    stop = replace(next_rung(builder, node), target=None)
    reason = f"the move to {node.target} is too slow: {why}; next rung: {after}"
    builder.become(node, Phase.EVICTING, reason, stop=stop)
    return True


def _arrived(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    host = instance.host
    stop = replace(node.stopping, target=None)
    if builder.taken(host):
        phase = Phase.PARKED if _aside(builder, node, instance) else Phase.EVICTING
        # Somebody waits for this host already: there is no time for one more move.
        moved = phase is Phase.EVICTING and builder.rule(node).rung is Rung.MIGRATE
        if moved:
            stop = replace(next_rung(builder, node), target=None)
        builder.become(node, phase, f"{host} was taken meanwhile", host=host, stop=stop)
        return
    left = "" if host == node.left else node.left
    proof = unwoken(node)
    builder.become(node, Phase.RETURNING, f"moved to {host}", host=host, stop=stop, proof=proof, left=left)


def _back_phase(builder: PlanBuilder, node: ManagedNode) -> Phase:
    """Return where a node whose move came to nothing goes on: as before the move."""
    return Phase.PARKED if _aside(builder, node, builder.instance(node)) else Phase.EVICTING


def _aside(builder: PlanBuilder, node: ManagedNode, instance: Instance | None) -> bool:
    """Return True if it stands still and Slurm was told of it; a pause may come after its move began."""
    return instance is not None and instance.state in STILL and bool(node.held)


def _key(builder: PlanBuilder, action: MigrateInstance) -> str:
    operation = builder.operation(action)
    return operation.key if operation is not None else ""
