"""Room for stopped work that can hardly wait: who needs it, and which nodes give theirs."""

from __future__ import annotations

from collections import Counter

from backfill.core.lending import NodeNeed, need_of
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.placement import closed, count_on, open_hosts, too_short
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, kept_in_memory, ladder_of
from backfill.core.reconcile.course import in_vain, likely_to_end, may_end
from backfill.core.room import places_now, room

# So likely one of them ends in time: no more nodes than that are closed to new jobs.
_SURE = 0.9


def seeking_room(builder: PlanBuilder) -> list[ManagedNode]:
    """Return stopped nodes whose jobs may not live to see their host free, and could go on elsewhere."""
    parked = (builder.world.managed[name] for name in sorted(builder.world.fleet.in_phase(Phase.PARKED)))
    return [node for node in parked if _seeks_room(builder, node)]


def _seeks_room(builder: PlanBuilder, node: ManagedNode) -> bool:
    if all(held.patience is None for held in node.held):
        return False
    builder.awaits(Topic.READING)
    stays = node.order is not None or node.condemned is not None or node.name in builder.world.closed
    if stays or not builder.taken_from(node) or not ladder_of(builder.policies, node).migrates:
        return False
    kept = kept_in_memory(builder.instance(node)) or builder.budget_full()
    return kept is None and in_vain(builder, node, node.held, doubtful=True) is not None


def idle_for_stopped(builder: PlanBuilder, idle: list[ManagedNode]) -> list[ManagedNode]:
    """Return which idle nodes have the room that stopped work needs, beyond those that go already."""
    needs = _lacking(builder, seeking_room(builder))
    longest = sorted(idle, key=lambda m: (m.idle_since_s or 0.0, m.name))
    return [m for m in longest if any(_fits_instead(builder, m, need) for need in needs)][: len(needs)]


def _lacking(builder: PlanBuilder, seeking: list[ManagedNode]) -> list[NodeNeed]:
    """Return what those need for whom no room is free, or just being left.

    One whose memory is on its way to disk moves only then: until it does, its room stays free.
    """
    if not seeking:
        return []
    builder.awaits(Topic.ROOM)
    world = builder.world
    taken, lacking = Counter[str](), list[NodeNeed]()
    for need in (need_of(world, builder.policies, node) for node in seeking):
        host = _host_for(builder, need, taken)
        if host is None:
            lacking.append(need)
        else:
            taken[host] += 1
    going = [world.managed[name] for name in world.fleet.in_phase(Phase.DRAINING, Phase.REMOVING)]
    return lacking[sum(1 for node in going if not builder.taken(node.host)) :]


def _host_for(builder: PlanBuilder, need: NodeNeed, taken: Counter[str]) -> str | None:
    """Return a host with a free place; `taken`: how many of its places others have."""
    world, policies = builder.world, builder.policies
    shape, most = need.shape or policies.instances.flavour.resources, policies.limits.max_per_host
    for host, _ in open_hosts(world, policies, policies.gaps.return_pays_s, need)[0]:
        if min(places_now(world, host, policies, shape), most - count_on(world, host)) > taken[host]:
            return host
    return None


def none_left_for_new(builder: PlanBuilder) -> Reason | None:
    """Return that stopped work, perhaps still on its way to disk, will need all the room there is, if so."""
    seeking = seeking_room(builder)
    if not seeking:
        return None
    builder.awaits(Topic.ROOM)
    rooms, _ = open_hosts(builder.world, builder.policies, builder.policies.gaps.return_pays_s)
    return None if len(rooms) > len(seeking) else because(Code.ROOM_FOR_STOPPED, count=len(seeking))


def promised_rooms(builder: PlanBuilder) -> frozenset[str]:
    """Return names of nodes at work that take no new jobs: whose job ends first gives its room.

    Slurm would give it to the next job in its queue at once. Those that are closed already stay so, also
    once their job has ended: opened for a moment until it is let go, the node would get that job.
    """
    world = builder.world
    seeking = seeking_room(builder)
    needs = _lacking(builder, seeking)
    if not needs:
        return frozenset()
    builder.awaits(Topic.TIME)
    within_s = max(_left_s(builder, node) for node in seeking)
    likely: list[tuple[bool, float, str, float]] = []
    for name in world.fleet.in_phase(Phase.READY):
        node, seen = world.managed[name], world.nodes.get(name)
        if seen is None or not (world.job_index.any_on(name) or seen.drained_by_us):
            continue  # nobody's job there ends
        share, half_s = likely_to_end(builder, node, within_s)
        if share > 0.0 and any(_fits_instead(builder, node, need) for need in needs):
            likely.append((not seen.drained_by_us, half_s, name, share))
    found: list[str] = []
    shares: list[float] = []
    for *_, name, share in sorted(likely):
        if may_end(shares, len(needs)) >= _SURE:
            break
        found.append(name)
        shares.append(share)
    return frozenset(found)


def promised(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return that the node takes no new jobs because its room is for stopped work next, if so."""
    return because(Code.ROOM_PROMISED) if node.name in builder.world.queue.promised else None


def _left_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """Return for how long the jobs on a stopped node can still wait."""
    over_s = min(held.patience.over_s for held in node.held if held.patience is not None)
    return max(0.0, over_s - builder.now_s)


def _fits_instead(builder: PlanBuilder, node: ManagedNode, need: NodeNeed) -> bool:
    """Return True if what is needed would find room on the host of a node once that has gone."""
    world, policies = builder.world, builder.policies
    if node.job or node.fleet or need.functions or need.region_mb or need.network:
        return False  # somebody's own; or it takes more along than its CPUs and memory
    shut = closed(world, node.host, policies.limits)
    if shut or too_short(world, node.host, policies, policies.gaps.return_pays_s):
        return False
    there = room(world, node.host, policies) + policies.instances.flavour_of(node).resources
    shape = need.shape or policies.instances.flavour.resources
    return shape.cpus <= there.cpus and shape.memory_mb <= there.memory_mb
