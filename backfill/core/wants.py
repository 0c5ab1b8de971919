"""What the queue wants of each kind of instance, and what it will soon find free of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from backfill.core.cluster import Job
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.policies.demand import Need
from backfill.core.policy import PolicySet
from backfill.core.world import World

# Master image and, of what is scarce, the device that is asked for; or all that are offered.
Asked = tuple[str, str]
Offer = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Want:
    """Jobs that one kind of instance could start. `image`, `device`: empty where any will do.

    `lacking`: CPUs that they will not find free without a new instance. `owner`: the user of all
    jobs that want the device; empty where there are several.
    """

    image: str
    need: Need
    lacking: int
    device: str = ""
    owner: str = ""


def image_of(policies: PolicySet, node: ManagedNode) -> str:
    """The master image of a node."""
    return node.image or policies.instances.image


def own_image(policies: PolicySet, image: str) -> str:
    """How a node's record names its image: empty for that of the policy file."""
    return "" if image == policies.instances.image else image


def serves(policies: PolicySet, node: ManagedNode, want: Want) -> bool:
    """Whether the node is of the kind that is wanted."""
    return _serves(policies, (image_of(policies, node), node.devices), (want.image, want.device))


def _serves(policies: PolicySet, offer: Offer, asked: Asked) -> bool:
    """Whoever asks for nothing finds no node free that is for some people only."""
    (image, devices), (wanted, device) = offer, asked
    fits = image == wanted if wanted else image not in policies.environments.private
    return fits and (not device or device in devices)


def wants(world: World, policies: PolicySet, jobs: Iterable[Job]) -> list[Want]:
    """One for each kind that is asked for, the jobs that take any last."""
    asked: dict[Asked, Iterable[Job]] = {("", ""): jobs}
    if policies.environments.particular or policies.devices.scarce:
        asked = {("", ""): (), **_sorted_out(policies, jobs)}
    free, found = _free(world, policies), []
    for kind in sorted(asked, key=lambda names: (not names[1], not names[0], names)):
        need = policies.demand.need(asked[kind], policies.instances.flavour, world.now_s)
        want = _want(world, policies, kind, need, free)
        owners = {job.user for job in asked[kind]} if want.device else set()
        found.append(replace(want, owner=owners.pop()) if len(owners) == 1 else want)
        left = need.cpus if kind != ("", "") else 0
        for offer in [offer for offer in free if _serves(policies, offer, kind)]:
            taken = min(left, free[offer])
            free[offer] -= taken
            left -= taken
    return found


def _sorted_out(policies: PolicySet, jobs: Iterable[Job]) -> dict[Asked, list[Job]]:
    found: dict[Asked, list[Job]] = {}
    for job in jobs:
        kind = policies.environments.asked(job), policies.devices.scarce_for(job)
        found.setdefault(kind, []).append(job)
    return found


def want_of_all(world: World, policies: PolicySet, need: Need) -> Want:
    """The same where every job takes any instance."""
    return _want(world, policies, ("", ""), need, _free(world, policies))


def _want(world: World, policies: PolicySet, asked: Asked, need: Need, free: Counter[Offer]) -> Want:
    """`free`: CPUs that jobs will find free."""
    lacking = need.cpus - _sum(policies, free, asked)
    if need.nodes > 1 and lacking <= 0:
        # A job over several nodes needs them all at once.
        lacking = need.nodes - _sum(policies, _usable(world, policies), asked)
    return Want(asked[0], need, lacking, asked[1])


def _sum(policies: PolicySet, there: Counter[Offer], asked: Asked) -> int:
    return sum(count for offer, count in there.items() if _serves(policies, offer, asked))


def _usable(world: World, policies: PolicySet) -> Counter[Offer]:
    """How many instances are there, or will be soon, whatever runs on them now; by kind."""
    found = _booting(world, policies, 1)
    for (image, devices, _), nodes in world.ready.allocated.items():
        found[image or policies.instances.image, devices] += nodes
    return found


def _free(world: World, policies: PolicySet) -> Counter[Offer]:
    """CPUs that waiting jobs will find free soon without a new instance, by kind."""
    cpus = policies.instances.flavour.cpus
    found = _booting(world, policies, cpus)
    for (image, devices, used), nodes in world.ready.allocated.items():
        found[image or policies.instances.image, devices] += nodes * max(0, cpus - used)
    return found


def _booting(world: World, policies: PolicySet, each: int) -> Counter[Offer]:
    found: Counter[Offer] = Counter()
    for name in world.in_phase(Phase.BOOTING):
        node = world.managed[name]
        found[image_of(policies, node), node.devices] += each
    return found
