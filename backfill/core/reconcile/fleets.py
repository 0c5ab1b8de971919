"""Made by order: all members of a fleet or none, and parents from which instances are cloned."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from backfill.core.model.actions import CancelParents, MakeParent
from backfill.core.model.company import Company
from backfill.core.model.fleet import CloneMethod, Flavour, Fleet, FleetState
from backfill.core.model.lifecycle import ABSENT, ManagedNode, NodeStop, Phase, Retry
from backfill.core.model.plan import SetFleet, SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, call_failed, limit, no_host
from backfill.core.model.sentences import sentence
from backfill.core.placement import open_hosts, out_of_reach, why_not_on
from backfill.core.policies.cloning import Choice
from backfill.core.policy import PolicySet
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import (
    HOUR_S,
    clone_method,
    find_open_host,
    full,
    hour_over_s,
    may_create,
    own_image,
    present,
    too_soon,
    unplaced,
)
from backfill.core.reconcile.builder import PlanBuilder, Progress, members, removals
from backfill.core.reconcile.condemn import clear
from backfill.core.reconcile.names import keep_failed_name
from backfill.core.reconcile.own_machines import (
    all_begun,
    comes_first,
    free_names,
    image_of_order,
    in_turn,
    need_of_member,
    places_in,
    places_on,
)
from backfill.core.reconcile.pressure import why_taken
from backfill.core.room import host_full, numa_full, own_loan, places_now, room


def plan_fleets(builder: PlanBuilder) -> None:
    """Take every order one step further.

    Members are begun for one order after the other. A job's own that find no room are passed over by
    later ones for a while, and for as long as they cannot have any soon.
    """
    if builder.blind:
        return
    open_ = True
    for fleet in in_turn(builder):
        if not fleet.growing:
            if not fleet.settled:
                _shrink(builder, fleet)
        elif open_ or fleet.hosts or all_begun(builder, fleet):
            open_ = _grow(builder, fleet) and open_
        else:
            builder.refuse(fleet.id, Goal.FIRST_MEMBER, because(Code.EARLIER_ORDER))


# --- growing -----------------------------------------------------------------------------------


def _grow(builder: PlanBuilder, fleet: Fleet) -> bool:
    """Take it a step further; return True if the next order may be begun as well."""
    there = members(builder, fleet)
    problem = _hopeless(builder, fleet, there)
    if problem:
        _set(builder, fleet, sentence(problem), state=FleetState.UNDOING)
        return True
    if fleet.state is FleetState.WAITING:
        lacking = _lacking(builder, fleet)
        if lacking:
            builder.refuse(fleet.id, Goal.FIRST_MEMBER, lacking)
            if fleet.hosts:
                builder.awaits(Topic.READING)
                return True
            return bool(fleet.job) and not comes_first(builder, fleet)
    failed = [m for m in there if m.phase is Phase.FAILED]
    if len(fleet.members) < fleet.size or failed:
        _begin_one(builder, fleet, failed)
        return False
    if (
        all(m.proof.proven_s is not None and m.phase not in ABSENT for m in there)
        and len(there) == fleet.size
    ):
        _set(builder, fleet, "every member takes jobs", state=FleetState.READY, ready_s=builder.now_s)
    return True


def _hopeless(builder: PlanBuilder, fleet: Fleet, there: list[ManagedNode]) -> Reason | None:
    """Return why not all of it will ever be, if it will not."""
    for node in there:
        if node.phase is Phase.GIVEN_UP:
            failures, said = node.retry.failures, Words(node.reason)
            return because(Code.MEMBER_GIVEN_UP, node=node.name, failures=failures, said=said)
    known = {node.name for node in there}
    lost = [name for name in fleet.members if name not in known]
    if lost:
        return because(Code.MEMBER_REMOVED, node=lost[0])
    scale = builder.policies.scale
    # So long that every member could fail as often as it may.
    longest_s = scale.boot_within_s + scale.backoff_s(scale.give_up_after)
    within_s = scale.give_up_after * longest_s
    since_s = fleet.all_begun_s
    if since_s is None:
        # Those that are there wait for the rest, and keep others from their room.
        since_s = max((m.created_s for m in there), default=None)
        within_s += HOUR_S  # for so long limits.creates_per_hour may let none begin
    if since_s is None:
        return None
    if builder.now_s >= since_s + within_s:
        return because(Code.FLEET_LATE, within_s=builder.now_s - (fleet.begun_s or since_s))
    builder.wake_at(since_s + within_s)
    return None


def _lacking(builder: PlanBuilder, fleet: Fleet) -> Reason | None:
    """Return what is missing now to make all of it, if anything."""
    size, image, most = fleet.size, image_of_order(builder, fleet), builder.policies.limits.max_instances
    if present(builder.world) + size > most:
        return limit("limits.max_instances", most)
    if busy := builder.budget_full(size):
        return busy
    few = full(builder, image, size, fleet.flavour)
    if few:
        return few
    names = sum(1 for _ in free_names(builder, fleet))
    if names < size:
        return because(Code.FEW_NAMES, names=names, size=size)
    if fleet.hosts:
        return next(filter(None, (_lacking_there(builder, fleet, host) for host in set(fleet.hosts))), None)
    builder.awaits(Topic.ROOM)
    pays_s = builder.policies.gaps.boot_pays_s
    rooms, why_not = open_hosts(builder.world, builder.policies, pays_s, need_of_member(builder, fleet))
    places = places_in(fleet.company, [places_on(builder, fleet, host) for host, _ in rooms])
    if places < size:
        few = because(Code.FEW_PLACES, places=places, size=size)
        return few.plus(why=no_host(why_not.values())) if why_not else few
    return None


def _lacking_there(builder: PlanBuilder, fleet: Fleet, host: str) -> Reason | None:
    """Return what a host of the job lacks for all that it is to have there."""
    shape, many = fleet.flavour or builder.policies.instances.flavour, fleet.hosts.count(host)
    loan = own_loan(builder.world, fleet.job)
    shared_mb = 0 if loan is None else loan.region_mb
    all_there = Resources(shape.cpus * many, shape.memory_mb * many + shared_mb)
    full = _no_room_there(builder, host, all_there)
    return full or numa_full(builder.world, host, builder.policies, shape.resources, many, kept=False)


def _no_room_there(builder: PlanBuilder, host: str, shape: Resources) -> Reason | None:
    """Return why a host of the job has no room for that within its allocation, if it has none."""
    why = out_of_reach(builder.world, host, builder.policies.limits)
    if why is not None:
        return why
    left = room(builder.world, host, builder.policies, kept=False)
    return None if shape.fits(left) else host_full(host, left, shape)


def _shape(builder: PlanBuilder, fleet: Fleet, host: str) -> Flavour | None:
    """Return a member's shape there: a job's own takes that of the closest parent that covers it.

    A clone is as large as its parent, and to boot one for each size that a job asks for takes longer
    than to boot a machine.
    """
    wanted, image, known = fleet.flavour, image_of_order(builder, fleet), builder.world.hosts[host]
    if wanted is None or not fleet.job or clone_method(builder, image) is not CloneMethod.INSTANT:
        return wanted
    covering = [p for p in known.parents or () if p.made and p.image == image and p.covers(wanted)]
    if fleet.hosts:  # more than the job asks for is more than it may have got there
        covering = [p for p in covering if (p.cpus, p.memory_mb) == (wanted.cpus, wanted.memory_mb)]
    closest = min(covering, key=lambda p: (p.memory_mb, p.cpus, p.disk_gb), default=None)
    if closest is None or not places_now(builder.world, host, builder.policies, closest.resources):
        return wanted
    shape = (closest.cpus, closest.memory_mb, closest.disk_gb)
    return replace(wanted, **dict(zip(("cpus", "memory_mb", "disk_gb"), shape, strict=True)))


def _begin_one(builder: PlanBuilder, fleet: Fleet, failed: list[ManagedNode]) -> None:
    """Begin one member; the next step begins the next one."""
    image = image_of_order(builder, fleet)
    builder.awaits(Topic.BOOTS)
    bar = may_create(builder.world, builder.policies.limits) or unplaced(builder)
    bar = bar or too_soon(builder, image) or builder.budget_full()
    builder.wake_at(hour_over_s(builder))
    host, why_not = _host_for(builder, fleet, failed)
    if bar or host is None:
        builder.refuse(fleet.id, Goal.FURTHER_MEMBER, bar or no_host(why_not.values()))
        return
    if len(fleet.members) < fleet.size:
        free = next(free_names(builder, fleet), None)
        if free is None:
            builder.refuse(fleet.id, Goal.FURTHER_MEMBER, because(Code.NO_NAME))
            return
        known = builder.world.managed.get(free[0])
        # What an order's members fail of may be its own doing: of their names' past only what stands counts.
        past = Retry() if known is None else Retry(blamed=known.retry.blamed)
        _begin(builder, fleet, *free, host, past)
        last = len(fleet.members) + 1 == fleet.size
        _set(
            builder,
            fleet,
            f"{free[0]} was begun",
            state=FleetState.MAKING,
            members=(*fleet.members, free[0]),
            begun_s=builder.now_s if fleet.begun_s is None else fleet.begun_s,
            all_begun_s=builder.now_s if last else None,
        )
        return
    for node in failed:
        next_s = node.retry.not_before_s
        if builder.world.places_of(node.name):
            continue  # what is left of its last life is removed first
        if next_s is None or builder.now_s >= next_s:
            again = node.host if fleet.hosts else host
            past = Retry(node.retry.failures, blamed=node.retry.blamed)
            _begin(builder, fleet, node.name, node.address, again, past)
            _set(builder, fleet, f"{node.name} is tried again", retries=fleet.retries + 1)
            return
        builder.wake_at(next_s)


def _host_for(
    builder: PlanBuilder, fleet: Fleet, failed: list[ManagedNode]
) -> tuple[str | None, dict[str, Reason]]:
    """Return the host of its next member; or None, and why, for each host that was looked at."""
    if not fleet.hosts:
        unfit = partial(_no_company, builder, fleet) if fleet.company else None
        return find_open_host(builder, need=need_of_member(builder, fleet), unfit=unfit)
    place = len(fleet.members)
    host = fleet.hosts[place] if place < fleet.size else failed[0].host
    shape = fleet.flavour or builder.policies.instances.flavour
    why = _no_room_there(builder, host, shape.resources)
    why = why or numa_full(builder.world, host, builder.policies, shape.resources, kept=False)
    return (host, {}) if why is None else (None, {host: why})


def _no_company(builder: PlanBuilder, fleet: Fleet, host: str) -> Reason | None:
    """Return why no further member may be there, if its fellows are where they should not be then."""
    there = {m.host for m in members(builder, fleet) if m.phase not in ABSENT}
    if fleet.company is Company.SPREAD:
        return because(Code.FELLOWS_APART, host=host) if host in there else None
    if there:
        return None if host in there else because(Code.FELLOWS_TOGETHER, host=min(there))
    places = places_on(builder, fleet, host)
    return None if places >= fleet.size else because(Code.FEW_PLACES, places=places, size=fleet.size)


def _begin(builder: PlanBuilder, fleet: Fleet, name: str, address: str, host: str, past: Retry) -> None:
    reason = f"a member of {fleet.id}"
    generation = builder.world.generations.get(name, 0) + 1
    now_s = builder.now_s
    node = ManagedNode(
        name,
        address,
        host,
        generation,
        Phase.BOOTING,
        now_s,
        now_s,
        reason=reason,
        retry=past,
        fleet=fleet.id,
        image=own_image(builder.policies, image_of_order(builder, fleet)),
        flavour=_shape(builder, fleet, host) or builder.policies.instances.flavour,
        job=fleet.job,
        inside=bool(fleet.hosts),
    )
    builder.add(SetNode(node, reason))


# --- going -------------------------------------------------------------------------------------


def _shrink(builder: PlanBuilder, fleet: Fleet) -> None:
    """Let all members go: those at work when their jobs have ended, the others at once."""
    there = members(builder, fleet)
    if not there:
        end = FleetState.FAILED if fleet.state is FleetState.UNDOING else FleetState.GONE
        _set(builder, fleet, fleet.reason, state=end, over_s=builder.now_s)
        return
    begun, most = 0, builder.policies.limits.removals_at_once
    for node in there:
        busy = begun + removals(builder.world, node.host, Phase.DRAINING, Phase.REMOVING)
        if node.phase is Phase.GIVEN_UP:
            keep_failed_name(builder, node, f"{fleet.id} goes: {node.reason}")
        elif node.phase is Phase.FAILED:
            builder.forget(node, f"{fleet.id} goes")
        elif node.phase not in (Phase.BOOTING, Phase.READY) or busy >= most:
            continue
        elif node.phase is Phase.BOOTING:
            begun += 1
            clear(builder, node, f"{fleet.id} goes: {fleet.reason}")
        elif node.idle_since_s is not None:
            begun += 1
            builder.become(node, Phase.DRAINING, f"{fleet.id} goes", stop=NodeStop(float(builder.now_s)))
        else:
            builder.refuse(node.name, Goal.REMOVAL, because(Code.JOB_RUNS))


def _set(builder: PlanBuilder, fleet: Fleet, reason: str, **fields: object) -> None:
    builder.add(SetFleet(replace(fleet, reason=reason, **fields), reason))  # type: ignore[arg-type]


def makes_parents(policies: PolicySet) -> bool:
    """Return True if clones are made from parents by these policies, on whatever host."""
    instant = (Choice.INSTANT, Choice.AUTO)
    rules = policies.environments.rules
    return policies.cloning.method in instant or any(
        rule.warm_parents or rule.method in instant for rule in rules
    )


def step_parents(builder: PlanBuilder, host: str) -> None:
    """Give up what is being made on a host that is wanted; make what is missing elsewhere."""
    world = builder.world
    known = world.hosts.get(host)
    if known is None or known.parents is None or not known.reachable:
        return
    taken = why_taken(builder, host)
    if taken:
        if world.parents_starting(host):
            builder.do(CancelParents(subject=host, generation=0, reason=sentence(taken)))
        return
    flavour = builder.policies.instances.flavour
    for rule in builder.policies.environments.rules:
        if rule.warm_parents and not known.has_parent(rule.name, flavour):
            _make(builder, host, rule.name)
            return  # one at a time on a host


def _make(builder: PlanBuilder, host: str, image: str) -> None:
    """Make a parent where, and when, an instance could be made."""
    world, policies = builder.world, builder.policies
    if world.parents_starting(host):
        return
    bar = may_create(world, policies.limits)
    if not bar:
        builder.awaits(Topic.ROOM)
        bar = why_not_on(world, policies, host, policies.gaps.boot_pays_s)
    if bar:
        builder.awaits(Topic.BOOTS)
        builder.wake_at(hour_over_s(builder))
        builder.refuse(host, Goal.PARENT, bar, image)
        return
    action = MakeParent(
        subject=host,
        generation=0,
        reason=f"{image} keeps one ready",
        image=image,
        flavour=policies.instances.flavour,
    )
    failed = builder.operation(action)
    if failed is not None:
        # As long as after as many failures of one instance: each try boots a guest.
        again_s = failed.since_s + policies.scale.backoff_s(failed.attempts)
        if builder.now_s < again_s:
            builder.refuse(host, Goal.PARENT, call_failed(failed.problem), image)
            builder.wake_at(again_s)
            return
    if builder.do(action) is Progress.FINAL and failed is not None:
        builder.refuse(host, Goal.PARENT, call_failed(failed.problem), image)
