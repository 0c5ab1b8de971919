"""Held back: a wanted host's instance goes on with next to no CPU, and gets it back afterwards."""

from __future__ import annotations

from backfill.core.actions import ThrottleInstance
from backfill.core.condemn import lost
from backfill.core.fleet import Instance
from backfill.core.lifecycle import ManagedNode, Phase, Rung
from backfill.core.placement import closed
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.refusals import Code, Goal, Reason, Words, because
from backfill.core.sentences import sentence
from backfill.core.steps.prove import unwoken
from backfill.core.steps.rungs import next_rung
from backfill.core.steps.taken import unsafe, why_taken
from backfill.core.steps.timing import drained


def hold_back(builder: PlanBuilder, node: ManagedNode) -> Progress:
    """Leave it the rung's share of its CPUs."""
    percent = builder.rule(node).cpu_percent
    return builder.do(ThrottleInstance(node.name, node.generation, node.reason, node.host, percent))


def held_back(builder: PlanBuilder, node: ManagedNode) -> None:
    """It is throttled: no new job shall come to so slow a node; those there go on."""
    seen = builder.world.nodes.get(node.name)
    if seen is None or builder.blind or not drained(builder, node, seen):
        return
    evictions = node.evictions + 1
    builder.become(node, Phase.THROTTLED, node.reason, evictions=evictions)


def give_cpus(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> bool:
    """Whether it has all of its CPUs; where it has not, that is changed."""
    if not instance.throttled:
        return True
    reason = f"host {node.host} is free again"
    builder.do(ThrottleInstance(node.name, node.generation, reason, node.host, None))
    return False


def step_throttled(builder: PlanBuilder, node: ManagedNode) -> None:
    """Wait for the host; after the rung's time the next rung is taken."""
    if builder.unread:
        return
    instance = builder.instance(node)
    if lost(builder, node, instance) or instance is None:
        return
    if builder.stopped(instance) or not instance.throttled:
        builder.become(node, Phase.EVICTING, f"{node.reason}; it was no longer throttled")
        return
    if node.doomed:
        _climb(builder, node, "it is not to come back")
        return
    busy = _wanted(builder, node)
    if busy:
        builder.refuse(node.name, Goal.ALL_CPUS, busy)
        _wait(builder, node)
    else:
        builder.become(node, Phase.RETURNING, f"host {node.host} is free again", proof=unwoken(node))


def _wanted(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return what keeps its CPUs from it, if anything: all that would throttle it again."""
    busy = closed(builder.world, node.host, builder.policies.limits) or why_taken(builder, node.host)
    if not busy and node.name in builder.world.closed:
        busy = because(Code.CLOSED, subject=node.name, said=Words(builder.world.closed[node.name]))
    return busy or builder.budget_full()


def _wait(builder: PlanBuilder, node: ManagedNode) -> None:
    """Stay on the rung for its time."""
    rule = builder.rule(node)
    danger = unsafe(builder, node)
    if danger:
        _climb(builder, node, sentence(danger))
        return
    if rule.for_s is None or rule.rung is not Rung.THROTTLE:
        return
    over_s = node.stopping.since_s + rule.for_s
    if builder.now_s >= over_s:
        _climb(builder, node, f"{rule.for_s:g} s of {rule.rung} are over")
    else:
        builder.wake_at(over_s)


def _climb(builder: PlanBuilder, node: ManagedNode, why: str) -> None:
    reason = f"{node.reason}; {why}"
    builder.become(node, Phase.EVICTING, reason, stop=next_rung(builder, node))
