"""Whose turn it is: which order of a job's own machines comes before everything else, and when."""

from __future__ import annotations

from math import inf

from backfill.core.model.fleet import Fleet, FleetState
from backfill.core.model.lifecycle import Phase
from backfill.core.placement import rooms_of
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, budgets_change_s, members, most_instances
from backfill.core.reconcile.orders import names_soon, need_of_member
from backfill.core.reconcile.own_machines import places_in


def lacks_room(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if machines of a job's own wait to be begun: all of them, or some (once more)."""
    if not fleet.job or fleet.state is not FleetState.MAKING:
        return bool(fleet.job) and fleet.state is FleetState.WAITING
    due_s = [m.retry.not_before_s or 0.0 for m in members(builder, fleet) if m.phase is Phase.FAILED]
    first_s = min(due_s, default=inf)
    builder.wake_at(first_s)
    return len(fleet.members) < fleet.size or builder.now_s >= first_s


def first_of_all(builder: PlanBuilder) -> Fleet | None:
    """Return the order of a job's own machines before which no others are made, if there is one."""
    for fleet in builder.world.fleets.values():
        if not fleet.hosts and lacks_room(builder, fleet) and comes_first(builder, fleet):
            return fleet
    return None


def comes_first(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if an order of a job's has been passed over for long enough, and can soon be served.

    Room that is kept free for it serves nobody while hosts that it needs are given away for long, or dead,
    while names that it needs are not to be had, or a budget allows fewer instances than that.
    """
    due_s = fleet.ordered_s + builder.policies.own_machines.passed_over_s
    builder.wake_at(due_s)
    if builder.now_s < due_s:
        return False
    if fleet.state is not FleetState.WAITING:
        return True
    if names_soon(builder, fleet) < fleet.size or _above_budget(builder, fleet):
        return False
    builder.awaits(Topic.ROOM)
    shape = (fleet.flavour or builder.policies.instances.flavour).resources
    rooms, need = rooms_of(builder.world, builder.policies), need_of_member(builder, fleet)
    places, more_s = rooms.places_soon(builder.world, (shape, need))
    builder.wake_at(more_s)
    return places_in(fleet.company, places) >= fleet.size


def _above_budget(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if a budget forbids so many now, whoever else makes way."""
    most = most_instances(builder.world, builder.policies)
    builder.wake_at(budgets_change_s(builder.world, builder.policies))
    return most is not None and fleet.size > most
