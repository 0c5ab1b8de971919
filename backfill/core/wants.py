"""What the queue wants of each master image, and what it will soon find free of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from backfill.core.cluster import Job
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.policies.demand import Need
from backfill.core.policy import PolicySet
from backfill.core.world import World


@dataclass(frozen=True, slots=True)
class Want:
    """Jobs that one kind of instance could start. `image` is empty where any kind can.

    `lacking`: CPUs that they will not find free without a new instance.
    """

    image: str
    need: Need
    lacking: int


def image_of(policies: PolicySet, node: ManagedNode) -> str:
    """The master image of a node."""
    return node.image or policies.instances.image


def own_image(policies: PolicySet, image: str) -> str:
    """How a node's record names its image: empty for that of the policy file."""
    return "" if image == policies.instances.image else image


def wants(world: World, policies: PolicySet, jobs: Iterable[Job]) -> list[Want]:
    """One for each image that is asked for, the jobs that take any last."""
    environments = policies.environments
    asked: dict[str, Iterable[Job]] = {"": jobs}
    if environments.particular:
        sorted_out: dict[str, list[Job]] = {"": []}
        for job in jobs:
            sorted_out.setdefault(environments.asked(job), []).append(job)
        asked = {**sorted_out}
    free = _free(world, policies)
    found = []
    for image in sorted(asked, key=lambda name: (not name, name)):
        need = policies.demand.need(asked[image], policies.instances.flavour, world.now_s)
        there = free[image] if image else sum(free.values())
        found.append(_want(world, policies, image, need, there))
        if image:
            free[image] = max(0, there - need.cpus)
    return found


def want_of_all(world: World, policies: PolicySet, need: Need) -> Want:
    """The same where every job takes any image."""
    return _want(world, policies, "", need, sum(_free(world, policies).values()))


def _want(world: World, policies: PolicySet, image: str, need: Need, there: int) -> Want:
    """`there`: CPUs that these jobs will find free."""
    lacking = need.cpus - there
    if need.nodes > 1 and lacking <= 0:
        # A job over several nodes needs them all at once.
        usable = _usable(world, policies)
        lacking = need.nodes - (usable[image] if image else sum(usable.values()))
    return Want(image, need, lacking)


def _usable(world: World, policies: PolicySet) -> Counter[str]:
    """How many instances are there, or will be soon, whatever runs on them now; by image."""
    found = Counter(image_of(policies, world.managed[n]) for n in world.in_phase(Phase.BOOTING))
    for (image, _), nodes in world.ready.allocated.items():
        found[image or policies.instances.image] += nodes
    return found


def _free(world: World, policies: PolicySet) -> Counter[str]:
    """CPUs that waiting jobs will find free soon without a new instance, by image."""
    cpus = policies.instances.flavour.cpus
    found: Counter[str] = Counter()
    for name in world.in_phase(Phase.BOOTING):
        found[image_of(policies, world.managed[name])] += cpus
    for (image, used), nodes in world.ready.allocated.items():
        found[image or policies.instances.image] += nodes * max(0, cpus - used)
    return found
