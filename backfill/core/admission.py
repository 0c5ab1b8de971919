"""Whether an instance of an image may be begun now, and on which hosts: rates and ceilings."""

from __future__ import annotations

from backfill.core.breakers import open_breaker, rest_ends_s
from backfill.core.guards import may_create
from backfill.core.lifecycle import ABSENT
from backfill.core.placement import NO_DEVICES, DeviceNeed, candidates
from backfill.core.plan_builder import PlanBuilder
from backfill.core.quantities import Resources
from backfill.core.queue import Topic
from backfill.core.refusals import Code, Reason, because, limit
from backfill.core.wants import image_of, own_image

MINUTE_S = 60.0
_HOUR_S = 3600.0


def not_admitted(builder: PlanBuilder, image: str) -> Reason | None:
    """Return why no instance of this image may be begun anywhere now, if none may."""
    world, policies = builder.world, builder.policies
    why = may_create(world, policies.limits) or builder.budget_full()
    why = why or open_breaker(world, "", policies.readiness, policies.hosts)
    # When a rest is over that now keeps instances from being made.
    builder.wake_at(rest_ends_s(world, policies.readiness))
    builder.wake_at(hour_over_s(builder))
    return why or full(builder, image) or too_soon(builder, image)


def hour_over_s(builder: PlanBuilder) -> float:
    """Return when limits.creates_per_hour may allow one more."""
    first_s = builder.world.created_after_s(builder.now_s - _HOUR_S)
    return 0.0 if first_s is None else first_s + _HOUR_S


def full(builder: PlanBuilder, image: str, more: int = 1) -> Reason | None:
    """Return which limit of the image so many more instances would break, if they would."""
    policies = builder.policies
    rule, shape = policies.environments.rule(image), policies.instances.flavour.resources
    if not rule.most_cpus and not rule.most_memory_mb:
        return None
    there = sum(
        1 for m in builder.world.managed.values() if image_of(policies, m) == image and m.phase not in ABSENT
    )
    taken = Resources((there + more) * shape.cpus, (there + more) * shape.memory_mb)
    if rule.most_cpus and taken.cpus > rule.most_cpus:
        return because(Code.IMAGE_CPUS, image=image, most=rule.most_cpus, there=there)
    if rule.most_memory_mb and taken.memory_mb > rule.most_memory_mb:
        return because(Code.IMAGE_MEMORY, image=image, most=rule.most_memory_mb, there=there)
    return None


def too_soon(builder: PlanBuilder, image: str) -> Reason | None:
    """Return that enough instances of the image were begun lately, if they were."""
    most = builder.policies.environments.rule(image).creates_per_min
    most = most or builder.policies.cloning.per_min_per_image
    if _too_fast(builder, f"image {own_image(builder.policies, image)}", most):
        return because(Code.IMAGE_RATE, image=image, most=most)
    return None


def _too_fast(builder: PlanBuilder, what: str, most: int) -> bool:
    """Whether so many were begun within a minute; if so, look again when that is over."""
    if not most:
        return False
    back_s = builder.world.fleet.begun_back_s(what, most)
    builder.wake_at(back_s + MINUTE_S)
    return back_s > 0.0 and builder.now_s < back_s + MINUTE_S


def open_rooms(
    builder: PlanBuilder, shortest_s: float = 0.0, need: DeviceNeed = NO_DEVICES
) -> tuple[list[tuple[str, Resources]], dict[str, Reason]]:
    """Hosts on which one more instance may be begun now, and for every other host why not.

    `shortest_s`: the least time limit of the jobs that wait for it.
    """
    pays_s = builder.policies.gaps.pays_s(shortest_s)
    builder.awaits(Topic.ROOM)
    rooms, why_not = candidates(builder.world, builder.policies, pays_s, need=need)
    most = builder.policies.cloning.per_min_per_host
    slow = {host for host, _ in rooms if _too_fast(builder, f"host {host}", most)}
    return (
        [(host, left) for host, left in rooms if host not in slow],
        why_not | {host: limit("cloning.per_min_per_host", most, host) for host in slow},
    )
