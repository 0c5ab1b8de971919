"""At work: notice that the host is wanted, that something broke, or that nobody needs it."""

from __future__ import annotations

from backfill.core.actions import UndrainNode
from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.steps.evict import begin_eviction


def step_ready(draft: Draft, node: ManagedNode) -> None:
    """Watch over one node that takes jobs."""
    if draft.taken(node.host) or node.name in draft.world.closed:
        begin_eviction(draft, node)
        return
    if not draft.world.hosts[node.host].reachable:
        draft.refuse(node.name, "care", f"host {node.host} cannot be reached")
        return
    instance = draft.instance(node)
    problem = draft.broken(node, instance)
    if problem:
        draft.become(node, Phase.REMOVING, problem, fail=True)
        return
    if draft.stopped(instance):
        begin_eviction(draft, node)
        return
    _in_slurm(draft, node)


def _in_slurm(draft: Draft, node: ManagedNode) -> None:
    seen = draft.world.nodes.get(node.name)
    if seen is None:
        draft.become(node, Phase.REMOVING, "somebody deleted the node in Slurm", fail=True)
        return
    if seen.drained_by_others:
        draft.refuse(node.name, "undrain", f"somebody else drained it: {seen.reason}")
    elif seen.drained_by_us:
        draft.do(UndrainNode(node.name, node.generation, "it is ready"))
    busy = bool(draft.world.jobs_on(node.name))
    if busy and node.idle_since_s:
        draft.note(node, "a job runs on it", idle_since_s=0.0)
    elif not busy and not node.idle_since_s:
        draft.note(node, "no job is left on it", idle_since_s=draft.now_s)
