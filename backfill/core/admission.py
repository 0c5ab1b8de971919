"""Whether an instance of an image may be begun now, and on which hosts: rates and ceilings."""

from __future__ import annotations

from backfill.core.breakers import open_breaker, rest_ends_s
from backfill.core.guards import may_create
from backfill.core.lifecycle import ABSENT
from backfill.core.placement import NO_DEVICES, DeviceNeed, candidates
from backfill.core.plan_builder import PlanBuilder
from backfill.core.quantities import Resources
from backfill.core.wants import image_of, own_image

MINUTE_S = 60.0


def not_admitted(builder: PlanBuilder, image: str) -> str:
    """Say why no instance of this image may be begun anywhere now, or return an empty text."""
    world, policies = builder.world, builder.policies
    limit = may_create(world, policies.limits) or builder.budget_full()
    limit = limit or open_breaker(world, "", policies.readiness, policies.hosts)
    # When a rest is over that now keeps instances from being made.
    builder.wake_at(rest_ends_s(world, policies.readiness))
    return limit or full(builder, image) or too_soon(builder, image)


def full(builder: PlanBuilder, image: str, more: int = 1) -> str:
    """Say which limit of the image so many more instances would break, or return an empty text."""
    policies = builder.policies
    rule, shape = policies.environments.rule(image), policies.instances.flavour.resources
    if not rule.most_cpus and not rule.most_memory_mb:
        return ""
    there = sum(
        1 for m in builder.world.managed.values() if image_of(policies, m) == image and m.phase not in ABSENT
    )
    taken = Resources((there + more) * shape.cpus, (there + more) * shape.memory_mb)
    if rule.most_cpus and taken.cpus > rule.most_cpus:
        return f"image {image} may have {rule.most_cpus} CPUs, and {there} instances are there"
    if rule.most_memory_mb and taken.memory_mb > rule.most_memory_mb:
        return f"image {image} may have {rule.most_memory_mb} MB, and {there} instances are there"
    return ""


def too_soon(builder: PlanBuilder, image: str) -> str:
    """Say that enough instances of the image were begun lately, or return an empty text."""
    most = builder.policies.environments.rule(image).creates_per_min
    most = most or builder.policies.cloning.per_min_per_image
    if _too_fast(builder, f"image {own_image(builder.policies, image)}", most):
        return f"{most} instances of image {image} were begun within a minute, which is its limit"
    return ""


def _too_fast(builder: PlanBuilder, what: str, most: int) -> bool:
    """Whether so many were begun within a minute; if so, look again when that is over."""
    if not most:
        return False
    back_s = builder.world.fleet.begun_back_s(what, most)
    builder.wake_at(back_s + MINUTE_S)
    return back_s > 0.0 and builder.now_s < back_s + MINUTE_S


def open_rooms(
    builder: PlanBuilder, shortest_s: float = 0.0, need: DeviceNeed = NO_DEVICES
) -> tuple[list[tuple[str, Resources]], dict[str, str]]:
    """Hosts on which one more instance may be begun now, and for every other host why not.

    `shortest_s`: the least time limit of the jobs that wait for it.
    """
    pays_s = builder.policies.gaps.pays_s(shortest_s)
    rooms, why_not = candidates(builder.world, builder.policies, pays_s, need=need)
    most = builder.policies.cloning.per_min_per_host
    slow = {host for host, _ in rooms if _too_fast(builder, f"host {host}", most)}
    text = f"cloning.per_min_per_host = {most} is reached on "
    return (
        [(host, left) for host, left in rooms if host not in slow],
        why_not | {host: text + host for host in slow},
    )
