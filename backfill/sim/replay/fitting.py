"""Fits a policy to the cluster of a trace: which nodes carry instances, and how many names."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from backfill.core.policy import PolicySet, Priorities, Template
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.trace import JobTrace

TOO_WIDE = "more processors than an instance has"
TOO_MUCH_MEMORY = "more memory than an instance has for jobs"
LOW_ALREADY = "low-priority by the policy, and --backlog gives others"


class MisfitError(Exception):
    """The policy does not fit the cluster: one sentence with the remedy."""


def node_names(policies: PolicySet, cluster: Cluster) -> tuple[str, ...]:
    """Return names of the cluster's nodes: the policy's hosts first, then others of its own."""
    hosts = policies.hosts
    if len(hosts) > cluster.nodes:
        raise MisfitError(
            f"the policy has {len(hosts)} hosts and the cluster {cluster.nodes} nodes; "
            "give a larger --cluster, or take hosts out of a copy of the policy"
        )
    taken = {*hosts, *policies.instances.names}
    others = (name for i in range(1, 10**9) if (name := f"node{i}") not in taken)
    return (*hosts, *(next(others) for _ in range(cluster.nodes - len(hosts))))


def everywhere(policies: PolicySet, cluster: Cluster) -> PolicySet:
    """Return the policy with every node as a host, and as many names of instances as can be there."""
    flavour = policies.instances.flavour
    most = min(policies.limits.max_per_host, max(1, cluster.cpus // flavour.cpus) * 2)
    wanted = cluster.nodes * most
    template = policies.instances
    if wanted > len(template.names):
        template = _named(template, wanted)
    return replace(policies, hosts=node_names(policies, cluster), instances=template)


def _named(template: Template, count: int) -> Template:
    """As many names and addresses as wanted; simulated ones need no room in a real network."""
    stem = template.names[0].rstrip("0123456789") or "v"
    names = tuple(f"{stem}{i}" for i in range(1, count + 1))
    first = int(ipaddress.IPv4Address("10.128.0.1"))
    addresses = tuple(f"{ipaddress.IPv4Address(first + i)}/8" for i in range(count))
    return replace(template, names=names, addresses=addresses)


def misfit(trace: JobTrace, index: int, policies: PolicySet) -> str:
    """Return why no instance can carry this job; empty: one can."""
    flavour = policies.instances.flavour
    if trace.processors[index] > flavour.cpus:
        return TOO_WIDE
    return TOO_MUCH_MEMORY if trace.told(index).memory_mb > flavour.node_memory_mb else ""


def low_jobs(trace: JobTrace, policies: Iterable[PolicySet]) -> JobTrace:
    """Return the jobs that instances of any of these can carry; the others are counted as left out."""
    first, *others = policies
    left_out = Counter(trace.left_out)
    kept = []
    for index in range(len(trace)):
        why = misfit(trace, index, first)
        if not why or any(not misfit(trace, index, one) for one in others):
            kept.append(index)
        else:
            left_out[why] += 1
    return trace if len(kept) == len(trace) else trace.taken(kept, left_out)


def sides(trace: JobTrace, priorities: Priorities) -> tuple[JobTrace, JobTrace]:
    """Return the jobs of high priority and those of low priority, as far as the trace says which.

    Both are of the whole trace's time.
    """
    low, high = list[int](), list[int]()
    for index, told in enumerate(trace.details or ()):
        is_low = told.partition in priorities.low or (told.qos and told.qos in priorities.low_qos)
        (low if is_low else high).append(index)
    if not low:
        return trace, trace.taken([], {})
    whole = replace(trace, origin=trace.begin)
    return whole.taken(high, whole.left_out), replace(whole.taken(low, {}), noted={})


def memory_for(policies: PolicySet, cluster: Cluster) -> int:
    """MB of a node on which a full set of stopped instances leaves room for as many others."""
    flavour = policies.instances.flavour
    full = max(1, cluster.cpus // flavour.cpus)
    return 2 * full * flavour.memory_mb + policies.limits.keep_memory_mb


def depth_for(policies: PolicySet, cluster: Cluster) -> int:
    """Return how many low-priority jobs wait at once: as many as could start at the same time."""
    return max(16, cluster.processors)
