"""Held back: a wanted host's instance goes on with next to no CPU, and gets it back afterwards."""

from __future__ import annotations

from backfill.core.actions import ThrottleInstance
from backfill.core.condemn import lost
from backfill.core.draft import Draft, Progress
from backfill.core.fleet import Instance
from backfill.core.lifecycle import ManagedNode, Phase, Rung
from backfill.core.placement import closed
from backfill.core.steps.rungs import next_rung
from backfill.core.steps.taken import unsafe, why_taken
from backfill.core.steps.timing import drained


def hold_back(draft: Draft, node: ManagedNode) -> Progress:
    """Leave it the rung's share of its CPUs."""
    percent = draft.rule(node).cpu_percent
    return draft.do(ThrottleInstance(node.name, node.generation, node.host, percent, node.reason))


def held_back(draft: Draft, node: ManagedNode) -> None:
    """It is throttled: no new job shall come to so slow a node; those there go on."""
    seen = draft.world.nodes.get(node.name)
    if seen is None or draft.blind or not drained(draft, node, seen):
        return
    evictions = node.evictions + 1
    draft.become(node, Phase.THROTTLED, node.reason, evictions=evictions)


def give_cpus(draft: Draft, node: ManagedNode, instance: Instance) -> bool:
    """Whether it has all of its CPUs; where it has not, that is changed."""
    if not instance.throttled:
        return True
    reason = f"host {node.host} is free again"
    draft.do(ThrottleInstance(node.name, node.generation, node.host, None, reason))
    return False


def step_throttled(draft: Draft, node: ManagedNode) -> None:
    """Wait for the host; after the rung's time the next rung is taken."""
    if draft.unread:
        return
    instance = draft.instance(node)
    if lost(draft, node, instance) or instance is None:
        return
    if draft.stopped(instance) or not instance.throttled:
        draft.become(node, Phase.EVICTING, f"{node.reason}; it was no longer throttled")
        return
    if node.doomed:
        _climb(draft, node, "it is not to come back")
        return
    busy = _wanted(draft, node)
    if busy:
        draft.refuse(node.name, "all of its CPUs", busy)
        _wait(draft, node)
    else:
        draft.become(node, Phase.RETURNING, f"host {node.host} is free again", woken_s=0.0)


def _wanted(draft: Draft, node: ManagedNode) -> str:
    """Say what keeps its CPUs from it: all that would throttle it again; empty: nothing."""
    busy = closed(draft.world, node.host, draft.policies.limits)
    if not busy and draft.taken(node.host):
        busy = f"{node.host} {why_taken(draft, node.host)}"
    return busy or draft.world.closed.get(node.name, "") or draft.budget_full()


def _wait(draft: Draft, node: ManagedNode) -> None:
    """Stay on the rung for its time."""
    rule = draft.rule(node)
    danger = unsafe(draft, node)
    if danger:
        _climb(draft, node, danger)
        return
    if rule.for_s is None or rule.rung is not Rung.THROTTLE:
        return
    over_s = node.rung_since_s + rule.for_s
    if draft.now_s >= over_s:
        _climb(draft, node, f"{rule.for_s:g} s of {rule.rung} are over")
    else:
        draft.wake_at(over_s)


def _climb(draft: Draft, node: ManagedNode, why: str) -> None:
    reason = f"{node.reason}; {why}"
    draft.become(node, Phase.EVICTING, reason, **next_rung(draft, node))
