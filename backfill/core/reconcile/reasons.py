"""Does the reason for which work is given up, or was, still hold? If it does not, the work goes on.

Among the reasons is room in somebody else's cloud that is wanted back: by its quota, or by its owner's word.
"""

from __future__ import annotations

from backfill.core.model.cluster import NodeBase
from backfill.core.model.fence import judge
from backfill.core.model.fleet import STILL, InstanceState
from backfill.core.model.lifecycle import Cause, ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.placement import count_on, node_of, others_serve
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, ladder_of
from backfill.core.reconcile.condemn import work_on
from backfill.core.reconcile.own_machines import kept_off
from backfill.core.reconcile.pressure import is_free_for, only_claimed
from backfill.core.room import room


def _has_to_leave(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its own host is wanted now, or it is not to be at work there."""
    free = is_free_for(builder, node) and node.name not in builder.world.closed
    return not free or builder.budget_full() is not None or drained_for_long(builder, node)


def drained_for_long(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its host has been drained for long enough to let its ladder end.

    Whoever drained it keeps everybody from it, and need not remember what waits there.
    """
    own, most_s = node_of(builder.world, node.host), most_drained_s(builder, node)
    if own is None or most_s is None:
        return False
    over_s = builder.world.standing_since_s(own.name) + most_s
    builder.wake_at(over_s)
    return builder.now_s >= over_s


def out_of_service(builder: PlanBuilder, host: str) -> bool:
    """Return True if the host's own node gets no job, because it is drained or DOWN, and has none."""
    own = node_of(builder.world, host)
    return own is not None and (own.base is NodeBase.DOWN or (own.base is NodeBase.IDLE and own.drained))


def most_drained_s(builder: PlanBuilder, node: ManagedNode) -> float | None:
    """Return for how long its host may be drained until its ladder ends all the same; None: for ever.

    A host that is DOWN may come back by itself. And where no other one is in service, as in a
    maintenance of the whole site, work that starts over gains nothing: what it has is kept.
    Where jobs go on there, a drain only has to be sure: beside them nobody comes back before it is lifted.
    """
    own, policies = node_of(builder.world, node.host), builder.policies
    if own is None or not own.drained_by_others:
        return None
    if own.base in (NodeBase.MIXED, NodeBase.ALLOCATED) and builder.taken_from(node):
        return policies.limits.sure_after_s
    if own.base is not NodeBase.IDLE:
        return None
    builder.awaits(Topic.ROOM)
    others = others_serve(builder.world, policies, node.host, policies.gaps.return_pays_s)
    return ladder_of(policies, node).planned_stop_s if others else None


def not_lost_yet(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why the work on it need not be lost for its host, if it need not.

    A machine that stands still only because a fellow does loses nothing by that: whose host is
    wanted decides for the job of both.
    """
    if not _has_to_leave(builder, node):
        return kept_off(builder, node) or because(Code.HOST_FREE_AGAIN, host=node.host)
    return only_claimed(builder, node)


def taken_by_jobs(builder: PlanBuilder, node: ManagedNode) -> str:
    """Return the name of its host's own node, if jobs that Slurm shows there are all that push it aside."""
    world, host = builder.world, node.host
    own = world.hosts[host].node
    by_hand = host in world.closed or node.name in world.closed
    if own is None or by_hand or builder.left(host) or builder.budget_full() is not None:
        return ""
    return own if world.jobs_on(own) else ""


def wanted_back(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its room is still wanted back, beyond what others leave that are being removed."""
    return bool(asked_back(builder, node)) or beyond_room(builder, node.host, stays=node.name)[0] > 0


def asked_back(builder: PlanBuilder, node: ManagedNode) -> str:
    """Return why its host's owner wants this very instance gone; empty if it may stay."""
    instance = builder.instance(node)
    return instance.wanted_back if instance is not None else ""


def beyond_room(builder: PlanBuilder, host: str, stays: str = "") -> tuple[int, str]:
    """Return how many instances are beyond the host's room or the owner's number, and why.

    Those that are being removed do not count, but for the one that `stays` if it need not go.
    """
    gone = [m for m in builder.world.fleet.managed_on(host) if m.phase is Phase.REMOVING]
    back = sum(1 for m in gone if m.name == stays)
    leaving = sum(1 for m in gone if m.name != stays and (host, m.name) in builder.world.instances)
    shape = builder.policies.instances.flavour.resources
    left = room(builder.world, host, builder.policies, kept=False)
    lacking = max(_times(-left.cpus, shape.cpus), _times(-left.memory_mb, shape.memory_mb))
    capacity: Resources = builder.world.hosts[host].capacity
    keep, why = builder.world.kept.get(host, (None, ""))
    beyond = 0 if keep is None else count_on(builder.world, host) + back - keep
    lacking -= leaving
    if beyond >= lacking:
        return beyond, why
    return lacking, f"it has {capacity} left for us"


def _times(amount: int, unit: int) -> int:
    """Return how many units cover the amount."""
    return -(-max(0, amount) // unit)


# What is in such an instance can go on.
_INTACT = STILL | {InstanceState.RUNNING}


def reason_over(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return that why its work was given up holds no more, while all of that is still there.

    Much may lie between that decision and the call: a full disk, a host that cannot be reached.
    """
    if node.condemned is None or builder.blind or builder.world.busy(node.name):
        return None
    instance = builder.instance(node)
    intact = instance is not None and instance.state in _INTACT and not instance.restarted
    jobs = work_on(builder, node)
    if not intact or not jobs or judge(node.name, jobs, builder.world.jobs).lost:
        return None
    match node.condemned.cause:
        case Cause.LADDER | Cause.UNSTOPPED:
            return not_lost_yet(builder, node)
        case Cause.RECLAIMED if not wanted_back(builder, node):
            return because(Code.ROOM_NOT_WANTED, host=node.host)
        case Cause.HOST_OFF if node.host not in builder.world.off:
            return because(Code.HOST_NOT_OFF, host=node.host)
        case _:
            return None
