"""The ports that actions go through, and fresh looks at one node or instance as changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill.core.model import changes as ch
from backfill.engine.almanac import Almanac
from backfill.ports.capabilities import CheckpointKeeper
from backfill.ports.hostbook import HostBook
from backfill.ports.pools import PayloadPool, PoolObservation
from backfill.ports.provider import HostObservation, InstanceProvider, Provisioner
from backfill.ports.storage import Clock
from backfill.ports.workload import ClusterObservation, Credentials, WorkloadManager


@dataclass(frozen=True)
class Outside:
    """Every port that actions go through. `providers` is keyed by host."""

    manager: WorkloadManager
    providers: Mapping[str, InstanceProvider]
    clock: Clock
    # Those of the providers that keep checkpoints, by host.
    keepers: Mapping[str, CheckpointKeeper] = field(default_factory=dict)
    credentials: Credentials | None = None  # None: munge is not proven
    provisioner: Provisioner | None = None  # None: nobody configures nodes but their image
    almanac: Almanac = field(default_factory=Almanac)
    pool: PayloadPool | None = None  # None: nobody is asked what waits outside
    book: HostBook = field(default_factory=HostBook)  # of the providers


def observe_cluster(outside: Outside) -> ClusterObservation:
    """All of Slurm, its moments told in our time."""
    return _in_our_time(outside, outside.manager.observe, whole=True)


def observe_nodes(outside: Outside, names: Sequence[str]) -> ClusterObservation:
    """Return these nodes with their jobs, likewise."""
    return _in_our_time(outside, lambda: outside.manager.observe_nodes(names), whole=False)


def _in_our_time(
    outside: Outside, read: Callable[[], ClusterObservation], *, whole: bool
) -> ClusterObservation:
    began_s, ahead_s = outside.clock.now(), outside.clock.ahead()
    seen = read()
    seen_s = _seen_s(outside, seen.seen_s, began_s, ahead_s)
    almanac = outside.almanac
    nodes, jobs = almanac.nodes(seen.nodes, ahead_s), almanac.jobs(seen.jobs, ahead_s)
    if whole:
        almanac.forget_others(seen.nodes, seen.jobs)
    return ClusterObservation(seen_s, nodes, jobs)


def observe_host(outside: Outside, host: str) -> HostObservation:
    """One host, likewise."""
    began_s, ahead_s = outside.clock.now(), outside.clock.ahead()
    seen = outside.providers[host].observe(host)
    seen_s = _seen_s(outside, seen.seen_s, began_s, ahead_s)
    return seen if seen_s == seen.seen_s else replace(seen, seen_s=seen_s)


def observe_pool(outside: Outside, pool: PayloadPool) -> PoolObservation:
    """Return the pool outside, likewise; when runs ended stays as it says."""
    began_s, ahead_s = outside.clock.now(), outside.clock.ahead()
    seen = pool.observe()
    return replace(seen, seen_s=_seen_s(outside, seen.seen_s, began_s, ahead_s))


def _seen_s(outside: Outside, seen_s: float, began_s: float, ahead_s: float) -> float:
    """Return a driver's moment by the machine's clock, in our time; it may seem older, never newer."""
    if outside.clock.ahead() != ahead_s:
        return began_s  # the clock was set meanwhile: nobody knows on which side of that it was
    return min(seen_s + ahead_s, outside.clock.now()) if ahead_s else seen_s


def guests_now(outside: Outside) -> float:
    """Return the time for a guest's clock: the machine's, by which Slurm and munge go."""
    return outside.clock.now() - outside.clock.ahead()


def read_node(outside: Outside, name: str) -> list[ch.Change]:
    """One Slurm node, fresh."""
    seen_s = outside.clock.now()
    found = outside.manager.read_nodes([name])
    node = outside.almanac.nodes(found, outside.clock.ahead()).get(name)
    if node is None:
        return [ch.NodeGone(name, seen_s)]
    return [ch.NodeSeen(node, seen_s)]


def read_instance(outside: Outside, host: str, name: str) -> list[ch.Change]:
    """One instance on one host, fresh."""
    seen_s = outside.clock.now()
    instance = outside.providers[host].read(host, name)
    if instance is None:
        return [ch.InstanceGone(host, name, seen_s)]
    return [ch.InstanceSeen(instance, seen_s)]


def read_job(outside: Outside, job_id: str) -> list[ch.Change]:
    """One job, fresh."""
    seen_s = outside.clock.now()
    found = outside.manager.read_jobs([job_id])
    job = outside.almanac.jobs(found, outside.clock.ahead()).get(job_id)
    if job is None:
        return [ch.JobGone(job_id, seen_s)]
    return [ch.JobSeen(job, seen_s)]


def read_node_and_jobs(outside: Outside, name: str) -> list[ch.Change]:
    """One node with its jobs, fresh; every subject is reported, changed or not."""
    seen = observe_nodes(outside, [name])
    found: list[ch.Change] = [ch.NodeSeen(n, seen.seen_s) for n in seen.nodes.values()]
    found += [ch.JobSeen(j, seen.seen_s) for j in seen.jobs.values()]
    if name not in seen.nodes:
        found.append(ch.NodeGone(name, seen.seen_s))
    found.append(ch.NodesRead((name,), seen.seen_s))
    return found
