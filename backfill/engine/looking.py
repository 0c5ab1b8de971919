"""The ports that actions go through, and fresh looks at one node or instance as changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill.abilities import CheckpointKeeper
from backfill.core import changes as ch
from backfill.ports import (
    Clock,
    ClusterObservation,
    Credentials,
    HostObservation,
    InstanceProvider,
    Provisioner,
    WorkloadManager,
)


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


def observe_cluster(outside: Outside) -> ClusterObservation:
    """All of Slurm, its moment told in our time."""
    ahead_s = outside.clock.ahead()  # before it is read: a picture may seem older, never newer
    seen = outside.manager.observe()
    return replace(seen, seen_s=seen.seen_s + ahead_s) if ahead_s else seen


def observe_nodes(outside: Outside, names: Sequence[str]) -> ClusterObservation:
    """These nodes with their jobs, likewise."""
    ahead_s = outside.clock.ahead()
    seen = outside.manager.observe_nodes(names)
    return replace(seen, seen_s=seen.seen_s + ahead_s) if ahead_s else seen


def observe_host(outside: Outside, host: str) -> HostObservation:
    """One host, likewise."""
    ahead_s = outside.clock.ahead()
    seen = outside.providers[host].observe(host)
    return replace(seen, seen_s=seen.seen_s + ahead_s) if ahead_s else seen


def guests_now(outside: Outside) -> float:
    """What a guest's clock is to be set to: the machine's, by which Slurm and munge go."""
    return outside.clock.now() - outside.clock.ahead()


def read_node(outside: Outside, name: str) -> list[ch.Change]:
    """One Slurm node, fresh."""
    seen_s = outside.clock.now()
    node = outside.manager.read_nodes([name]).get(name)
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


def read_node_and_jobs(outside: Outside, name: str) -> list[ch.Change]:
    """One node with its jobs, fresh; every subject is reported, changed or not."""
    seen = observe_nodes(outside, [name])
    found: list[ch.Change] = [ch.NodeSeen(n, seen.seen_s) for n in seen.nodes.values()]
    found += [ch.JobSeen(j, seen.seen_s) for j in seen.jobs.values()]
    if name not in seen.nodes:
        found.append(ch.NodeGone(name, seen.seen_s))
    found.append(ch.NodesRead((name,), seen.seen_s))
    return found
