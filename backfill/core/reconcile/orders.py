"""What an order of instances wants: its image, the room of each member, names, and how many fit where.

And whose turn it is: which order of a job's own machines comes before everything else, and when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from backfill.core.model.fleet import Fleet, FleetState
from backfill.core.model.lifecycle import ABSENT, OVER, ManagedNode, Phase
from backfill.core.names import names_of
from backfill.core.placement import rooms_of
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, budgets_change_s, members, most_instances
from backfill.core.reconcile.own_machines import places_in
from backfill.core.reconcile.retries import tried_again_s
from backfill.core.room import NodeNeed, functions_free, never, own_need, own_network, places_now


def in_turn(builder: PlanBuilder) -> list[Fleet]:
    """Return all orders, the earliest first."""
    return sorted(builder.world.fleets.values(), key=lambda f: (f.ordered_s, f.id))


def all_begun(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Return True if none of its members has to be begun, or begun once more."""
    there = members(builder, fleet)
    return len(fleet.members) == fleet.size and all(m.phase is not Phase.FAILED for m in there)


def image_of_order(builder: PlanBuilder, fleet: Fleet) -> str:
    """Return the master image of its members."""
    return fleet.image or builder.policies.instances.image


def need_of_member(builder: PlanBuilder, fleet: Fleet) -> NodeNeed:
    """Return what each of its members takes of a host."""
    shape = None if fleet.flavour is None else fleet.flavour.resources
    image = builder.policies.environments.somewhere(fleet.image)
    if fleet.job:
        return own_need(builder.world, fleet.job, shape, image)
    return NodeNeed(shape=shape, image=image)


def places_on(builder: PlanBuilder, fleet: Fleet, host: str, without: Collection[str] = ()) -> int:
    """Return how many of its members fit on a host that is open, if nodes named `without` were gone."""
    need = need_of_member(builder, fleet)
    shape = fleet.flavour or builder.policies.instances.flavour
    every = (m for m in builder.world.fleet.managed_on(host) if m.phase not in ABSENT)
    there = [m for m in every if m.name not in without]
    known = builder.world.hosts[host]
    size = known.size_for(shape.resources)
    if size is None or never(known, need, shape.resources, builder.policies) is not None:
        return 0
    shared_mb = 0 if any(m.job == fleet.job for m in there) else need.region_mb
    places = [places_now(builder.world, host, builder.policies, size, shared_mb, without)]
    if need.functions:
        places.append(functions_free(builder.world, builder.policies, host) // need.functions)
    return min(*places, builder.policies.limits.max_per_host - len(there))


def free_names(builder: PlanBuilder, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Yield names that nothing uses, inside Slurm or outside, with their addresses.

    Those that have failed come last, once they may be tried again, the first that failed before others.
    """
    world = builder.world
    failed: list[tuple[float, str, str]] = []
    for name, address in names_of(world, builder.policies).free(world):
        if world.places_of(name) or not may_have(builder, fleet, name):
            continue
        node = world.managed.get(name)
        if node is None:
            if name not in world.nodes:
                yield name, address
        elif _serves_again(builder, node):
            failed.append((node.since_s, name, address))
    yield from ((name, address) for _, name, address in sorted(failed))


def names_soon(builder: PlanBuilder, fleet: Fleet) -> int:
    """Return how many names its members could have if whatever works under them were gone.

    Under a name that has failed nothing works that goes: until it may be tried again, nobody has it. And a
    node of somebody else's stays.
    """
    world = builder.world
    names = names_of(world, builder.policies)
    network = own_network(world, fleet.job) if fleet.job else ""
    meant = names.meant_for(image_of_order(builder, fleet), network)
    failed = {n for n in world.fleet.in_phase(Phase.REMOVING) if world.managed[n].fail}
    failed |= {n for n in world.fleet.in_phase(*OVER) if not _serves_again(builder, world.managed[n])}
    return len(meant - names.strays(world) - failed)


def _serves_again(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if an order may have a name that has failed; another order's is tried again by that."""
    if node.fleet:
        return False
    again_s = tried_again_s(builder, node)
    builder.wake_at(again_s)
    return builder.now_s >= again_s


def may_have(builder: PlanBuilder, fleet: Fleet, name: str) -> bool:
    """Return True unless the name is for other images, or for other networks."""
    network = own_network(builder.world, fleet.job) if fleet.job else ""
    return not builder.policies.name_reserved(name, image_of_order(builder, fleet), network)


# --- whose turn it is -----------------------------------------------------------------------------


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
