"""Where instances may go: which hosts are open, and how much room each has left."""

from __future__ import annotations

from functools import partial

from backfill.core.breakers import open_breaker
from backfill.core.cluster import NodeBase
from backfill.core.foresight import node_of, wanted_again_s
from backfill.core.guards import Limits, stale
from backfill.core.lifecycle import ABSENT, ON_CPU, ManagedNode, Phase
from backfill.core.policy import PolicySet
from backfill.core.quantities import NOTHING, Resources
from backfill.core.world import World

# PLANNED is among them only where it is not known for when.
_SHUT_FLAGS = frozenset({"MAINT", "RESERVED", "REBOOT_REQUESTED", "POWERED_DOWN", "FAIL"})


def closed(world: World, host: str, limits: Limits) -> str:
    """Say why no instance may come to `host` now, or return an empty text."""
    known = world.hosts.get(host)
    if known is None:
        return f"{host} has not been seen yet"
    if not known.reachable:
        return f"{host} cannot be reached: {known.problem}"
    old = stale(world, host, limits)
    if old:
        return old
    if host in world.closed:
        return f"{host} was closed by hand: {world.closed[host]}"
    takers = world.takers(host)
    if takers:
        return f"{host} was given to job {', '.join(takers)}"
    return _shut(world, host, known.node)


def _shut(world: World, host: str, node_name: str | None) -> str:
    """Say why the host's own Slurm node forbids company, or return an empty text."""
    if node_name is None:
        return ""
    node = world.nodes.get(node_name)
    if node is None:
        return f"Slurm does not know {node_name}, the node of host {host}"
    planned = "PLANNED" in node.flags and not node.planned_s
    if node.base is not NodeBase.IDLE or node.drained or planned or node.flags & _SHUT_FLAGS:
        why = f" ({node.reason})" if node.reason else ""
        return f"Slurm shows {node_name} as {node.state_text}{why}"
    return ""


def too_short(world: World, host: str, policies: PolicySet, pays_s: float) -> str:
    """Say why the time until the host is wanted again is not worth it, or return an empty text."""
    node = node_of(world, host)
    if node is None or not (node.planned_s or node.maintenance_s):
        return ""  # nothing is known, which is so nearly always
    if node.maintenance_s and world.now_s >= policies.gaps.clear_at_s(node.maintenance_s):
        return f"{host} is left for its maintenance"
    why = policies.gaps.too_short(world.now_s, wanted_again_s(node), pays_s)
    return f"{host} is no gap worth it: {why}" if why else ""


def room(world: World, host: str, policies: PolicySet) -> Resources:
    """Resources of `host` that no node of ours uses or was promised."""
    limits = policies.limits
    whole = world.hosts[host].capacity
    left = Resources(policies.placement.cpus(whole.cpus), whole.memory_mb) - Resources(
        limits.keep_cpus, limits.keep_memory_mb
    )
    shape = policies.instances.flavour.resources
    for node in world.managed_on(host):
        left = left - _share(world, node, host, shape)
    for instance in world.instances_on(host):
        if instance.name not in world.managed and instance.occupies_memory:
            left = left - instance.resources  # not in our books yet, but there
    return left


def _share(world: World, node: ManagedNode, host: str, shape: Resources) -> Resources:
    """What one managed node takes of a host: CPUs while it may run, memory while it is in RAM."""
    if node.phase in ON_CPU or node.phase is Phase.EVICTING or host == node.target:
        return shape
    instance = world.instances.get((host, node.name))
    if instance is not None and instance.occupies_memory:
        return Resources(0, shape.memory_mb)
    return NOTHING


def count_on(world: World, host: str) -> int:
    """Number of our nodes that are on a host or on their way to it."""
    return sum(1 for m in world.managed_on(host) if m.phase not in ABSENT)


def booting_on(world: World, host: str) -> int:
    """Number of our nodes that are being made on a host."""
    return sum(1 for m in world.managed_on(host) if m.phase is Phase.BOOTING)


def _enough(world: World, host: str, policies: PolicySet) -> str:
    """Say why no further instance may come however much room there is, or return an empty text."""
    count, most = count_on(world, host), policies.limits.max_per_host
    if count >= most:
        return f"limits.max_per_host = {most} is reached on {host}"
    if booting_on(world, host) >= policies.cloning.at_once_per_host:
        most = policies.cloning.at_once_per_host
        return f"cloning.at_once_per_host = {most} is reached on {host}"
    if host in world.kept and count >= world.kept[host][0]:
        return f"only {world.kept[host][0]} may stay on {host}: {world.kept[host][1]}"
    return ""


def candidates(
    world: World, policies: PolicySet, pays_s: float, skip: frozenset[str] = frozenset()
) -> tuple[list[tuple[str, Resources]], dict[str, str]]:
    """Hosts with room for one more instance, and for every other host why not.

    `pays_s`: for so long the host must not be wanted again, as far as that is known.
    """
    rooms, why_not = world.keep(f"rooms {pays_s}", partial(_rooms, policies, pays_s))
    return (
        [(host, left) for host, left in rooms if host not in skip],
        {host: why for host, why in why_not.items() if host not in skip},
    )


def _rooms(
    policies: PolicySet, pays_s: float, world: World
) -> tuple[list[tuple[str, Resources]], dict[str, str]]:
    """The same of all hosts: worked out anew only for those about which something has changed."""
    rooms: list[tuple[str, Resources]] = []
    why_not: dict[str, str] = {}
    for host in policies.hosts:
        look = partial(_look, policies, pays_s, host)
        found = world.keep(f"room {host} {pays_s}", look)
        if isinstance(found, str):
            why_not[host] = found
        else:
            rooms.append((host, found))
    return rooms, why_not


def _look(policies: PolicySet, pays_s: float, host: str, world: World) -> Resources | str:
    """What is left on the host, or why no instance may come to it."""
    reason = closed(world, host, policies.limits)
    if not reason:
        reason = too_short(world, host, policies, pays_s)
    if not reason:
        reason = open_breaker(world, host, policies.readiness, policies.hosts)
    reason = reason or _enough(world, host, policies)
    if reason:
        return reason
    shape, left = policies.instances.flavour.resources, room(world, host, policies)
    return left if shape.fits(left) else f"{host} has {left} left, an instance takes {shape}"
