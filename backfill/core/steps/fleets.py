"""Fleets: make all members of an order, try failed ones again, or undo everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backfill.core.admission import full, open_rooms, too_soon
from backfill.core.condemn import clear
from backfill.core.draft import Draft
from backfill.core.fleets import Fleet, FleetState
from backfill.core.guards import may_create
from backfill.core.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.placement import candidates, pick, room
from backfill.core.plan import SetFleet, SetNode
from backfill.core.wants import own_image

_OVER = (Phase.FAILED, Phase.GIVEN_UP)


def plan_fleets(draft: Draft) -> None:
    """Take every order one step further; only the oldest unfinished one grows."""
    if draft.blind:
        return
    first = True
    for fleet in sorted(draft.world.fleets.values(), key=lambda f: (f.ordered_s, f.id)):
        if fleet.growing:
            if first:
                _grow(draft, fleet)
            else:
                draft.refuse(fleet.id, "first member", "an order that came before it is made")
            first = False
        elif not fleet.settled:
            _shrink(draft, fleet)


def members(draft: Draft, fleet: Fleet) -> list[ManagedNode]:
    """Records of its members, as far as there are any."""
    known = (draft.world.managed.get(name) for name in fleet.members)
    return [node for node in known if node is not None and node.fleet == fleet.id]


# --- growing -----------------------------------------------------------------------------------


def _grow(draft: Draft, fleet: Fleet) -> None:
    there = members(draft, fleet)
    problem = _hopeless(draft, fleet, there)
    if problem:
        _set(draft, fleet, problem, state=FleetState.UNDOING)
        return
    if fleet.state is FleetState.WAITING:
        lacking = _lacking(draft, fleet)
        if lacking:
            draft.refuse(fleet.id, "first member", lacking)
            return
    failed = [m for m in there if m.phase is Phase.FAILED]
    if len(fleet.members) < fleet.size or failed:
        _begin_one(draft, fleet, failed)
    elif all(m.proven_s and m.phase not in ABSENT for m in there) and len(there) == fleet.size:
        _set(draft, fleet, "every member takes jobs", state=FleetState.READY, ready_s=draft.now_s)


def _hopeless(draft: Draft, fleet: Fleet, there: list[ManagedNode]) -> str:
    """Say why not all of it will ever be, or return an empty text."""
    for node in there:
        if node.phase is Phase.GIVEN_UP:
            return f"{node.name} failed {node.failures} times, the last time: {node.reason}"
    known = {node.name for node in there}
    lost = [name for name in fleet.members if name not in known]
    if lost:
        return f"{lost[0]} was removed before the fleet was complete"
    scale = draft.policies.scale
    # So long that every member could fail as often as it may.
    longest_s = scale.boot_within_s + scale.backoff_s(scale.give_up_after)
    within_s = scale.give_up_after * longest_s
    if fleet.all_begun_s and draft.now_s >= fleet.all_begun_s + within_s:
        return f"it was not complete within {within_s:.0f} s"
    if fleet.all_begun_s:
        draft.wake_at(fleet.all_begun_s + within_s)
    return ""


def _image(draft: Draft, fleet: Fleet) -> str:
    return fleet.image or draft.policies.instances.image


def _lacking(draft: Draft, fleet: Fleet) -> str:
    """Say what is missing now to make all of it, or return an empty text."""
    size, image = fleet.size, _image(draft, fleet)
    limit = full(draft, image, size)
    if limit:
        return limit
    names = sum(1 for _ in _free_names(draft, image))
    if names < size:
        return f"only {names} of {size} names are free in instances.names"
    rooms, why_not = candidates(draft.world, draft.policies, draft.policies.gaps.boot_pays_s)
    places = sum(_places(draft, host) for host, _ in rooms)
    if places < size:
        closed = "".join(f"; {why}" for why in why_not.values())
        return f"there is room for only {places} of {size} now{closed}"
    return ""


def _places(draft: Draft, host: str) -> int:
    """How many instances of ours fit on a host that has room."""
    left, shape = room(draft.world, host, draft.policies), draft.policies.instances.flavour
    by_room = min(left.cpus // shape.cpus, left.memory_mb // shape.memory_mb)
    there = sum(1 for m in draft.world.managed_on(host) if m.phase not in ABSENT)
    return min(by_room, draft.policies.limits.max_per_host - there)


def _begin_one(draft: Draft, fleet: Fleet, failed: list[ManagedNode]) -> None:
    """Begin one member; the next plan, which follows at once, begins the next one."""
    image = _image(draft, fleet)
    limit = may_create(draft.world, draft.policies.limits) or too_soon(draft, image)
    rooms, why_not = open_rooms(draft)
    if limit or not rooms:
        draft.refuse(fleet.id, "further member", limit or "; ".join(why_not.values()))
        return
    host = pick(draft.world, draft.policies, rooms)
    if host in draft.targets:
        return  # an instance moves there: the next plan, which follows at once, sees what is left
    if len(fleet.members) < fleet.size:
        free = next(_free_names(draft, image), None)
        if free is None:
            draft.refuse(fleet.id, "further member", "no name is left in instances.names")
            return
        _begin(draft, fleet, *free, host, 0)
        last = len(fleet.members) + 1 == fleet.size
        _set(
            draft,
            fleet,
            f"{free[0]} was begun",
            state=FleetState.MAKING,
            members=(*fleet.members, free[0]),
            begun_s=fleet.begun_s or draft.now_s,
            all_begun_s=draft.now_s if last else 0.0,
        )
        return
    for node in failed:
        if draft.now_s >= node.not_before_s:
            _begin(draft, fleet, node.name, node.address, host, node.failures)
            _set(draft, fleet, f"{node.name} is tried again", retries=fleet.retries + 1)
            return
        draft.wake_at(node.not_before_s)


def _free_names(draft: Draft, image: str) -> Iterator[tuple[str, str]]:
    """Names that nothing uses, inside Slurm or outside, with their addresses."""
    template, world = draft.policies.instances, draft.world
    reserved = draft.policies.environments.reserved
    for name, address in zip(template.names, template.addresses, strict=True):
        if reserved(name, image):
            continue
        if name not in world.managed and name not in world.nodes and not world.places_of(name):
            yield name, address


def _begin(draft: Draft, fleet: Fleet, name: str, address: str, host: str, failures: int) -> None:
    reason = f"a member of {fleet.id}"
    generation = draft.world.generations.get(name, 0) + 1
    now_s = draft.now_s
    node = ManagedNode(
        name,
        address,
        host,
        generation,
        Phase.BOOTING,
        now_s,
        now_s,
        reason=reason,
        failures=failures,
        fleet=fleet.id,
        image=own_image(draft.policies, _image(draft, fleet)),
    )
    draft.targets.add(host)
    draft.add(SetNode(node, reason))


# --- going -------------------------------------------------------------------------------------


def _shrink(draft: Draft, fleet: Fleet) -> None:
    """Let all members go: those at work when their jobs have ended, the others at once."""
    there = members(draft, fleet)
    if not there:
        end = FleetState.FAILED if fleet.state is FleetState.UNDOING else FleetState.GONE
        _set(draft, fleet, fleet.reason, state=end, over_s=draft.now_s)
        return
    going = (Phase.DRAINING, Phase.REMOVING)
    busy = sum(1 for m in draft.world.managed.values() if m.phase in going)
    for node in there:
        if node.phase in _OVER:
            draft.forget(node, f"{fleet.id} goes")
        elif node.phase not in (Phase.BOOTING, Phase.READY):
            continue
        elif busy >= draft.policies.limits.removals_at_once:
            return
        elif node.phase is Phase.BOOTING:
            busy += 1
            clear(draft, node, f"{fleet.id} goes: {fleet.reason}")
        elif node.idle_since_s:
            busy += 1
            draft.become(node, Phase.DRAINING, f"{fleet.id} goes", drained_s=0.0)
        else:
            draft.refuse(node.name, "removal", "a job runs on it; its fleet waits for that")


def _set(draft: Draft, fleet: Fleet, reason: str, **fields: object) -> None:
    draft.add(SetFleet(replace(fleet, reason=reason, **fields), reason))  # type: ignore[arg-type]
