"""Giving room back for good where hosts belong to somebody else: who goes when it has shrunk."""

from __future__ import annotations

from backfill.core.condemn import clear
from backfill.core.lifecycle import ManagedNode, NodeStop, Phase
from backfill.core.placement import count_on, room
from backfill.core.plan_builder import PlanBuilder
from backfill.core.quantities import Resources

_LEAVING = (Phase.DRAINING, Phase.EVICTING, Phase.REMOVING)


def plan_reclaim(builder: PlanBuilder) -> None:
    """On every burst host: as many instances go as no longer fit, or as its owner names."""
    burst = builder.world.burst
    for name in builder.policies.hosts if burst else ():
        if name in burst and builder.world.hosts[name].reachable and name not in builder.world.closed:
            _fit(builder, name)


def _fit(builder: PlanBuilder, host: str) -> None:
    nodes = builder.world.managed_on(host)
    leaving = sum(1 for m in nodes if m.phase in _LEAVING)
    named = {m.name: why for m in nodes if (why := _named(builder, m))}
    too_many, why = _too_many(builder, host)
    can_go = [m for m in nodes if m.phase in (Phase.READY, Phase.BOOTING)]
    can_go.sort(
        key=lambda m: (
            m.name not in named,
            m.phase is Phase.READY,
            m.idle_since_s is None,
            -m.created_s,
            m.name,
        )
    )
    going = max(too_many - leaving, sum(1 for m in can_go if m.name in named))
    for node in can_go[: max(0, going)]:
        reason = f"its room on {host} is wanted back: {named.get(node.name, why)}"
        if node.phase is Phase.BOOTING:
            clear(builder, node, reason)
        else:
            builder.become(node, Phase.DRAINING, reason, stop=NodeStop(float(builder.now_s), doomed=True))


def _named(builder: PlanBuilder, node: ManagedNode) -> str:
    instance = builder.instance(node)
    return instance.wanted_back if instance is not None else ""


def _too_many(builder: PlanBuilder, host: str) -> tuple[int, str]:
    """How many instances are beyond the host's room or the owner's number, and why."""
    shape = builder.policies.instances.flavour.resources
    left = room(builder.world, host, builder.policies, kept=False)
    lacking = max(_times(-left.cpus, shape.cpus), _times(-left.memory_mb, shape.memory_mb))
    capacity: Resources = builder.world.hosts[host].capacity
    keep, why = builder.world.kept.get(host, (None, ""))
    beyond = 0 if keep is None else count_on(builder.world, host) - keep
    if beyond >= lacking:
        return beyond, why
    return lacking, f"it has {capacity} left for us"


def _times(amount: int, unit: int) -> int:
    """How many units cover the amount."""
    return -(-max(0, amount) // unit)
