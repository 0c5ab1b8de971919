"""How many instances there should be: new ones for waiting jobs, fewer when they idle or are reclaimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from backfill.core.model.cluster import Job
from backfill.core.model.lifecycle import ManagedNode, NodeStop, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.refusals import Code, Goal, Reason, Refusal, because, limit, refusal
from backfill.core.picture import Picture
from backfill.core.policies.demand import Asked, Need, QueueNeeds
from backfill.core.policy import PolicySet
from backfill.core.reconcile.admission import (
    MINUTE_S,
    Want,
    find_open_host,
    image_of,
    not_admitted,
    own_image,
    serves,
    unheard_nodes,
    wants,
)
from backfill.core.reconcile.builder import PlanBuilder, answers, budgets_change_s, removals
from backfill.core.reconcile.condemn import clear
from backfill.core.reconcile.making_room import idle_for_own, idle_for_stopped, none_left_for_new
from backfill.core.reconcile.names import failing, free_slot, look_at_given_up
from backfill.core.reconcile.own_machines import asks, first_of_all, kinds_waiting, lacks_room
from backfill.core.reconcile.pressure import most_disruptions
from backfill.core.reconcile.reasons import asked_back, beyond_room
from backfill.core.room import NodeNeed, crowded
from backfill.core.tables import Making


def plan_scale(builder: PlanBuilder) -> None:
    """Compare demand with supply, then make one instance at a time or let idle ones go."""
    policies = builder.policies
    if builder.blind:
        return
    if look_at_given_up(builder):
        return  # the next step goes on
    _reclaim(builder)
    leave = set[str]()  # names of those that are let go: whyever, all count for the same limits
    _let_forgotten_go(builder, leave)
    _let_shut_go(builder, leave)
    _make_way(builder, leave)
    wanted = _wanted(builder)
    _tell_apart(builder, wanted)
    short = _in_order(builder, [want for want in wanted if want.lacking > 0])
    spare = _spare(builder, wanted)
    own = idle_for_own(builder, spare) if not short or first_of_all(builder) else []
    if own:
        _let_go(builder, leave, own, "a job's own machines need its room", after_s=0.0)
    elif not short and _await_room(builder):
        _shrink(builder, leave, spare, in_need=True)
    elif not short and _idle_count(builder) < policies.scale.warm:
        _grow(builder, wanted[-1])
    elif not any(_grow(builder, want) for want in short):
        _shrink(builder, leave, spare, in_need=bool(short))


def _in_order(builder: PlanBuilder, short: list[Want]) -> list[Want]:
    """Put last what has just failed: whether the site is well others show, of another image or device."""
    if len(short) < 2:
        return short
    failed_s = failing(builder)
    return sorted(short, key=lambda want: failed_s.get(_kind(builder.policies, want), 0.0))


def _kind(policies: PolicySet, want: Want) -> Making:
    image = own_image(policies, want.image or policies.instances.image)
    return image, (want.device,) if want.device else ()


def _let_forgotten_go(builder: PlanBuilder, leave: set[str]) -> None:
    """Let idle ones go that were taken over and that Slurm keeps for a job of which no record tells.

    They take no job that waits, and their reservation ends with them. One whose owner comes stays.
    """
    world, policies = builder.world, builder.policies
    if not world.ready.kept:
        return
    private, forgotten = policies.environments.private, []
    for node in (world.managed[name] for name in sorted(world.ready.kept)):
        stays = not node.found or node.job or image_of(policies, node) in private
        if not stays and node.host in world.hosts:  # as in _idle
            forgotten.append(node)
    _let_go(builder, leave, forgotten, "taken over and reserved for a job of which no record tells")


def _let_shut_go(builder: PlanBuilder, leave: set[str]) -> None:
    """Let idle ones go that take no job that waits: DOWN, whoever set them so, or drained by Slurm itself.

    That word of Slurm's is not touched; the next life of the name begins without it. Whom people have
    drained is not idle.
    """
    world, fallen = builder.world, []
    if not world.ready.shut:
        return
    drained = [node for node in _idle(builder) if node.name in world.ready.shut - world.ready.down]
    for name in sorted(world.ready.down):
        sure_s = world.standing_since_s(name) + builder.policies.limits.sure_after_s
        if builder.now_s < sure_s:
            builder.wake_at(sure_s)
        elif world.managed[name].host in world.hosts:
            fallen.append(world.managed[name])
    _let_go(builder, leave, fallen, "Slurm shows it as DOWN")
    _let_go(builder, leave, drained, "Slurm has drained it")


def _await_room(builder: PlanBuilder) -> bool:
    """Return True if machines of a job's own find no room that idle instances have."""
    return any(lacks_room(builder, fleet) for fleet in builder.world.fleets.values())


def _wanted(builder: PlanBuilder) -> list[Want]:
    """Return what the queue wants, and say for which of its jobs no instance is made."""
    world, policies = builder.world, builder.policies
    needs = _needs(world, policies)
    builder.wake_at(needs.until_s)
    builder.refuse_all(needs.refusals)
    return wants(world, policies, needs.kinds, unheard_nodes(builder))


def _tell_apart(builder: PlanBuilder, wanted: Sequence[Want]) -> None:
    """Say which jobs find no place although enough CPUs are free: not in one piece.

    While a new instance boots for them they have one.
    """
    given = bool(builder.world.ready.memory_is_given)
    for want in wanted:
        for share in want.apart:
            why = because(
                Code.JOB_APART,
                cpus=share.cpus,
                memory_mb=share.memory_mb,
                whole=int(given and not share.memory_mb),
                instances=share.nodes,
                free_cpus=want.free,
                alone=int(share.exclusive),
            )
            for job_id in sorted(job_id for ids in want.need.alike[share] for job_id in ids):
                builder.refuse(f"job {job_id}", Goal.INSTANCE, why)


def _needs(world: Picture, policies: PolicySet) -> QueueNeeds:
    """Count what the queue wants; kept from plan to plan as long as the same jobs count."""
    queue, index = world.queue, world.job_index
    alike = not (policies.environments.particular or policies.devices.scarce or policies.quotas.ceilings)
    running = tuple(_at_work(world)) if policies.quotas.ceilings else ()
    version = index.waiting_changes if alike else index.pending_changes, running
    known = queue.needs
    if known is not None and known.version == version and world.now_s < known.until_s:
        return known
    until_s, refused = _next_begin_s(policies, world), dict[str, Reason]()
    if alike:
        kinds = _alike(world, policies)
    else:
        pending = _admitted(world, policies, running, refused)
        kinds = _by_kind(policies, pending, world.now_s)
    queue.needs = QueueNeeds(version, until_s, kinds, _left_out(policies, kinds, refused))
    return queue.needs


def _alike(world: Picture, policies: PolicySet) -> dict[Asked, tuple[Need, str]]:
    """Count where nobody is left out and every job takes any instance."""
    waiting = kinds_waiting(world, policies)
    return {("", ""): (policies.demand.need_of(waiting, policies.instances.flavour, world.now_s), "")}


def _by_kind(policies: PolicySet, pending: Iterable[Job], now_s: float) -> dict[Asked, tuple[Need, str]]:
    """Count by what the jobs ask for."""
    asked: dict[Asked, list[Job]] = {("", ""): []}
    for job in pending:
        kind = policies.environments.asked(job), policies.devices.scarce_for(job)
        asked.setdefault(kind, []).append(job)
    found: dict[Asked, tuple[Need, str]] = {}
    for kind, jobs in asked.items():
        owners = {job.user for job in jobs} if kind[1] else set()
        need = policies.demand.need(jobs, policies.instances.flavour, now_s)
        found[kind] = need, owners.pop() if len(owners) == 1 else ""
    return found


def _left_out(
    policies: PolicySet, kinds: Mapping[Asked, tuple[Need, str]], refused: dict[str, Reason]
) -> tuple[Refusal, ...]:
    """Say for which jobs no instance is made: `refused`, and those that fit into none."""
    cpus, memory_mb = policies.instances.flavour.cpus, policies.instances.flavour.node_memory_mb
    too_big = because(Code.JOB_TOO_BIG, cpus=cpus, memory_mb=memory_mb, nodes=policies.demand.max_nodes)
    misfits = {job_id: too_big for need, _ in kinds.values() for job_id in need.misfits}
    return tuple(
        refusal(f"job {job_id}", Goal.INSTANCE, why) for job_id, why in {**refused, **misfits}.items()
    )


def _at_work(world: Picture) -> list[Job]:
    """Return the jobs that are at work on nodes of ours."""
    there = [name for name in world.managed if world.job_index.any_on(name)]
    return list({j.id: j for name in there for j in world.jobs_on(name) if j.active}.values())


def _next_begin_s(policies: PolicySet, world: Picture) -> float:
    """Return when a job that waits for its time begins to count; infinite where none does."""
    return policies.demand.next_begin_s(kinds_waiting(world, policies), world.now_s)


def waiting_low(world: Picture, policies: PolicySet) -> Iterator[Job]:
    """Pending jobs that count as low, by their partition or QOS, and get no machines of their own."""
    for job in _waiting_low(world, policies):
        if not asks(policies, job):
            yield job


def _waiting_low(world: Picture, policies: PolicySet) -> Iterator[Job]:
    priorities = policies.priorities
    yield from world.job_index.pending(priorities.low)
    if priorities.low_qos:
        others = world.job_index.partitions_waiting() - {*priorities.low, *priorities.high}
        yield from (j for j in world.job_index.pending(sorted(others)) if j.qos in priorities.low_qos)


def _admitted(
    world: Picture, policies: PolicySet, running: Iterable[Job], refused: dict[str, Reason]
) -> Iterable[Job]:
    """Return waiting jobs that catalogue and quotas let count; the others go into `refused`.

    Of a quota only jobs take a part that could start on an instance now.
    """
    waiting: Iterable[Job] = waiting_low(world, policies)
    if policies.environments.entries:
        waiting = list(policies.environments.admit(waiting, refused))
    if not policies.quotas.ceilings:
        return waiting
    demand, flavour = policies.demand, policies.instances.flavour
    for_room = [job for job in waiting if demand.waits_for_room(job, world.now_s)]
    admitted, above = policies.quotas.admit((j for j in for_room if demand.fits(j, flavour)), running)
    refused.update(above)
    return [*admitted, *(j for j in for_room if not demand.fits(j, flavour))]


def _idle(builder: PlanBuilder) -> list[ManagedNode]:
    """Ready nodes without jobs; a fleet's members stay as long as their fleet.

    Of a host that was not read since the start nobody knows what is there: its nodes stay.
    """
    world = builder.world
    return [node for name in world.ready.idle if (node := world.managed[name]).host in world.hosts]


def _idle_count(builder: PlanBuilder) -> int:
    ready = builder.world.ready
    return len(ready.idle) - len(ready.shut) + builder.world.fleet.count_in(Phase.BOOTING)


def _grow(builder: PlanBuilder, want: Want) -> bool:
    """Begin one instance; the next step begins the next one."""
    policies = builder.policies
    reason = f"{want.need.jobs} waiting jobs could use {want.lacking} more CPUs"
    if want.apart:
        reason = f"{reason}, {_of_no_use(want)}"
    if want.lacking <= 0:
        reason = f"scale.warm = {policies.scale.warm} idle instances are wanted"
    image = want.image or policies.instances.image
    what, about = _goal(want)
    bar = not_admitted(builder, image) or _ramp(builder) or _own_first(builder)
    bar = bar or none_left_for_new(builder)
    if bar:
        builder.refuse("cluster", what, bar, about)
        return False
    shortest_s = want.need.shortest_s if want.need.jobs else 0.0
    host, why_not = find_open_host(builder, shortest_s, _needed(policies, want))
    if host is None:
        for closed, why in why_not.items():
            builder.refuse(closed, what, why, about)
        return False
    kind = _kind(policies, want)
    slot = free_slot(builder, image, kind, what, about)
    if slot is None:
        return False
    name, address, retry = slot
    now_s = float(builder.now_s)
    node = ManagedNode(
        name,
        address,
        host,
        generation=builder.world.generations.get(name, 0) + 1,
        phase=Phase.BOOTING,
        since_s=now_s,
        created_s=now_s,
        reason=reason,
        retry=retry,
        image=kind[0],
        devices=kind[1],
        flavour=policies.instances.flavour,
    )
    builder.add(SetNode(node, reason))
    return True


def _of_no_use(want: Want) -> str:
    """Say why not enough of the free CPUs are for jobs that lack some."""
    alone = [share for share in want.apart if share.exclusive]
    free = f"({want.free} CPUs are free in all)"
    if not alone:
        return f"in one piece: no instance has enough left {free}"
    if len(alone) < len(want.apart):
        return f"some in one piece, some on empty instances: none has enough {free}"
    wide = any(share.nodes > 1 for share in alone)
    return f"on empty instances: {'too few of these have' if wide else 'none of these has'} enough {free}"


def _goal(want: Want) -> tuple[Goal, str]:
    """Return what a refusal names as wanted, and of which kind."""
    if want.device:
        return Goal.NEW_INSTANCE_WITH, want.device
    return (Goal.NEW_INSTANCE_OF, want.image) if want.image else (Goal.NEW_INSTANCE, "")


def _needed(policies: PolicySet, want: Want) -> NodeNeed:
    """Return what its host must lend to the instance."""
    device = (want.device,)
    # The instances of a job over several nodes may share a host.
    sharing = policies.devices.sharing(device if want.need.nodes <= 1 else ())
    functions, region_mb = policies.devices.functions(device), policies.devices.region_mb(want.device)
    image = policies.environments.somewhere(want.image)
    return NodeNeed(functions, region_mb, sharing, owner=want.owner, image=image)


def _own_first(builder: PlanBuilder) -> Reason | None:
    """Return which job's own machines are made before anything else, if any are."""
    first = first_of_all(builder)
    if first is None:
        return None
    passed_s = builder.policies.own_machines.passed_over_s
    return because(Code.MACHINES_FIRST, job=first.job, passed_s=passed_s)


def _ramp(builder: PlanBuilder) -> Reason | None:
    """Return why the ramp lets no further instance begin now, if it lets none."""
    scale, world = builder.policies.scale, builder.world
    if not scale.grow_per_min:
        return None
    why = scale.may_grow(world.created_lately(MINUTE_S))
    if why:
        builder.wake_at(world.fleet.created_back_s(scale.grow_per_min) + MINUTE_S)
    return why


def _spare(builder: PlanBuilder, wanted: Sequence[Want]) -> list[ManagedNode]:
    """Return idle ones that no waiting job would take, the longest idle first."""
    awaited, policies = [want for want in wanted if want.need.cpus > 0], builder.policies
    idle = [m for m in _idle(builder) if not any(serves(policies, m, want) for want in awaited)]
    return sorted(idle, key=lambda m: (m.idle_since_s or 0.0, m.name))


def _shrink(builder: PlanBuilder, leave: set[str], spare: Sequence[ManagedNode], *, in_need: bool) -> None:
    """Let the longest idle ones go, as far as `warm` does not want them.

    `in_need`: other kinds could not be made for want of something that these may have.
    """
    warm = 0 if in_need else builder.policies.scale.warm
    spare = [m for m in spare if m.name not in builder.world.ready.shut]  # none of these is warm
    _let_go(builder, leave, spare[: max(0, len(spare) - warm)], "nobody waits")


def _make_way(builder: PlanBuilder, leave: set[str]) -> None:
    """Let idle ones go whose room stopped work waits for: `warm` keeps none of these.

    On its own host it can wait until they have been idle for long. Work whose patience may be over
    before its host is free again cannot: it goes on at theirs.
    """
    if not builder.world.fleet.count_in(Phase.PARKED):
        return
    found = [m for m in _idle(builder) if m.idle_since_s is not None and _in_the_way(builder, m)]
    _let_go(builder, leave, sorted(found, key=lambda m: m.name), "stopped work needs its room")
    going = idle_for_stopped(builder, _idle(builder))
    _let_go(builder, leave, going, "stopped work that can hardly wait needs its room", after_s=0.0)


def _in_the_way(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if stopped work has no room on its host beside the node."""
    world, policies = builder.world, builder.policies
    stopped = (m for m in world.fleet.managed_on(node.host) if m.phase is Phase.PARKED)
    return any(crowded(world, m, builder.instance(m), policies) for m in stopped)


def _let_go(
    builder: PlanBuilder,
    leave: set[str],
    nodes: Sequence[ManagedNode],
    why: str,
    after_s: float | None = None,
) -> None:
    """Let these go one after the other once they have been idle for long, as quickly as limits allow.

    `leave`: who goes already. `after_s`: how long that is; None: `scale.idle_s`.
    """
    scale, limits = builder.policies.scale, builder.policies.limits
    if not nodes:
        return
    long_s = scale.idle_s if after_s is None else after_s
    disrupted = builder.world.fleet.count_in(Phase.DRAINING, Phase.REMOVING)
    most = most_disruptions(builder.world, builder.policies)
    leaving = builder.world.fleet.left_since(builder.now_s - MINUTE_S) if scale.shrink_per_min else 0
    for node in sorted(nodes, key=lambda m: not answers(builder.world, m.host)):
        due_s = (node.idle_since_s or 0.0) + long_s
        if node.name in leave:
            continue
        if builder.now_s < due_s:
            builder.wake_at(due_s)
            continue
        begun = len(leave)
        removing = begun + removals(builder.world, node.host, Phase.DRAINING, Phase.REMOVING)
        if removing >= limits.removals_at_once:
            at_once = limit("limits.removals_at_once", limits.removals_at_once)
            builder.refuse(node.name, Goal.REMOVAL, at_once)
            return
        if most is not None and disrupted + begun >= most:
            builder.refuse(node.name, Goal.REMOVAL, because(Code.BUDGET_DISRUPTIONS, most=most))
            builder.wake_at(budgets_change_s(builder.world, builder.policies))
            return
        slow = scale.may_shrink(leaving + begun)
        if slow:
            builder.refuse(node.name, Goal.REMOVAL, slow)
            builder.wake_at(builder.world.fleet.left_back_s(scale.shrink_per_min) + MINUTE_S)
            return
        leave.add(node.name)
        reason = f"idle for {long_s:.0f} s, {why}" if long_s else f"idle, and {why}"
        builder.become(node, Phase.DRAINING, reason, stop=NodeStop(float(builder.now_s)))


# --- room that is wanted back --------------------------------------------------------------------


_LEAVING = (Phase.DRAINING, Phase.EVICTING)


def _reclaim(builder: PlanBuilder) -> None:
    """On every burst host: as many instances go as no longer fit, or as its owner names."""
    burst = builder.world.burst
    for name in builder.policies.hosts if burst else ():
        if name in burst and builder.world.hosts[name].reachable and name not in builder.world.closed:
            _fit(builder, name)


def _fit(builder: PlanBuilder, host: str) -> None:
    nodes = builder.world.fleet.managed_on(host)
    leaving = sum(1 for m in nodes if m.phase in _LEAVING)
    named = {m.name: why for m in nodes if (why := asked_back(builder, m))}
    too_many, why = beyond_room(builder, host)
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
