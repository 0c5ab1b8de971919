"""Room in somebody else's cloud that is wanted back: by its quota, by its owner's word, by one server."""

from __future__ import annotations

from backfill.core.model.lifecycle import ManagedNode, NodeStop, Phase
from backfill.core.model.quantities import Resources
from backfill.core.placement import count_on, room
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.condemn import clear

_LEAVING = (Phase.DRAINING, Phase.EVICTING)


def plan_reclaim(builder: PlanBuilder) -> None:
    """On every burst host: as many instances go as no longer fit, or as its owner names."""
    burst = builder.world.burst
    for name in builder.policies.hosts if burst else ():
        if name in burst and builder.world.hosts[name].reachable and name not in builder.world.closed:
            _fit(builder, name)


def _fit(builder: PlanBuilder, host: str) -> None:
    nodes = builder.world.fleet.managed_on(host)
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


def wanted_back(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its room is still wanted back, beyond what others leave that are being removed."""
    return bool(_named(builder, node)) or _too_many(builder, node.host, stays=node.name)[0] > 0


def _too_many(builder: PlanBuilder, host: str, stays: str = "") -> tuple[int, str]:
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
