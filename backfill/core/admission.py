"""Whether an instance of an image may be begun now, and on which hosts: rates and ceilings."""

from __future__ import annotations

from backfill.core.breakers import open_breaker, rest_ends_s
from backfill.core.draft import Draft
from backfill.core.guards import may_create
from backfill.core.lifecycle import ABSENT
from backfill.core.placement import NO_DEVICES, DeviceNeed, candidates
from backfill.core.quantities import Resources
from backfill.core.wants import image_of, own_image

MINUTE_S = 60.0


def not_admitted(draft: Draft, image: str) -> str:
    """Say why no instance of this image may be begun anywhere now, or return an empty text."""
    world, policies = draft.world, draft.policies
    limit = may_create(world, policies.limits) or draft.budget_full()
    limit = limit or open_breaker(world, "", policies.readiness, policies.hosts)
    # When a rest is over that now keeps instances from being made.
    draft.wake_at(rest_ends_s(world, policies.readiness))
    return limit or full(draft, image) or too_soon(draft, image)


def full(draft: Draft, image: str, more: int = 1) -> str:
    """Say which limit of the image so many more instances would break, or return an empty text."""
    policies = draft.policies
    rule, shape = policies.environments.rule(image), policies.instances.flavour.resources
    if not rule.most_cpus and not rule.most_memory_mb:
        return ""
    there = sum(
        1 for m in draft.world.managed.values() if image_of(policies, m) == image and m.phase not in ABSENT
    )
    taken = Resources((there + more) * shape.cpus, (there + more) * shape.memory_mb)
    if rule.most_cpus and taken.cpus > rule.most_cpus:
        return f"image {image} may have {rule.most_cpus} CPUs, and {there} instances are there"
    if rule.most_memory_mb and taken.memory_mb > rule.most_memory_mb:
        return f"image {image} may have {rule.most_memory_mb} MB, and {there} instances are there"
    return ""


def too_soon(draft: Draft, image: str) -> str:
    """Say that enough instances of the image were begun lately, or return an empty text."""
    most = draft.policies.environments.rule(image).creates_per_min
    most = most or draft.policies.cloning.per_min_per_image
    if _too_fast(draft, f"image {own_image(draft.policies, image)}", most):
        return f"{most} instances of image {image} were begun within a minute, which is its limit"
    return ""


def _too_fast(draft: Draft, what: str, most: int) -> bool:
    """Whether so many were begun within a minute; if so, look again when that is over."""
    if not most:
        return False
    back_s = draft.world.fleet.begun_back_s(what, most)
    draft.wake_at(back_s + MINUTE_S)
    return back_s > 0.0 and draft.now_s < back_s + MINUTE_S


def open_rooms(
    draft: Draft, shortest_s: float = 0.0, need: DeviceNeed = NO_DEVICES
) -> tuple[list[tuple[str, Resources]], dict[str, str]]:
    """Hosts on which one more instance may be begun now, and for every other host why not.

    `shortest_s`: the least time limit of the jobs that wait for it.
    """
    pays_s = draft.policies.gaps.pays_s(shortest_s)
    rooms, why_not = candidates(draft.world, draft.policies, pays_s, need=need)
    most = draft.policies.cloning.per_min_per_host
    slow = {host for host, _ in rooms if _too_fast(draft, f"host {host}", most)}
    text = f"cloning.per_min_per_host = {most} is reached on "
    return (
        [(host, left) for host, left in rooms if host not in slow],
        why_not | {host: text + host for host in slow},
    )
