"""What waiting jobs want of new instances, whether any may be made now, and where one may move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from backfill.core.model.actions import MigrateInstance
from backfill.core.model.cluster import Node
from backfill.core.model.fleet import CloneMethod, Flavour
from backfill.core.model.lifecycle import ABSENT, OVER, ManagedNode, Phase
from backfill.core.model.operations import Operation
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.readiness import image_streak
from backfill.core.model.refusals import Code, Reason, because, call_failed, limit, no_host
from backfill.core.picture import Picture, waits_for_fellows
from backfill.core.placement import find_host
from backfill.core.policies.demand import Asked, JobShare, Need
from backfill.core.policies.limits import Limits
from backfill.core.policy import PolicySet
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.names import names_of
from backfill.core.remainders import Offering, Remainders, whole
from backfill.core.room import NOTHING_MORE, NodeNeed, need_of


@dataclass(frozen=True, slots=True)
class Want:
    """Jobs that one kind of instance could start. `image`, `device`: empty where any will do.

    `lacking`: CPUs that they will not find free without a new instance. `apart`: what some of them
    need in one piece, and no instance has left, although so many CPUs (`free`) are free on all of these.
    `owner`: the user of all jobs that want the device; empty where there are several.
    """

    image: str
    need: Need
    lacking: int
    device: str = ""
    owner: str = ""
    apart: tuple[JobShare, ...] = ()
    free: int = 0


def image_of(policies: PolicySet, node: ManagedNode) -> str:
    """Return the master image of a node."""
    return node.image or policies.instances.image


def own_image(policies: PolicySet, image: str) -> str:
    """Return how a node's record names its image: empty for that of the policy file."""
    return "" if image == policies.instances.image else image


def serves(policies: PolicySet, node: ManagedNode, want: Want) -> bool:
    """Return True if the node is of the kind that is wanted, and as large as one of the jobs needs it."""
    if not _serves(policies, Offering(node.image, node.devices), (want.image, want.device)):
        return False
    usual, own = policies.instances.flavour, policies.instances.flavour_of(node)
    return own == usual or any(
        share.cpus <= own.cpus and share.memory_mb <= own.node_memory_mb for share, _ in want.need.shares
    )


def _serves(policies: PolicySet, offering: Offering, asked: Asked) -> bool:
    """Whoever asks for nothing finds no node free that is for some people only.

    What Slurm reserves for somebody is free for nobody; of an image that is for some people only all is.
    """
    (wanted, device), image = asked, offering.image or policies.instances.image
    private = image in policies.environments.private
    fits = image == wanted if wanted else not private
    return fits and (private or not offering.reserved) and (not device or device in offering.devices)


def unheard_nodes(builder: PlanBuilder) -> frozenset[str]:
    """Return names of ready nodes that Slurm has not heard for so long that no job will begin there.

    Of many at once that is no sign: it is how a broken network looks, for new ones as well.
    """
    world, policies = builder.world, builder.policies
    ours = ((n, from_s) for n, from_s in world.silent.items() if n in world.managed)
    ready = {n: from_s for n, from_s in ours if world.managed[n].phase is Phase.READY}
    since_s = {n: max(from_s, world.sighted_since_s) for n, from_s in ready.items()}
    if len(since_s) > policies.liveness.most(world.fleet.count_in(Phase.READY)):
        return frozenset()
    for from_s in since_s.values():
        builder.wake_at(from_s + policies.limits.sure_after_s)
    return frozenset(n for n, s in since_s.items() if builder.now_s >= s + policies.limits.sure_after_s)


def wants(
    world: Picture,
    policies: PolicySet,
    kinds: Mapping[Asked, tuple[Need, str]],
    unheard: Collection[str] = (),
) -> list[Want]:
    """One for each kind that is asked for, the jobs that take any last. `unheard`: nodes that get none."""
    ready, booted = world.ready, whole(policies.instances.flavour)
    coming = [(Offering(*made), booted, nodes) for made, nodes in world.fleet.booting.items()]
    shut = ready.left_on(unheard)
    left = Remainders(ready.pieces, coming, shut, memory_is_given=ready.memory_is_given)
    order = sorted(kinds, key=lambda names: (not names[1], not names[0], names))
    return [_want(policies, kind, *kinds[kind], left) for kind in order]


def _want(policies: PolicySet, asked: Asked, need: Need, owner: str, left: Remainders) -> Want:
    """Compare what jobs want with what those before them have left."""
    (image, device), apart = asked, list[JobShare]()
    offered = [offering for offering in left.offered if _serves(policies, offering, asked)]
    free = left.cpus(offered)
    lacking = need.cpus - free
    if lacking > 0:
        left.take_all(offered)
    elif need.shares:
        apart = [share for share, _ in need.shares if not left.fits(share, offered)]
        lacking = sum(share.cpus * left.place(share, jobs, offered) for share, jobs in need.shares)
    return Want(image, need, lacking, device, owner, tuple(apart), free)


_PRESENT = tuple(phase for phase in Phase if phase not in ABSENT)


def present(world: Picture) -> int:
    """Count our nodes of which there is an instance, or will be."""
    return world.fleet.count_in(*_PRESENT)


def may_create(world: Picture, limits: Limits) -> Reason | None:
    """Return why no further instance, or parent of clones, may be made now, if none may."""
    if present(world) >= limits.max_instances:
        return limit("limits.max_instances", limits.max_instances)
    if _booting_now(world, limits.boots_at_once) >= limits.boots_at_once:
        return limit("limits.boots_at_once", limits.boots_at_once)
    if world.created_lately(3600.0) >= limits.creates_per_hour:
        return limit("limits.creates_per_hour", limits.creates_per_hour)
    return None


def _booting_now(world: Picture, enough: int) -> int:
    """Count what boots, parents included; looked at closely only from `enough` on.

    A job's own machine that only waits for its fellows does not boot: they could not begin otherwise.
    """
    every = world.fleet.count_in(Phase.BOOTING) + world.all_parents_starting()
    if every < enough or not world.machines:
        return every
    booting = (world.managed[name] for name in world.fleet.in_phase(Phase.BOOTING))
    return every - sum(1 for node in booting if node.job and waits_for_fellows(world, node))


def unplaced(builder: PlanBuilder) -> Reason | None:
    """Return that instances may be somewhere of which we see the nodes only, if that is so.

    A daemon that has just begun, with an empty journal, may be told of no instance by a hypervisor
    that is just starting itself; and one reading may lack what no record has: what room its host has
    is not known then.
    """
    world, needed_s = builder.world, builder.policies.limits.sure_after_s
    found = [name for name in names_of(world, builder.policies).strays(world) if name in world.nodes]
    sure = {n: _unseen_since_s(builder, n) + needed_s for n in found if left_over(builder, world.nodes[n])}
    nodes = tuple(sorted(name for name, sure_s in sure.items() if builder.now_s < sure_s))
    if not nodes:
        return None
    builder.wake_at(max(sure[name] for name in nodes))
    return because(Code.UNPLACED, nodes=nodes, needed_s=needed_s)


def _unseen_since_s(builder: PlanBuilder, name: str) -> float:
    """Return since when no host shows it, or since when we have been able to see that.

    The first reading of a host that could not be read for a while may be as odd as any other.
    """
    world, hosts = builder.world, builder.policies.hosts
    gone = (world.seen_s("instance", f"{host}/{name}") for host in hosts)
    read = (known for host in hosts if (known := world.sources.get(host)) and known.seen_s > known.failed_s)
    return max([world.sighted_since_s, *gone, *(known.failed_s for known in read)])


def left_over(builder: PlanBuilder, seen: Node) -> bool:
    """Return True if it was made by us, or by somebody who was given our names, and nobody has it.

    A record that says that nothing is left of it is none of a node that Slurm shows all the same.
    """
    world, name = builder.world, seen.name
    node = world.managed.get(name)
    dynamic = any(flag.startswith("DYNAMIC") for flag in seen.flags)
    ours = dynamic and name in world.queue.names and world.host_of_node(name) is None
    return ours and (node is None or node.phase in OVER) and not world.fleet.places_of(name)


MINUTE_S = 60.0


HOUR_S = 3600.0


def not_admitted(builder: PlanBuilder, image: str) -> Reason | None:
    """Return why no instance of this image may be begun anywhere now, if none may."""
    world, policies = builder.world, builder.policies
    builder.awaits(Topic.BOOTS)
    why = may_create(world, policies.limits) or unplaced(builder) or builder.budget_full()
    why = why or policies.readiness.open_breaker(
        world.streaks, world.now_s, image_streak(own_image(policies, image)), policies.hosts
    )
    # When a rest is over that now keeps instances from being made.
    builder.wake_at(policies.readiness.rest_ends_s(world.streaks, world.now_s))
    builder.wake_at(hour_over_s(builder))
    return why or full(builder, image) or too_soon(builder, image)


def clone_method(builder: PlanBuilder, image: str) -> CloneMethod:
    """How an instance is made that nobody wants in a way of its own."""
    cloning, rule = builder.policies.cloning, builder.policies.environments.rule(image)
    return cloning.choose(builder.world.created_lately(MINUTE_S), rule.method)


def hour_over_s(builder: PlanBuilder) -> float:
    """Return when limits.creates_per_hour may allow one more."""
    first_s = builder.world.fleet.created_after_s(builder.now_s - HOUR_S)
    return 0.0 if first_s is None else first_s + HOUR_S


def full(
    builder: PlanBuilder,
    image: str,
    more: int = 1,
    flavour: Flavour | None = None,
    without: Collection[str] = (),
) -> Reason | None:
    """Return which limit of the image so many more instances would break, if they would.

    `flavour`: of each of them, if it is not that of all. `without`: names of nodes that do not count.
    """
    policies, template = builder.policies, builder.policies.instances
    rule, shape = policies.environments.rule(image), (flavour or template.flavour).resources
    if not rule.most_cpus and not rule.most_memory_mb:
        return None
    there = (m for m in builder.world.managed.values() if m.phase not in ABSENT and m.name not in without)
    nodes = [m for m in there if image_of(policies, m) == image]
    taken = sum((template.flavour_of(m).resources for m in nodes), NOTHING)
    taken = taken + Resources(more * shape.cpus, more * shape.memory_mb)
    if rule.most_cpus and taken.cpus > rule.most_cpus:
        return because(Code.IMAGE_CPUS, image=image, most=rule.most_cpus, there=len(nodes))
    if rule.most_memory_mb and taken.memory_mb > rule.most_memory_mb:
        return because(Code.IMAGE_MEMORY, image=image, most=rule.most_memory_mb, there=len(nodes))
    return None


def too_soon(builder: PlanBuilder, image: str) -> Reason | None:
    """Return that enough instances of the image were begun lately, if they were."""
    most = builder.policies.environments.rule(image).creates_per_min
    most = most or builder.policies.cloning.per_min_per_image
    if _too_fast(builder, f"image {own_image(builder.policies, image)}", most):
        return because(Code.IMAGE_RATE, image=image, most=most)
    return None


def _too_fast(builder: PlanBuilder, what: str, most: int) -> bool:
    """Return True if so many were begun within a minute; if so, look again when that is over."""
    if not most:
        return False
    back_s = builder.world.fleet.begun_back_s(what, most)
    builder.wake_at(back_s + MINUTE_S)
    return back_s > 0.0 and builder.now_s < back_s + MINUTE_S


def find_open_host(
    builder: PlanBuilder,
    shortest_s: float = 0.0,
    need: NodeNeed = NOTHING_MORE,
    unfit: Callable[[str], Reason | None] | None = None,
) -> tuple[str | None, dict[str, Reason]]:
    """Return the host for one more instance that may be begun now; or None, and why, for each host.

    `shortest_s`: the least time limit of the jobs that wait for it. `unfit` says why a host with room
    is not for this one, if it is not.
    """
    policies = builder.policies
    builder.awaits(Topic.ROOM)
    most = policies.cloning.per_min_per_host

    def slow(host: str) -> Reason | None:
        if unfit is not None and (why := unfit(host)) is not None:
            return why
        if not _too_fast(builder, f"host {host}", most):
            return None
        return limit("cloning.per_min_per_host", most, host)

    pays_s = policies.gaps.pays_s(shortest_s)
    return find_host(builder.world, policies, pays_s, need=need, slow=slow if most or unfit else None)


# --- where an instance may move -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoMove:
    """Why it cannot move now. `again`: a host has room, and a move there that failed is tried again soon."""

    why: Reason
    again: bool = False


def whereto(builder: PlanBuilder, node: ManagedNode) -> str | NoMove:
    """Return a host to which the node can move now: it has room, and no move there has just failed."""
    full, need = builder.budget_full(), need_of(builder.world, builder.policies, node)
    builder.awaits(Topic.ROOM)
    failed: list[Operation] = []

    def fails(host: str) -> Reason | None:
        operation = _failed_move(builder, node, host)
        if operation is None:
            return None
        failed.append(operation)
        return call_failed(operation.problem)

    target, why_not = find_host(
        builder.world,
        builder.policies,
        builder.policies.gaps.return_pays_s,
        skip=node.host,
        need=need,
        slow=fails,
    )
    full = full or unplaced(builder)
    if full is not None:
        return NoMove(full)
    if target is not None:
        return target
    if not failed:
        return NoMove(no_host(why_not.values()))
    soon = [operation for operation in failed if not operation.final]
    return NoMove(call_failed((soon or failed)[0].problem), again=bool(soon))


def _failed_move(builder: PlanBuilder, node: ManagedNode, host: str) -> Operation | None:
    """Return the move to a host that failed before, if it is not to be tried again now."""
    operation = builder.operation(
        MigrateInstance(subject=node.name, generation=node.generation, reason="", host=node.host, target=host)
    )
    if operation is None or not (operation.final or builder.now_s < operation.not_before_s):
        return None
    builder.wake_at(operation.not_before_s)
    return operation
