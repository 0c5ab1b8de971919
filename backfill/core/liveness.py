"""Dead nodes are set DOWN in the usual time, by us, because SlurmdTimeout must not do it."""

from __future__ import annotations

from backfill.core.actions import DownNode
from backfill.core.cluster import OUR_REASON
from backfill.core.lifecycle import Phase
from backfill.core.plan_builder import PlanBuilder
from backfill.core.refusals import Code, Goal, because


def plan_liveness(builder: PlanBuilder) -> None:
    """Set nodes DOWN that have been silent for too long; of many at once believe none dead."""
    rule = builder.policies.liveness
    if not rule.down_after_s or builder.blind:
        return
    dead = []
    for name in sorted(builder.world.silent):
        if not _excused(builder, name):
            over_s = _since_s(builder, name) + rule.down_after_s
            builder.wake_at(over_s)
            if builder.now_s >= over_s:
                dead.append(name)
    most = rule.most(len(builder.world.nodes)) if dead else 0
    if len(dead) > most:
        every = len(builder.world.nodes)
        broken = because(Code.BROKEN_NETWORK, count=len(dead), every=every, most=most)
        for name in dead:
            builder.refuse(name, Goal.SET_DOWN, broken)
        return
    for name in dead:
        node = builder.world.managed.get(name)
        reason = f"{OUR_REASON} it has not answered Slurm for {rule.down_after_s:g} s"
        builder.do(DownNode(name, node.generation if node is not None else 0, reason))


def silent_too_long(builder: PlanBuilder, name: str) -> bool:
    """Whether the node has not answered Slurm for so long that it counts as dead."""
    down_after_s = builder.policies.liveness.down_after_s
    if not down_after_s or name not in builder.world.silent:
        return False
    over_s = _since_s(builder, name) + down_after_s
    builder.wake_at(over_s)
    return builder.now_s >= over_s


def _since_s(builder: PlanBuilder, name: str) -> float:
    """Silence counts only while we could hear."""
    return max(builder.world.silent[name], builder.world.sighted_since_s)


def _excused(builder: PlanBuilder, name: str) -> bool:
    """A node of ours is silent by our own doing, or its step deals with it, unless its host is
    gone together with it: then it is as dead as any."""
    node = builder.world.managed.get(name)
    if node is None:
        return False
    host = builder.world.hosts.get(node.host)
    return node.phase is not Phase.READY or host is None or host.reachable
