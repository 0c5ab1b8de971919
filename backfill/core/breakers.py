"""Breakers: after repeated failures of a host or an image nothing is made there for a while.

Failures in a row are counted by host, and under the empty name for the image that all instances
have. A restarted daemon begins to count anew: it cannot know what a person repaired meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.policies.readiness import Readiness
from backfill.core.refusals import Code, Reason, Words, because

if TYPE_CHECKING:
    from backfill.core.world import World

IMAGE = ""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row, with no success between them."""

    count: int
    last_s: float
    problem: str


def follow(
    streaks: dict[str, Streak], before: ManagedNode | None, after: ManagedNode, now_s: float
) -> tuple[str, ...]:
    """Learn from a node's step whether it has proven itself, or failed while it tried.

    Returns the names whose streaks are different now.
    """
    if before is None or before.phase is after.phase:
        return ()
    names = (after.host, IMAGE)
    if after.phase is Phase.READY:
        return tuple(name for name in names if streaks.pop(name, None) is not None)
    if not (before.phase is Phase.BOOTING and after.phase is Phase.REMOVING and after.fail):
        return ()
    for name in names:
        count = streaks[name].count + 1 if name in streaks else 1
        streaks[name] = Streak(count, now_s, after.reason)
    return names


def open_breaker(world: World, name: str, rules: Readiness, hosts: Iterable[str]) -> Reason | None:
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


def rest_ends_s(world: World, rules: Readiness) -> float:
    """When the next rest is over; 0 for none."""
    ends = [s.last_s + rules.rest_s for s in world.streaks.values() if s.count >= rules.break_after]
    return min((end_s for end_s in ends if world.now_s < end_s), default=0.0)
