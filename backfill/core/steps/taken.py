"""What takes a host from us: jobs, or its maintenance, which asks more of the ladder."""

from __future__ import annotations

from backfill.core.lifecycle import ManagedNode, Rung
from backfill.core.plan_builder import PlanBuilder
from backfill.core.refusals import Code, Reason, because

# Rungs on which the work is in the host's memory, which no work on the host itself leaves alone.
_IN_MEMORY = (Rung.THROTTLE, Rung.PAUSE)


def why_taken(builder: PlanBuilder, host: str) -> Reason | None:
    """Return to which jobs the host was given, or what else takes it as a whole, if anything."""
    takers = builder.world.takers(host)
    if takers:
        return because(Code.HOST_TAKEN, host=host, jobs=tuple(takers))
    return because(Code.HOST_MAINTENANCE, host=host) if builder.taken(host) else None


def only_claimed(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why work is not lost yet for a host of which nobody but a hook says it is taken.

    To stand still costs nothing, and for that a word is enough; Slurm shows soon who got the host.
    """
    world, host = builder.world, node.host
    if host in world.closed or node.name in world.closed or builder.left(host):
        return None
    known = world.hosts.get(host)
    own = None if known is None else known.node
    if own is None or not world.claims_on(host):
        return None
    if any(job.holds_nodes for job in world.jobs_on(own)):
        return None
    builder.watch(own)
    taken = why_taken(builder, host)
    return None if taken is None else because(Code.HOST_CLAIMED, why=taken)


def unsafe(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return why the node's work must not stay in its host's memory, if it must not.

    It may as well where the ladder has no rung to disk after this one: to stay is then less bad.
    """
    if not builder.left(node.host):
        return None
    rule, ladder = builder.rule(node), builder.policies.ladder
    stop = node.stopping
    later = ladder.rungs[ladder.place(stop.rung, stop.kind) + 1 :]
    if rule.rung not in _IN_MEMORY or all(after.rung is not Rung.SUSPEND for after in later):
        return None
    return because(Code.MEMORY_TO_DISK, host=node.host)
