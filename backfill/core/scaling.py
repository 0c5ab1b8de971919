"""How many instances there should be: new ones for waiting jobs, fewer when they idle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from backfill.core.admission import MINUTE_S, not_admitted, open_rooms
from backfill.core.cluster import Job
from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.placement import DeviceNeed, pick
from backfill.core.plan import SetNode
from backfill.core.policies.demand import Need
from backfill.core.policy import PolicySet
from backfill.core.pressure import budgets_change_s, most_disruptions
from backfill.core.reclaim import plan_reclaim
from backfill.core.wants import Want, own_image, serves, want_of_all, wants
from backfill.core.world import World


def plan_scale(draft: Draft) -> None:
    """Compare demand with supply, then make one instance at a time or let idle ones go."""
    policies = draft.policies
    if draft.blind:
        return
    plan_reclaim(draft)
    wanted = _wanted(draft)
    for job_id in (job_id for want in wanted for job_id in want.need.misfits):
        flavour = policies.instances.flavour
        draft.refuse(
            f"job {job_id}",
            "an instance",
            f"it wants more than one instance offers ({flavour.cpus} CPUs, "
            f"{flavour.node_memory_mb} MB on one node), or more than demand.max_nodes = "
            f"{policies.demand.max_nodes} nodes",
        )
    short = [want for want in wanted if want.lacking > 0]
    if not short and _idle_count(draft) < policies.scale.warm:
        _grow(draft, wanted[-1])
    elif not any(_grow(draft, want) for want in short):
        _shrink(draft, wanted, in_need=bool(short))


def _wanted(draft: Draft) -> list[Want]:
    """What the queue wants; kept from plan to plan where all of its jobs count alike."""
    policies = draft.policies
    alike = not (policies.environments.particular or policies.devices.scarce)
    if alike and not policies.quotas.ceilings:
        need = draft.world.keep("need", partial(_need_of_all, policies))
        return [want_of_all(draft.world, policies, need)]
    pending = _admitted(draft)
    return wants(draft.world, policies, pending)


def _need_of_all(policies: PolicySet, world: World) -> Need:
    """What the queue could use where nobody is left out."""
    return policies.demand.need_of(_kinds_waiting(world, policies), policies.instances.flavour, world.now_s)


def _kinds_waiting(world: World, policies: PolicySet) -> Iterator[tuple[Job, Collection[str]]]:
    """Pending jobs that count as low, a whole kind at a time: the queue may be very long."""
    priorities = policies.priorities
    yield from world.kinds_pending(priorities.low)
    if priorities.low_qos:
        others = sorted(world.partitions_waiting - {*priorities.low, *priorities.high})
        kinds = world.kinds_pending(others)
        yield from (kind for kind in kinds if kind[0].qos in priorities.low_qos)


def waiting_low(world: World, policies: PolicySet) -> Iterator[Job]:
    """Pending jobs that count as low: by their partition, or by their QOS."""
    priorities = policies.priorities
    yield from world.pending(priorities.low)
    if priorities.low_qos:
        others = world.partitions_waiting - {*priorities.low, *priorities.high}
        yield from (j for j in world.pending(sorted(others)) if j.qos in priorities.low_qos)


def _admitted(draft: Draft) -> Iterable[Job]:
    """The waiting jobs that the catalogue and the quotas let count."""
    quotas, world = draft.policies.quotas, draft.world
    waiting: Iterable[Job] = waiting_low(world, draft.policies)
    if draft.policies.environments.entries:
        unwelcome: dict[str, str] = {}
        waiting = list(draft.policies.environments.admit(waiting, unwelcome))
        for job_id, reason in unwelcome.items():
            draft.refuse(f"job {job_id}", "an instance", reason)
    if not quotas.ceilings:
        return waiting
    running = {j.id: j for m in world.managed.values() for j in world.jobs_on(m.name) if j.active}
    admitted, refused = quotas.admit(waiting, running.values())
    for job_id, reason in refused.items():
        draft.refuse(f"job {job_id}", "an instance", reason)
    return admitted


def _idle(draft: Draft) -> list[ManagedNode]:
    """Ready nodes without jobs; a fleet's members stay as long as their fleet."""
    return [draft.world.managed[name] for name in draft.world.ready.idle]


def _idle_count(draft: Draft) -> int:
    return draft.world.ready.idle_count + draft.world.count_in(Phase.BOOTING)


def _grow(draft: Draft, want: Want) -> bool:
    """Begin one instance; the next cycle, which follows at once, begins the next one."""
    policies = draft.policies
    reason = f"{want.need.jobs} waiting jobs could use {want.lacking} more CPUs"
    if want.lacking <= 0:
        reason = f"scale.warm = {draft.policies.scale.warm} idle instances are wanted"
    image = want.image or draft.policies.instances.image
    what = f"a new instance of {want.image}" if want.image else "a new instance"
    if want.device:
        what = f"a new instance with {want.device}"
    device = (want.device,)
    # The instances of a job over several nodes may share a host.
    sharing = policies.devices.sharing(device if want.need.nodes <= 1 else ())
    functions, region_mb = policies.devices.functions(device), policies.devices.region_mb(device[0])
    needed = DeviceNeed(functions, region_mb, sharing, owner=want.owner)
    limit = not_admitted(draft, image) or _ramp(draft)
    if limit:
        draft.refuse("cluster", what, limit)
        return False
    shortest_s = want.need.shortest_s if want.need.jobs else 0.0
    rooms, why_not = open_rooms(draft, shortest_s, needed)
    if not rooms:
        for host, why in why_not.items():
            draft.refuse(host, what, why)
        return False
    slot = next(_free_slots(draft, image), None)
    if slot is None:
        draft.refuse("cluster", what, "no name is left in instances.names")
        return False
    host = pick(draft.world, draft.policies, rooms)
    if host in draft.targets:
        return True  # an instance moves there: the next plan, which follows at once, sees more
    name, address, failures = slot
    generation = draft.world.generations.get(name, 0) + 1
    now_s = float(draft.now_s)
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
        image=own_image(draft.policies, image),
        devices=(want.device,) if want.device else (),
    )
    draft.add(SetNode(node, reason))
    return True


def _ramp(draft: Draft) -> str:
    """Say why the ramp lets no further instance begin now, or return an empty text."""
    scale, world = draft.policies.scale, draft.world
    if not scale.grow_per_min:
        return ""
    why = scale.ramp(scale.grow_per_min, world.created_lately(MINUTE_S))
    if why:
        draft.wake_at(world.fleet.created_back_s(scale.grow_per_min) + MINUTE_S)
    return f"scale.grow_per_min: {why}" if why else ""


def _free_slots(draft: Draft, image: str) -> Iterator[tuple[str, str, int]]:
    """Names that nothing uses, inside Slurm or outside, with their address and past failures."""
    template, world = draft.policies.instances, draft.world
    reserved = draft.policies.environments.reserved
    for name, address in zip(template.names, template.addresses, strict=True):
        if reserved(name, image):
            continue
        node = world.managed.get(name)
        if node is None:
            if name not in world.nodes and not world.places_of(name):
                yield name, address, 0
        elif node.fleet:
            continue  # its fleet tries it again, or undoes everything
        elif _warns(draft, node):
            return  # the other names would only fail as well
        elif node.phase is Phase.FAILED:
            yield name, address, node.failures


def _warns(draft: Draft, node: ManagedNode) -> bool:
    """Whether this node has failed so that nothing should be begun now under any name."""
    if node.phase is Phase.FAILED and draft.now_s < node.not_before_s:
        draft.wake_at(node.not_before_s)
        draft.refuse(node.name, "another try", node.reason)
        return True
    if node.phase is Phase.GIVEN_UP:
        draft.refuse(node.name, "another try", node.reason)
        return all(node.since_s > other.proven_s for other in draft.world.managed.values())
    # How long to wait after this failure is known as soon as it is cleared away.
    return _boot_just_failed(draft, node)


def _boot_just_failed(draft: Draft, node: ManagedNode) -> bool:
    """Whether a boot has failed and is being cleared away, on a host where that can succeed."""
    host = draft.world.hosts.get(node.host)
    clearing = node.phase is Phase.REMOVING and node.fail and not node.proven_s
    return clearing and host is not None and host.reachable


def _shrink(draft: Draft, wanted: Sequence[Want], *, in_need: bool) -> None:
    """Let the longest idle ones go, as far as neither jobs nor `warm` want them.

    `in_need`: other kinds could not be made for want of something that these may have.
    """
    scale, limits = draft.policies.scale, draft.policies.limits
    awaited = [want for want in wanted if want.need.cpus > 0]
    if any(not (want.image or want.device) for want in awaited):
        return  # jobs that take any
    removing = draft.world.count_in(Phase.DRAINING, Phase.REMOVING)
    most = most_disruptions(draft.world, draft.policies)
    leaving = draft.world.fleet.left_since(draft.now_s - MINUTE_S) if scale.shrink_per_min else 0
    policies = draft.policies
    idle = [m for m in _idle(draft) if not any(serves(policies, m, want) for want in awaited)]
    idle.sort(key=lambda m: (m.idle_since_s, m.name))
    for node in idle[: max(0, len(idle) - (0 if in_need else scale.warm))]:
        due_s = node.idle_since_s + scale.idle_s
        if draft.now_s < due_s:
            draft.wake_at(due_s)
            continue
        if removing >= limits.removals_at_once:
            draft.refuse(node.name, "removal", f"limits.removals_at_once = {removing} is reached")
            return
        if most is not None and removing >= most:
            draft.refuse(node.name, "removal", f"a budget allows {most} at the same time now")
            draft.wake_at(budgets_change_s(draft.world, draft.policies))
            return
        slow = scale.ramp(scale.shrink_per_min, leaving)
        if slow:
            draft.refuse(node.name, "removal", f"scale.shrink_per_min: {slow}")
            draft.wake_at(draft.world.fleet.left_back_s(scale.shrink_per_min) + MINUTE_S)
            return
        leaving += 1
        removing += 1
        draft.become(node, Phase.DRAINING, f"idle for {scale.idle_s:.0f} s, nobody waits", drained_s=0.0)
