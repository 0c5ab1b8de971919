"""Guards: budgets and ceilings that hold whatever the policies want."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.keys import key
from backfill.core.lifecycle import ABSENT, Phase
from backfill.core.refusals import Code, Reason, Words, because, limit
from backfill.core.world import World

_PRESENT = tuple(phase for phase in Phase if phase not in ABSENT)


@dataclass(frozen=True, slots=True)
class Limits:
    """The blast radius: no single decision may go further. Times in seconds."""

    max_instances: int = key(100, "Instances in all.")
    max_per_host: int = key(16, "Instances on one host.")
    boots_at_once: int = key(4, "Instances, and parents of instant clones, that boot at the same time.")
    removals_at_once: int = key(
        8,
        "Instances without work that are being removed at the same time, because nobody needs them or "
        "because Slurm does not know their nodes any more.",
    )
    destroys_per_min: int = key(
        6, "Instances with work that are destroyed within one minute, whatever the reason."
    )
    destroys_per_hour: int = key(
        60, "The same within one hour. Where it is reached they stand still, and wait."
    )
    sure_after_s: float = key(
        10.0, "Before work is destroyed the reason has to be read again and again for so long."
    )
    missing_s: float = key(
        600.0, "The same where the reason is that Slurm or a hypervisor does not show something any more."
    )
    creates_per_hour: int = key(500, "Instances made in one hour, failures included.")
    stale_after_s: float = key(
        60.0, "A picture of Slurm older than this is not acted upon, except for giving hosts back."
    )
    keep_cpus: int = key(0, "CPUs of each host that instances never take.")
    keep_memory_mb: int = key(0, "Memory of each host that instances never take.")


def stale(world: World, source: str, limits: Limits) -> Reason | None:
    """Return why our picture of `source` may not be acted upon, if it may not."""
    if world.fresh(source, limits.stale_after_s):
        return None
    seen = world.sources.get(source)
    if seen is None or seen.seen_s == 0.0:
        problem = seen.problem if seen is not None else ""
        return because(Code.NEVER_READ, source=source, said=Words(problem))
    return because(Code.STALE, source=source, age_s=world.now_s - seen.seen_s, said=Words(seen.problem))


def barred(world: World) -> Reason | None:
    """Return why we may do no more than give hosts back, if that is so."""
    if not world.barred:
        return None
    said = "; ".join(f"{by}: {problem}" for by, problem in sorted(world.barred.items()))
    return because(Code.BARRED, by=tuple(sorted(world.barred)), said=Words(said))


def may_create(world: World, limits: Limits, parents_starting: int = 0) -> Reason | None:
    """Return why no further instance may be made now, if none may.

    `parents_starting`: the number of parents that are being made; each is a boot as well.
    """
    if world.count_in(*_PRESENT) >= limits.max_instances:
        return limit("limits.max_instances", limits.max_instances)
    if world.count_in(Phase.BOOTING) + parents_starting >= limits.boots_at_once:
        return limit("limits.boots_at_once", limits.boots_at_once)
    if world.created_lately(3600.0) >= limits.creates_per_hour:
        return limit("limits.creates_per_hour", limits.creates_per_hour)
    return None
