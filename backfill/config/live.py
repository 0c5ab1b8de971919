"""Contradictions between the policy file and the living cluster; pure, it asks nobody."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping

from backfill.config.model import Config, HookPlaceKind, Provider, ReadKind, RegistrationKind
from backfill.config.power import doubted, of_hosts, of_ours, switched_off
from backfill.core.model.cluster import Node, NodeBase, SlurmSettings
from backfill.core.model.fleet import Host, Rung
from backfill.core.model.quantities import Resources
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.spread import Larger
from backfill.core.room import too_large_to_bind

# Of the releases that the contract suites run on.
_NEWEST = (26, 5)
_OLDEST_PYSLURM = (25, 11)
_SELDOM_S = 10.0  # readings take a while, and after 15 s there is a gap in what we know
_WITHOUT_DEVICES = (Rung.SUSPEND, Rung.MIGRATE)
_LAST_STEP = re.compile(r"(\.[^.\[\]]*|\[[^\[\]]*\])$")


def conflicts(
    config: Config, settings: SlurmSettings, nodes: Mapping[str, Node], hosts: Mapping[str, Host]
) -> list[str]:
    """Every reason why this file must not be used with this cluster, one sentence each.

    `nodes` are all that Slurm knows, `hosts` those that a provider has observed, reachable or not.
    A sentence begins with the file's line where the file has one; it does not name the file.
    """
    return [
        *_cluster_name(config, settings),
        *_partitions(config, settings),
        *_host_nodes(config, nodes),
        *_addresses(config, nodes),
        *_node_count(config, settings, nodes),
        *_timeout(config, settings),
        *_hook_time(config, settings),
        *_power(config, settings, nodes),
        *_reach(config, hosts),
        *_room(config, hosts),
        *_numa(config, hosts),
    ]


def hints(
    config: Config, settings: SlurmSettings, nodes: Mapping[str, Node], hosts: Mapping[str, Host]
) -> list[str]:
    """Return a sentence for each thing that could work better; same arguments as `conflicts`."""
    found = [
        f"host {name} cannot be reached now: {host.problem or 'it does not answer'}"
        for name, host in hosts.items()
        if not host.reachable and any(h.reachable for h in hosts.values())
    ]
    if not settings.prolog_slurmctld and not settings.prolog:
        found.append(
            "neither Prolog nor PrologSlurmctld is set in slurm.conf, so hosts are given back only "
            "after the high-priority job has started; install the eviction hook"
        )
    return [
        *hints_of_file(config),
        *found,
        *_release(config, settings),
        *_batch_start(config, settings),
        *_devices(config, settings, hosts),
        *_power_in_doubt(config, settings, nodes),
        *_power_of_ours(config, settings, nodes),
    ]


def hints_of_file(config: Config) -> list[str]:
    """Return those that need no cluster. A daemon must start with such a file: instances may stand still."""
    ladders = [("ladder", config.policies.ladder.rungs)]
    workloads = enumerate(config.policies.workloads.entries)
    ladders += [(f"workloads[{index}].ladder", one.ladder) for index, one in workloads]
    shares = [hint for path, rungs in ladders for hint in _shares(config, path, rungs)]
    return [*_seldom(config), *shares, *_not_in_clouds(config)]


def _not_in_clouds(config: Config) -> Iterator[str]:
    """Tell of environments whose image a cloud could have too: one of the same name is not taken for it."""
    environments, local = config.policies.environments, config.libvirt.images if config.libvirt else {}
    clouds = [host.name for host in config.hosts if host.provider is Provider.OPENSTACK]
    for index, entry in enumerate(environments.entries):
        image = local.get(entry.image)
        if image is None or image.environment == entry.name:
            continue
        if lacking := [name for name in clouds if environments.lacks(name, entry.image)]:
            at = _at(config, f"environments.entries[{index}].image")
            yield (
                f"{at} is {entry.image} of libvirt's images, so that {', '.join(lacking)} gets no instances "
                "of it; if the cloud has it too, write it into openstack.images, with its name there"
            )


def _seldom(config: Config) -> Iterator[str]:
    poll_s = config.daemon.poll_s
    if poll_s > _SELDOM_S:
        yield (
            f"{_at(config, 'daemon.poll_s')} is {poll_s:g} s, and after 15 s without a reading of Slurm "
            f"nothing counts as seen; write {_SELDOM_S:g} s or less"
        )


def _shares(config: Config, path: str, rungs: tuple[RungRule, ...]) -> Iterator[str]:
    for index, rule in enumerate(rungs):
        key, percent = f"{path}[{index}].cpu_percent", rule.cpu_percent
        if percent is None:
            continue
        if rule.rung is not Rung.THROTTLE:
            yield f"{_at(config, key)} has no meaning for {rule.rung}, only for throttle; remove it"
        elif percent >= 100:
            yield f"{_at(config, key)} is {percent}, which slows nothing down; write 99 or less"


def _batch_start(config: Config, settings: SlurmSettings) -> Iterator[str]:
    """Tell that a Prolog's hold looks like a lost job to Slurm when the host's slurmd registers meanwhile."""
    match = re.match(r"\d+", settings.raw.get("BatchStartTimeout", ""))
    longest_s = config.policies.answer_within_s + config.slurm.hooks.margin_s
    on_hosts = config.slurm.hooks.place is HookPlaceKind.HOST
    if on_hosts and match and int(match[0]) <= longest_s:
        yield (
            f"{_at(config, 'answer_within_s')}: the hook may hold a job on its host for "
            f"{longest_s:g} s, and Slurm may start it anew after BatchStartTimeout = {match[0]} s "
            f"as missing; write BatchStartTimeout={int(longest_s) + 10} into slurm.conf"
        )


def _devices(config: Config, settings: SlurmSettings, hosts: Mapping[str, Host]) -> Iterator[str]:
    """Say what jobs with devices will miss."""
    entries = config.policies.devices.entries
    if not entries:
        return
    on_hosts = config.slurm.hooks.place is HookPlaceKind.HOST and config.daemon.listen
    if not settings.prolog_slurmctld and not (settings.prolog and on_hosts):
        yield (
            f"{_at(config, 'devices.entries')}: a job's first command may come before its devices, "
            "because no hook holds its start; run `backfill slurm hooks install`"
        )
    seen = [host for host in hosts.values() if host.reachable]
    for index, rule in enumerate(entries):
        most = max((host.functions for host in seen), default=rule.functions)
        if rule.functions > most:
            yield (
                f"{_at(config, f'devices.entries[{index}].functions')} is {rule.functions}, and "
                f"libvirt shows no more than {most} on any host: jobs that ask for {rule.name} "
                "will wait; write to sriov_numvfs of the cards there, and see that libvirt has "
                "its driver for node devices"
            )
    kinds = [rule.rung for rule in config.policies.ladder.rungs]
    if Rung.PAUSE in kinds:
        in_vain = [kind for kind in kinds[kinds.index(Rung.PAUSE) :] if kind in _WITHOUT_DEVICES]
        if in_vain:
            yield (
                f"{_at(config, 'ladder')}: jobs with devices skip {' and '.join(in_vain)} after "
                f"pause, since a guest that stands still cannot let go of them; put "
                f"{in_vain[0]} first where they must not start over"
            )


def _release(config: Config, settings: SlurmSettings) -> Iterator[str]:
    version = settings.version
    if version.major > _NEWEST:
        newest = f"{_NEWEST[0]}.{_NEWEST[1]:02d}"
        yield f"this is Slurm {version}, and {newest} is the newest with which backfill is tested"
    if config.slurm.read is ReadKind.PYSLURM and version.major < _OLDEST_PYSLURM:
        yield (
            f"{_at(config, 'slurm.read')} is pyslurm, which talks to Slurm 25.11 and later, and "
            f"this is {version}: it is read as text; write read: auto"
        )


def _at(config: Config, path: str) -> str:
    """Name a key, after the line where it, or what it is part of, stands in the file."""
    spot = path
    while spot and spot not in config.lines:
        shorter = _LAST_STEP.sub("", spot)
        spot = shorter if shorter != spot else ""
    return f"line {config.lines[spot]}: {path}" if spot else path


def _near(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def _cluster_name(config: Config, settings: SlurmSettings) -> Iterator[str]:
    ours, slurms = config.policies.cluster, settings.cluster
    if slurms and ours.casefold() != slurms.casefold():
        yield (
            f"{_at(config, 'cluster')} is {ours}, but this Slurm's ClusterName is {slurms}; "
            f"write cluster: {slurms}, or point slurm.conf to the right cluster"
        )


def _partitions(config: Config, settings: SlurmSettings) -> Iterator[str]:
    """Yield partitions that Slurm does not have: jobs of a workload there would have no patience."""
    for path, names in _named_partitions(config):
        for index, name in enumerate(names):
            if name not in settings.partitions:
                known = ", ".join(settings.partitions) or "none"
                yield (
                    f"{_at(config, f'{path}[{index}]')} is {name}, and Slurm has no "
                    f"such partition; {_near(name, settings.partitions)}Partitions: {known}"
                )


def _named_partitions(config: Config) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the lists of partitions in the file, by their key."""
    for level in ("low", "high"):
        yield f"priorities.{level}", getattr(config.policies.priorities, level)
    for index, one in enumerate(config.policies.workloads.entries):
        yield f"workloads[{index}].partitions", one.partitions


def _host_nodes(config: Config, nodes: Mapping[str, Node]) -> Iterator[str]:
    for index, host in enumerate(config.hosts):
        if host.node is not None and host.node not in nodes:
            yield (
                f"{_at(config, f'hosts[{index}].node')} is {host.node}, and Slurm has no such "
                f"node; {_near(host.node, nodes)}Write node: null for a host that is no Slurm node"
            )


def _addresses(config: Config, nodes: Mapping[str, Node]) -> Iterator[str]:
    template = config.policies.instances
    pairs = zip(template.names, template.addresses, strict=True)
    ours = {str(ipaddress.ip_interface(address).ip): name for name, address in pairs}
    for node in nodes.values():
        name = ours.get(node.address)
        if name is not None and node.name != name:
            yield (
                f"{_at(config, 'instances.addresses')} gives {node.address} to {name}, but Slurm's "
                f"node {node.name} has that address; choose a range that is free"
            )


def _node_count(config: Config, settings: SlurmSettings, nodes: Mapping[str, Node]) -> Iterator[str]:
    if config.slurm.registration is not RegistrationKind.DYNAMIC:
        return  # lines of slurm.conf make room for themselves
    wanted = len(nodes.keys() | set(config.policies.instances.names))
    if wanted > settings.max_node_count:
        yield (
            f"{_at(config, 'instances.names')} needs room for {wanted} nodes in Slurm, and "
            f"MaxNodeCount is {settings.max_node_count}; set MaxNodeCount={wanted} or more in "
            "slurm.conf and restart slurmctld, or name fewer instances"
        )


def _timeout(config: Config, settings: SlurmSettings) -> Iterator[str]:
    """Slurm requeues or ends the jobs of a node that is silent for SlurmdTimeout."""
    limit_s, longest_s = settings.slurmd_timeout_s, config.policies.longest_stop_s
    if limit_s == 0 or (longest_s is not None and longest_s < limit_s):
        return
    how_long = "without limit" if longest_s is None else f"for up to {longest_s:g} s"
    yield (
        f"{_at(config, 'ladder')} lets an instance stand still {how_long}, and Slurm gives a "
        f"silent node up after SlurmdTimeout = {limit_s} s; set SlurmdTimeout=0 in slurm.conf"
        f"{_shorter_stop(config, limit_s)}"
    )


def _shorter_stop(config: Config, limit_s: int) -> str:
    """Say what has to change in the ladder, where one rung alone can help."""
    ladder = config.policies.ladder
    end = "" if ladder.ends else "end the ladder with {rung: requeue}"
    shorter = _shorter_rung(config, limit_s)
    if end and all(r.for_s is not None for r in ladder.rungs if r.rung in _STOPS):
        ended = Ladder((*ladder.rungs, RungRule(Rung.REQUEUE))).longest_stop_s
        if ended is not None and ended < limit_s:
            return f", or {end}"
    if not shorter:
        return ""
    return ", or " + " and ".join(filter(None, (end, shorter)))


_STOPS = (Rung.PAUSE, Rung.SUSPEND)


def _shorter_rung(config: Config, limit_s: int) -> str:
    """Say which rung has to be how short; empty: that alone is not enough."""
    stops = [
        (rule.for_s, index, rule)
        for index, rule in enumerate(config.policies.ladder.rungs)
        if rule.rung in _STOPS
    ]
    if not stops:
        return ""
    for_s, index, rule = max(stops, key=lambda s: float("inf") if s[0] is None else s[0])
    others_s = sum(float("inf") if s is None else s + r.within_s for s, i, r in stops if i != index)
    room_s = limit_s - others_s - rule.within_s - 1
    if room_s < 1:
        return ""
    verb = "set" if for_s is None else "shorten"
    return f"{verb} ladder[{index}].for_s ({rule.rung}) to {int(room_s)} s or less"


def _hook_time(config: Config, settings: SlurmSettings) -> Iterator[str]:
    limit = settings.hook_limit
    if limit and limit[1] <= config.policies.answer_within_s:
        yield (
            f"{_at(config, 'answer_within_s')} is {config.policies.answer_within_s:g} s, and Slurm "
            f"kills a hook after {limit[0]} = {limit[1]} s, which fails the job; "
            "make answer_within_s shorter"
        )


def _power(config: Config, settings: SlurmSettings, nodes: Mapping[str, Node]) -> Iterator[str]:
    at = {host.node: index for index, host in enumerate(config.hosts) if host.node in nodes}
    found = switched_off(settings, nodes, [nodes[name] for name in at if name is not None])
    if found:
        first = next(iter(found))
        yield f"{_at(config, f'hosts[{at[first]}].node')} is {first}, and {of_hosts(found)}"


def _power_in_doubt(config: Config, settings: SlurmSettings, nodes: Mapping[str, Node]) -> Iterator[str]:
    at = {host.node: index for index, host in enumerate(config.hosts) if host.node in nodes}
    if told := doubted(settings, nodes, [nodes[name] for name in at if name is not None]):
        yield f"{_at(config, 'hosts')}: {told}"


def _power_of_ours(config: Config, settings: SlurmSettings, nodes: Mapping[str, Node]) -> Iterator[str]:
    low = config.policies.priorities.low
    ours = [
        nodes.get(name) or Node(name, NodeBase.FUTURE, partitions=low)
        for name in config.policies.instances.names
    ]
    states = settings.raw.get("SuspendExcStates", "").split(",")
    dynamic = config.slurm.registration is RegistrationKind.DYNAMIC
    found = {} if dynamic and "DYNAMIC_NORM" in states else switched_off(settings, nodes, ours)
    if found:
        yield f"{_at(config, 'instances.names')}: {of_ours(found, low)}"


def _reach(config: Config, hosts: Mapping[str, Host]) -> Iterator[str]:
    silent = [host for host in hosts.values() if not host.reachable]
    if silent and len(silent) == len(hosts):
        first = silent[0]
        others = f" (nor can the other {len(silent) - 1})" if silent[1:] else ""
        yield (
            f"{_at(config, f'hosts[{_index(config, first.name)}].uri')}: host {first.name} cannot "
            f"be reached{others}: {first.problem or 'it does not answer'}; is its hypervisor up?"
        )


def _index(config: Config, name: str) -> int:
    return next((i for i, host in enumerate(config.hosts) if host.name == name), 0)


def _room(config: Config, hosts: Mapping[str, Host]) -> Iterator[str]:
    limits = config.policies.limits
    shape = config.policies.instances.flavour.resources
    kept = Resources(limits.keep_cpus, limits.keep_memory_mb)
    rooms = [host.capacity - kept for host in hosts.values() if host.reachable]
    if not rooms or any(shape.fits(room) for room in rooms):
        return
    largest = max(rooms, key=lambda room: (room.memory_mb, room.cpus))
    yield (
        f"{_at(config, 'instances.flavour')} takes {shape}, more than any reachable host offers "
        f"(the largest: {largest}, without what limits.keep_* holds back); make it smaller"
    )


def _numa(config: Config, hosts: Mapping[str, Host]) -> Iterator[str]:
    """Yield that no host would ever carry an instance for want of a NUMA node that is large enough."""
    policies, shape = config.policies, config.policies.instances.flavour.resources
    seen = [host for host in hosts.values() if host.reachable]
    if policies.placement.larger_than_numa is not Larger.REFUSE or not seen:
        return
    if all(too_large_to_bind(host, shape, policies) for host in seen):
        yield (
            f"{_at(config, 'instances.flavour')} takes {shape}, more than any NUMA node of a reachable host "
            "has for instances; make it smaller, or write placement.larger_than_numa: span"
        )
