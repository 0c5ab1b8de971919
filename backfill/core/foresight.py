"""What is known of the hours ahead: when a host will be wanted again, and when it will be free."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.cluster import Job, Node
from backfill.core.world import World


def node_of(world: World, host: str) -> Node | None:
    """The host's own Slurm node as last seen; None for a host without one."""
    known = world.hosts.get(host)
    return world.nodes.get(known.node) if known is not None and known.node else None


def wanted_again_s(node: Node) -> float | None:
    """When Slurm will want the node, by reservations and planned starts; None: not known."""
    return min((at_s for at_s in (node.planned_s, node.maintenance_s) if at_s), default=None)


def maintenance_s(world: World, host: str) -> float | None:
    """When the host's next maintenance begins or began; None: none is known."""
    node = node_of(world, host)
    return node.maintenance_s or None if node is not None else None


def free_again_s(world: World, host: str) -> float | None:
    """When, by their time limits, the jobs to which Slurm gave the host are over; None: unknown."""
    known = world.hosts.get(host)
    if known is None or known.node is None or host in world.closed:
        return None
    holders = {j.id: j for j in world.jobs_on(known.node) if j.holds_nodes}
    raw = {str(j.raw_id) for j in holders.values()}
    if any(job_id not in holders and job_id not in raw for job_id in world.takers(host)):
        return None  # a job of which only its hook has told
    ends = [end_s(job) for job in holders.values()]
    if None in ends:
        return None
    return max((end for end in ends if end is not None), default=world.now_s)


def free_since_s(world: World, host: str) -> float:
    """Since when the host's own node looks as it does now; 0 for a host without one."""
    known = world.hosts.get(host)
    if known is None or known.node is None:
        return 0.0
    return world.node_since_s(known.node)


def end_s(job: Job) -> float | None:
    """When a job that runs ends at the latest by its time limit; None: unknown."""
    if job.time_limit_s is None or job.start_s <= 0.0:
        return None
    return job.start_s + job.time_limit_s


def left_s(jobs: Iterable[Job], stopped_s: float) -> float:
    """The longest that one of these jobs, stopped at `stopped_s`, may still run by its limit."""
    ends = [end - stopped_s for job in jobs if (end := end_s(job)) is not None]
    return max(0.0, *ends) if ends else 0.0
