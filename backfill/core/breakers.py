"""A host, or the image, with which one instance after the other has failed is left alone for a while."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.model.refusals import Code, Reason, Words, because
from backfill.core.policies.readiness import Readiness
from backfill.core.tables import IMAGE, Picture


def open_breaker(world: Picture, name: str, rules: Readiness, hosts: Iterable[str]) -> Reason | None:
    """Return why nothing may be made on host `name` (or of the IMAGE) now, if nothing may.

    The image is to blame only when more than one host has failed with it.
    """
    streak = world.streaks.get(name)
    if streak is None or streak.count < rules.break_after:
        return None
    if name == IMAGE and sum(h in world.streaks for h in hosts) < 2:
        return None
    if world.now_s >= streak.last_s + rules.rest_s:
        return None
    last = Words(streak.problem)
    if name == IMAGE:
        return because(Code.IMAGE_FAILS, count=streak.count, rest_s=rules.rest_s, said=last)
    return because(Code.HOST_FAILS, host=name, count=streak.count, rest_s=rules.rest_s, said=last)


def rest_ends_s(world: Picture, rules: Readiness) -> float:
    """Return when the next rest is over; 0 for none."""
    ends = [s.last_s + rules.rest_s for s in world.streaks.values() if s.count >= rules.break_after]
    return min((end_s for end_s in ends if world.now_s < end_s), default=0.0)
