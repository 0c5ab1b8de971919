"""What takes a host from us: jobs, or its maintenance, which asks more of the ladder."""

from __future__ import annotations

from backfill.core.lifecycle import ManagedNode, Rung
from backfill.core.plan_builder import PlanBuilder

# Rungs on which the work is in the host's memory, which no work on the host itself leaves alone.
_IN_MEMORY = (Rung.THROTTLE, Rung.PAUSE)


def why_taken(builder: PlanBuilder, host: str) -> str:
    """`was given to job 7`, or what else takes the host as a whole; empty where nothing does."""
    takers = builder.world.takers(host)
    if takers:
        return f"was given to job {', '.join(takers)}"
    return "is left for its maintenance" if builder.taken(host) else ""


def only_claimed(builder: PlanBuilder, node: ManagedNode) -> str:
    """Say why work is not lost for its host yet, which nobody but a hook says is taken, or "".

    To stand still costs nothing, and for that a word is enough; Slurm shows soon who got the host.
    """
    world, host = builder.world, node.host
    if host in world.closed or node.name in world.closed or builder.left(host):
        return ""
    known = world.hosts.get(host)
    own = None if known is None else known.node
    if own is None or not world.claims_on(host):
        return ""
    if any(job.holds_nodes for job in world.jobs_on(own)):
        return ""
    builder.watch(own)
    return f"a hook says that {host} {why_taken(builder, host)}, and Slurm does not show it yet"


def unsafe(builder: PlanBuilder, node: ManagedNode) -> str:
    """Say why the node's work must not stay in its host's memory, or return an empty text.

    Empty as well where the ladder has no rung to disk after this one: to stay is then less bad.
    """
    if not builder.left(node.host):
        return ""
    rule, ladder = builder.rule(node), builder.policies.ladder
    stop = node.stopping
    later = ladder.rungs[ladder.place(stop.rung, stop.kind) + 1 :]
    if rule.rung not in _IN_MEMORY or all(after.rung is not Rung.SUSPEND for after in later):
        return ""
    return f"what is in the memory of {node.host} may not outlast its maintenance"
