"""Pictures of the outside into changes: only what differs from the world is news."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, Node, NodeBase
from backfill.core.model.fleet import Host, Instance
from backfill.core.model.lifecycle import ABSENT
from backfill.core.model.pilots import PoolPicture
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.world import World
from backfill.ports.pools import PoolObservation
from backfill.ports.provider import HostObservation
from backfill.ports.workload import ClusterObservation

# What a reading lacks all at once is believed when all readings have lacked it for so long.
_ODD_S = 60.0
_FEW = 1  # jobs of which nobody wonders that they are not shown any more

# A host's use of its CPUs has to change by so much to be told.
_NEWS = 0.1


def cluster_changes(world: World, seen: ClusterObservation) -> list[ch.Change]:
    """All of Slurm was read: what is new, different or gone."""
    at_s = seen.seen_s
    if not seen.nodes and any(world.host_of_node(name) for name in world.nodes):
        problem = "it shows no node at all, not even the hosts': not believed"
        return [ch.SourceFailed("slurm", world.now_s, problem)]
    odd = _odd_cluster(world, seen)
    if odd:
        return [ch.SourceFailed("slurm", at_s, sentence(odd), odd=True)]
    found = _seen(world, seen)
    # Nothing is gone as a rule, and then this is all the comparing that it takes.
    if not world.nodes.keys() <= seen.nodes.keys():
        found += [ch.NodeGone(name, at_s) for name in world.nodes if name not in seen.nodes]
    if not world.jobs.keys() <= seen.jobs.keys():
        found += [ch.JobGone(job_id, at_s) for job_id in world.jobs if job_id not in seen.jobs]
    found.append(ch.SourceSeen("slurm", at_s))
    return found


def _odd_cluster(world: World, seen: ClusterObservation) -> Reason | None:
    """Return why a reading of Slurm is not believed as it is, if it is not.

    Jobs end one by one, and are shown for some time after; most of them gone at once, without a
    word of their end, is rather a slurmctld that has not found its state. If it has lost it for
    good, its nodes come to rest.
    """
    if world.jobs.keys() <= seen.jobs.keys():
        return None
    living = [job for job in world.jobs.values() if job.state not in ENDED]
    gone = [job for job in living if job.id not in seen.jobs]
    if len(gone) <= _FEW or 2 * len(gone) <= len(living):
        return None
    shown, every = len(living) - len(gone), len(living)
    held = {node for job in seen.jobs.values() for node in job.nodes}
    torn = [
        node
        for job in gone
        for node in job.nodes
        if job.holds_nodes and node not in held and _occupied(seen.nodes.get(node))
    ]
    if torn:
        return because(Code.FEW_JOBS_TORN, shown=shown, every=every, node=torn[0])
    if _for_long(world, "slurm", seen.seen_s):
        return None
    return because(Code.FEW_JOBS, shown=shown, every=every)


def _occupied(node: Node | None) -> bool:
    bases = (NodeBase.ALLOCATED, NodeBase.MIXED)
    return node is not None and node.base in bases and "COMPLETING" not in node.flags


def _for_long(world: World, source: str, seen_s: float) -> bool:
    """Return True if all its readings have been odd for so long that they have to be taken as they are."""
    known = world.sources.get(source)
    return known is not None and known.odd_s > 0.0 and seen_s >= known.odd_s + _ODD_S


def _seen(world: World, seen: ClusterObservation) -> list[ch.Change]:
    at_s = seen.seen_s
    nodes, jobs = world.nodes.get, world.jobs.get
    # What reads as it did before is the same object: only the rest is compared.
    found: list[ch.Change] = [
        ch.NodeSeen(node, at_s)
        for name, node in seen.nodes.items()
        if (known := nodes(name)) is not node and known != node
    ]
    found += [
        ch.JobSeen(job, at_s)
        for job_id, job in seen.jobs.items()
        if (there := jobs(job_id)) is not job and there != job
    ]
    return found


def node_changes(world: World, names: Sequence[str], seen: ClusterObservation) -> list[ch.Change]:
    """Return what is new after these nodes and every job on them were read."""
    found = _seen(world, seen)
    found += [ch.NodeGone(n, seen.seen_s) for n in names if n not in seen.nodes and n in world.nodes]
    # A job that was on one of them and is not listed there any more has left it; where it is now,
    # if anywhere, the next complete reading tells.
    slurm = world.sources.get("slurm")
    if slurm is None or not slurm.odd_s:  # what it does not show means nothing now
        found += [
            ch.JobGone(job.id, seen.seen_s)
            for name in names
            for job in world.jobs_on(name)
            if job.id not in seen.jobs
        ]
    found.append(ch.NodesRead(tuple(names), seen.seen_s))
    return found


def _differs(known: Instance | None, seen: Instance) -> bool:
    """Return True if a picture is news: memory in use flickers, and a little more of it is none."""
    if known is None or known.rss_mb is None or seen.rss_mb is None:
        return known != seen
    if abs(known.rss_mb - seen.rss_mb) > max(32, known.rss_mb // 4):
        return True
    return replace(known, rss_mb=seen.rss_mb) != seen


def _host_differs(known: Host | None, seen: Host) -> bool:
    """Return True if a picture is news: a host that is a little more busy than before is none."""
    if known is None or known.busy is None or seen.busy is None:
        return known != seen
    return abs(known.busy - seen.busy) > _NEWS or replace(known, busy=seen.busy) != seen


def host_changes(world: World, seen: HostObservation) -> list[ch.Change]:
    """One host was read. What an unreachable host carries is unknown, not gone."""
    at_s, host = seen.seen_s, seen.host
    found: list[ch.Change] = []
    if _host_differs(world.hosts.get(host.name), host):
        found.append(ch.HostSeen(host, at_s))
    if not host.reachable:
        found.append(ch.SourceFailed(host.name, at_s, host.problem))
        return found
    odd = _odd_host(world, seen)
    if odd:
        found.append(ch.SourceFailed(host.name, at_s, sentence(odd), odd=True))
        return found
    found += [
        ch.InstanceSeen(instance, at_s)
        for instance in seen.instances.values()
        if _differs(world.instances.get((host.name, instance.name)), instance)
    ]
    found += [
        ch.InstanceGone(host.name, known.name, at_s)
        for known in world.fleet.instances_on(host.name)
        if known.name not in seen.instances
    ]
    found.append(ch.SourceSeen(host.name, at_s))
    return found


def pool_changes(world: World, seen: PoolObservation | None, problem: str) -> list[ch.Change]:
    """Return what the pool outside said; one that gave no answer has the payloads that it had before."""
    known = world.pilots.pool
    if seen is None:
        return [ch.PoolRead(replace(known, problem=problem))] if known.problem != problem else []
    if seen.seen_s < known.seen_s:
        return []
    return [ch.PoolRead(PoolPicture(seen.seen_s, seen.idle, silent=tuple(seen.silent)))]


def _odd_host(world: World, seen: HostObservation) -> Reason | None:
    """Return why a reading of a host is not believed as it is, if it is not.

    All of its instances gone at once, none of which we have taken away: that is rather a hypervisor
    that was restarted without its state, or another one that answers in its place.
    """
    host = seen.host.name
    known = [i for i in world.fleet.instances_on(host) if not _may_go(world, host, i.name)]
    if not known or any(i.name in seen.instances for i in known):
        return None
    if _for_long(world, host, seen.seen_s):
        return None
    names = (*(i.name for i in known[:3]), *(("…",) if len(known) > 3 else ()))
    return because(Code.NO_INSTANCES, names=names)


def _may_go(world: World, host: str, name: str) -> bool:
    """Return True if nobody wonders that an instance is gone from there."""
    node = world.managed.get(name)
    if node is None or node.phase in ABSENT or world.busy(name):
        return True
    return node.host != host or any(i.host != host for i in world.places_of(name))
