"""Dead nodes are set DOWN in the usual time, by us, because SlurmdTimeout must not do it."""

from __future__ import annotations

from backfill.core.actions import DownNode
from backfill.core.cluster import OUR_REASON
from backfill.core.draft import Draft
from backfill.core.lifecycle import Phase


def plan_liveness(draft: Draft) -> None:
    """Set nodes DOWN that have been silent for too long; of many at once believe none dead."""
    rule = draft.policies.liveness
    if not rule.down_after_s or draft.blind:
        return
    dead = []
    for name in sorted(draft.world.silent):
        if not _excused(draft, name):
            over_s = _since_s(draft, name) + rule.down_after_s
            draft.wake_at(over_s)
            if draft.now_s >= over_s:
                dead.append(name)
    most = rule.most(len(draft.world.nodes)) if dead else 0
    if len(dead) > most:
        reason = (
            f"{len(dead)} of {len(draft.world.nodes)} nodes are silent at once, more than "
            f"liveness.at_most_percent allows ({most}): this looks like a broken network; "
            "if they are dead, set them DOWN by hand"
        )
        for name in dead:
            draft.refuse(name, "setting it DOWN", reason)
        return
    for name in dead:
        node = draft.world.managed.get(name)
        reason = f"{OUR_REASON} it has not answered Slurm for {rule.down_after_s:g} s"
        draft.do(DownNode(name, node.generation if node is not None else 0, reason))


def silent_too_long(draft: Draft, name: str) -> bool:
    """Whether the node has not answered Slurm for so long that it counts as dead."""
    down_after_s = draft.policies.liveness.down_after_s
    if not down_after_s or name not in draft.world.silent:
        return False
    over_s = _since_s(draft, name) + down_after_s
    draft.wake_at(over_s)
    return draft.now_s >= over_s


def _since_s(draft: Draft, name: str) -> float:
    """Silence counts only while we could hear."""
    return max(draft.world.silent[name], draft.world.sighted_since_s)


def _excused(draft: Draft, name: str) -> bool:
    """A node of ours is silent by our own doing, or its step deals with it, unless its host is
    gone together with it: then it is as dead as any."""
    node = draft.world.managed.get(name)
    if node is None:
        return False
    host = draft.world.hosts.get(node.host)
    return node.phase is not Phase.READY or host is None or host.reachable
