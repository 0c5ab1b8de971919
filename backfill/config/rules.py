"""Checks between the values of one policy file; pure, one function per rule."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backfill.config import forms
from backfill.config.cloud import OpenStackEntry
from backfill.config.model import (
    Bind,
    CondorEntry,
    DaemonSettings,
    HostEntry,
    LibvirtEntry,
    NumaMemory,
    Provider,
    ReadKind,
    SlurmSettingsFile,
)
from backfill.config.reach import unreachable
from backfill.core.model.fleet import Rung
from backfill.core.policies.access import EVERYBODY, People, Role, Roles
from backfill.core.policies.devices import Devices
from backfill.core.policies.environments import Environments
from backfill.core.policies.ladder import Ladder
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.saving import Saving
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Larger, Spread
from backfill.core.policies.supply import Supply
from backfill.core.policies.workloads import JobSet, WarnBy, Workload, Workloads
from backfill.core.policy import Priorities, Proof, Template

_STAYING = (Rung.THROTTLE, Rung.PAUSE, Rung.SUSPEND)
_MOST_WORKLOADS = 5000
_COMPARED = 300  # so many entries with all after them: each with each would take minutes


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that does not hold, at a key's path."""

    path: str
    what: str
    remedy: str


def findings(values: Mapping[str, Any]) -> Iterator[BrokenRule]:
    """Apply every rule whose values could be read; `values` is by top-level key."""
    for rule, needs in _RULES:
        if all(name in values for name in needs):
            yield from rule(*(values[name] for name in needs))


def _partitions(priorities: Priorities) -> Iterator[BrokenRule]:
    if not priorities.low:
        yield BrokenRule("priorities.low", "is empty", "name a partition whose jobs may be evicted")
    low = frozenset(priorities.low)
    for index, name in enumerate(priorities.high):
        if name in low:
            what = f"names the partition {name}, which is in priorities.low too"
            yield BrokenRule(f"priorities.high[{index}]", what, "keep it in one of them")


def _rungs(ladder: Ladder) -> Iterator[BrokenRule]:
    if not ladder.rungs:
        yield BrokenRule("ladder", "is empty", "give at least one rung, such as {rung: requeue}")
    yield from _order(ladder, "ladder")


def _order(ladder: Ladder, at: str) -> Iterator[BrokenRule]:
    before: dict[Rung, int] = {}
    for index, rule in enumerate(ladder.rungs):
        path, rung = f"{at}[{index}].rung", rule.rung
        if rung in before:
            what = f"is {rung}, as {at}[{before[rung]}] already is"
            yield BrokenRule(path, what, "give each rung once")
        elif rung is Rung.PAUSE and Rung.SUSPEND in before:
            what = "is pause, after suspend, which has already stopped the instance"
            yield BrokenRule(path, what, "put pause before suspend")
        elif rung is Rung.THROTTLE and index:
            what = "is throttle, after a rung that has stopped or moved the instance"
            yield BrokenRule(path, what, "put throttle first")
        elif rung is Rung.REQUEUE and index < len(ladder.rungs) - 1:
            what = f"is requeue, and {at}[{index + 1}] would never be reached"
            yield BrokenRule(path, what, "put requeue last")
        if rung not in _STAYING and rule.for_s is not None:
            what = f"has no meaning for {rung}, which is over when it is done"
            yield BrokenRule(f"{at}[{index}].for_s", what, "remove it")
        before.setdefault(rung, index)


def _workloads(workloads: Workloads, ladder: Ladder, proof: Proof) -> Iterator[BrokenRule]:
    if len(workloads.entries) > _MOST_WORKLOADS:
        what = f"has {len(workloads.entries)} entries, and each new job is compared with all of them"
        yield BrokenRule("workloads", what, f"write {_MOST_WORKLOADS} or fewer: one can name many users")
        return
    names: dict[str, int] = {}
    before: list[JobSet] = []
    for index, one in enumerate(workloads.entries):
        at, jobs = f"workloads[{index}]", JobSet.of(one)
        if (first := names.setdefault(one.name, index)) < index:
            what = f"is {one.name}, as workloads[{first}].name already is"
            yield BrokenRule(f"{at}.name", what, "give each workload a name of its own")
        if any(earlier.has_all_of(jobs) for earlier in before):
            what = "has no jobs, because an entry before it has all of them"
            yield BrokenRule(at, what, "put it before that entry, or name fewer jobs there")
        yield from _order(Ladder(one.ladder), f"{at}.ladder")
        yield from _warning(one, at)
        yield from _kept(Ladder(one.ladder), proof, f"{at}.ladder")
        its = Workloads((one,)).ladder(one.name, ladder, to_disk=proof is Proof.MEMORY)
        yield from _patience(one, its, ready=its is not ladder, at=at)
        if index < _COMPARED:
            before.append(jobs)


def _supply(supply: Supply, condor: CondorEntry | None, priorities: Priorities) -> Iterator[BrokenRule]:
    """Yield what pilots on demand cannot do without."""
    if not supply.on:
        return
    if condor is None:
        what = f"is {supply.most}, and no pool is named"
        yield BrokenRule("supply.most", what, "add the section condor with its collector, or write 0")
    for name in ("user", "partition", "script"):
        if not getattr(supply, name):
            what = f"is not set, and supply.most is {supply.most}"
            yield BrokenRule(f"supply.{name}", what, "say it, or write most: 0")
    if supply.partition and supply.partition not in priorities.low:
        what = f"is {supply.partition}, which is not in priorities.low"
        yield BrokenRule("supply.partition", what, "name one of those whose jobs may be pushed aside")
    yield from _sending(supply)


def _sending(supply: Supply) -> Iterator[BrokenRule]:
    """Yield what would make a pilot somebody else's job, or none at all."""
    if supply.user == "root":
        yield BrokenRule("supply.user", "is root", "name an ordinary user: payloads are other people's")
    if supply.shortest_s > supply.longest_s:
        what = f"is more than supply.longest_s = {supply.longest_s:g} s"
        yield BrokenRule("supply.shortest_s", what, "lower it")
    for index, option in enumerate(supply.options):
        if not option.startswith("--"):
            what = f"is {option}, which is no long option of sbatch"
            yield BrokenRule(f"supply.options[{index}]", what, "write it as --name=value")
        elif option.partition("=")[0] in _OURS:
            what = f"is {option}, by which pilots are told apart and limited"
            yield BrokenRule(f"supply.options[{index}]", what, "leave it out")


# Options of sbatch that are not the site's to give.
_OURS = frozenset(
    f"--{name}"
    for name in (
        *("job-name", "comment", "dependency", "time", "uid", "gid", "array", "wrap", "nodes", "partition"),
        *("cpus-per-task", "ntasks", "chdir", "no-requeue"),
    )
)


def _warning(one: Workload, at: str) -> Iterator[BrokenRule]:
    terms = one.terms
    if terms.warn is WarnBy.COMMAND and not one.command:
        yield BrokenRule(f"{at}.command", "is not set, and warn is command", "name the program in the guest")
    if one.command and terms.warn is not WarnBy.COMMAND:
        what = f"is set, and warn is {terms.warn}"
        yield BrokenRule(f"{at}.command", what, "write warn: command, or leave it out")
    if terms.stand_still_s is None and (one.at_end is not None or terms.drain_s > 0.0):
        key = "at_end" if one.at_end is not None else "drain_s"
        what = "is set, and the patience of these jobs has no end"
        yield BrokenRule(f"{at}.{key}", what, "set stand_still_s, or leave it out")


def _patience(one: Workload, ladder: Ladder, *, ready: bool, at: str) -> Iterator[BrokenRule]:
    """Yield ladders that have a job stand still for longer than it can: it would end by surprise."""
    terms = one.terms
    if terms.stand_still_s is None:
        return
    planned_s = ladder.planned_stop_s
    if planned_s is not None and planned_s <= terms.stand_still_s:
        return
    long = "without limit" if planned_s is None else f"for up to {planned_s:g} s"
    patience = f"{at}.stand_still_s = {terms.stand_still_s:g} s"
    if one.ladder:
        what = f"lets a job stand still {long}, more than {patience}"
        remedy = "shorten for_s of pause and suspend, and end it with {rung: requeue}"
        yield BrokenRule(f"{at}.ladder", what, remedy)
    elif ready:
        what = f"is {terms.stand_still_s:g} s, and the ladder of {at}.like lets a job stand still {long}"
        yield BrokenRule(f"{at}.stand_still_s", what, f"give {at} a ladder of its own")
    else:
        what = f"is {terms.stand_still_s:g} s, and the ladder of all jobs lets one stand still {long}"
        yield BrokenRule(f"{at}.stand_still_s", what, f"give {at} a ladder of its own")


def _roles(access: Roles) -> Iterator[BrokenRule]:
    for role in Role:
        people: People | None = getattr(access, role.value)
        if people is None:
            continue
        path = f"access.{role}"
        if not people.users and not people.groups:
            yield BrokenRule(path, "names nobody", "give users or groups, or remove it")
        if EVERYBODY in people.groups:
            what = f"names a group {EVERYBODY}"
            yield BrokenRule(f"{path}.groups", what, f"everybody is {EVERYBODY} under users")
        if EVERYBODY in people.users and role is not Role.READER:
            yield BrokenRule(f"{path}.users", f"lets everybody be {role}", "name users or groups")


def _proof(ladder: Ladder, proof: Proof) -> Iterator[BrokenRule]:
    yield from _kept(ladder, proof, "ladder")


def _kept(ladder: Ladder, proof: Proof, at: str) -> Iterator[BrokenRule]:
    """Yield rungs that keep for good what has to be proven free."""
    for index, rule in enumerate(ladder.rungs):
        keeps = rule.rung in (Rung.THROTTLE, Rung.PAUSE)
        if proof is Proof.MEMORY and keeps and rule.for_s is None:
            held = "throttled" if rule.rung is Rung.THROTTLE else "paused"
            what = f"is not set, so a {held} instance would keep the memory that proof asks for"
            yield BrokenRule(f"{at}[{index}].for_s", what, "set it, or use proof: cpu")


def _reading(slurm: SlurmSettingsFile) -> Iterator[BrokenRule]:
    if slurm.read is ReadKind.REST and not slurm.rest_socket:
        what = "is not set, and slurm.read is rest"
        yield BrokenRule("slurm.rest_socket", what, "give slurmrestd's socket, or use read: auto")


def _hosts(hosts: Sequence[HostEntry]) -> Iterator[BrokenRule]:
    if not hosts:
        yield BrokenRule("hosts", "is empty", "name at least one host")
    for key in ("name", "node", "uri"):
        seen: dict[str, int] = {}
        for index, host in enumerate(hosts):
            value = getattr(host, key)
            if value in seen and not (key == "node" and hosts[seen[value]].name == host.name):
                what = f"is {value}, as hosts[{seen[value]}].{key} already is"
                yield BrokenRule(f"hosts[{index}].{key}", what, "every host has its own")
            if value:
                seen.setdefault(value, index)


def _libvirt(
    hosts: Sequence[HostEntry], libvirt: LibvirtEntry | None, instances: Template
) -> Iterator[BrokenRule]:
    ours = [(i, host) for i, host in enumerate(hosts) if host.provider is Provider.LIBVIRT]
    for index, host in ours:
        if not host.uri:
            remedy = f"add {forms.ALLOWED['uri'].split(', ')[1]}"
            yield BrokenRule(f"hosts[{index}].uri", "is missing for a libvirt host", remedy)
    if not ours:
        return
    if libvirt is None:
        what = f"is missing, but host {ours[0][1].name} has provider: libvirt"
        yield BrokenRule("libvirt", what, "add the section")
    elif instances.image not in libvirt.images:
        known = ", ".join(libvirt.images) or "none"
        what = f"is {instances.image}, which libvirt.images does not have"
        yield BrokenRule("instances.image", what, f"images there: {known}")


def _images(libvirt: LibvirtEntry | None, instances: Template) -> Iterator[BrokenRule]:
    names = frozenset(instances.names)
    kept: dict[str, str] = {}
    asked: dict[str, str] = {}
    for image, entry in libvirt.images.items() if libvirt is not None else ():
        path = f"libvirt.images.{image}"
        for name in entry.names:
            if name not in names:
                what = f"has {name}, which is not in instances.names"
                yield BrokenRule(f"{path}.names", what, "keep names of our own nodes for it")
            elif name in kept:
                what = f"has {name}, which is kept for image {kept[name]} already"
                yield BrokenRule(f"{path}.names", what, "keep a name for one image")
            kept[name] = image
        if entry.environment and entry.environment in asked:
            what = f"is {entry.environment}, as that of image {asked[entry.environment]}"
            yield BrokenRule(f"{path}.environment", what, "give each image another name")
        asked[entry.environment] = image
        if (entry.users or entry.accounts) and not entry.environment:
            what = "is not set, and users or accounts are"
            yield BrokenRule(f"{path}.environment", what, "name what they alone may ask for")


def _openstack(hosts: Sequence[HostEntry], openstack: OpenStackEntry | None) -> Iterator[BrokenRule]:
    ours = [(i, host) for i, host in enumerate(hosts) if host.provider is Provider.OPENSTACK]
    for index, host in ours:
        if not host.cloud:
            what = "is missing for an openstack host"
            yield BrokenRule(f"hosts[{index}].cloud", what, "name an entry of clouds.yaml")
        if host.node is not None:
            what = f"is {host.node}, but a project in a cloud is no Slurm node"
            yield BrokenRule(f"hosts[{index}].node", what, "write node: null")
        rivals = [
            h
            for i, h in ours
            if i < index
            and h.cloud
            and h.cloud == host.cloud
            and (h.compute == host.compute or not (h.compute and host.compute))
        ]
        if rivals:  # each would count the whole room as its own
            what = f"is {host.cloud}, whose room host {rivals[0].name} has already"
            remedy = "name each project once, or each of its compute hosts once by `compute`"
            yield BrokenRule(f"hosts[{index}].cloud", what, remedy)
    if ours and openstack is None:
        what = f"is missing, but host {ours[0][1].name} has provider: openstack"
        yield BrokenRule("openstack", what, "add the section")
    elif openstack is not None and not openstack.flavours:
        yield BrokenRule("openstack.flavours", "is empty", "name at least one flavour")


def _cloud_images(
    hosts: Sequence[HostEntry], openstack: OpenStackEntry | None, environments: Environments
) -> Iterator[BrokenRule]:
    """Yield what would give somebody's own image to others by another name."""
    boots: dict[str, str] = {}
    mapped = {} if openstack is None else openstack.images
    clouds = [host.name for host in hosts if host.provider is Provider.OPENSTACK]
    for name in environments.images if openstack is not None and clouds else ():
        if environments.lacks(clouds[0], name):
            continue
        real = mapped.get(name, name)
        first = boots.setdefault(real, name)
        if environments.owners(first) != environments.owners(name):
            what = f"has {real} for {first} and for {name}, which are not for the same people"
            yield BrokenRule("openstack.images", what, "give each an image of its own")


def _numa(
    libvirt: LibvirtEntry | None, placement: Spread, hosts: Sequence[HostEntry]
) -> Iterator[BrokenRule]:
    """Yield what says how instances are bound where they are bound to nothing."""
    bind = Bind.NONE if libvirt is None else libvirt.numa.bind
    if libvirt is not None and bind is Bind.NONE and libvirt.numa.memory is not NumaMemory.PREFERRED:
        what = f"is {libvirt.numa.memory}, and libvirt.numa.bind is none: no memory is bound"
        yield BrokenRule("libvirt.numa.memory", what, "write bind: node, or leave it out")
    if bind is Bind.NONE and placement.larger_than_numa is not Larger.REFUSE:
        what = f"is {placement.larger_than_numa}, and no instance is bound to a NUMA node"
        yield BrokenRule("placement.larger_than_numa", what, "set libvirt.numa.bind: node, or leave it out")
    if bind is Bind.NODE and all(host.provider is not Provider.LIBVIRT for host in hosts):
        what = "is node, and no host has provider: libvirt"
        yield BrokenRule("libvirt.numa.bind", what, "leave it out: a cloud binds by its flavours")


def _names(hosts: Sequence[HostEntry], instances: Template) -> Iterator[BrokenRule]:
    taken = {host.name: "a host" for host in hosts}
    taken |= {host.node: f"the node of host {host.name}" for host in hosts if host.node}
    for name in instances.names:
        if name in taken:
            what = f"has {name}, which is {taken[name]}"
            yield BrokenRule("instances.names", what, "give instances names of their own")


def _machine_networks(
    hosts: Sequence[HostEntry], instances: Template, own_machines: OwnMachines
) -> Iterator[BrokenRule]:
    providers, kept = {host.provider for host in hosts}, dict[str, str]()
    ours = frozenset(instances.names)
    before = set[str]()
    for index, network in enumerate(own_machines.networks):
        path = f"own_machines.networks[{index}]"
        if network.name in before:
            yield BrokenRule(f"{path}.name", f"is {network.name} again", "name each network once")
        bridge = network.bridge and Provider.LIBVIRT in providers
        if not (bridge or (network.cloud and Provider.OPENSTACK in providers)):
            what = f"gives no host network {network.name}"
            yield BrokenRule(path, what, "set bridge for hosts of libvirt, or cloud for those of openstack")
        for name in network.nodes:
            if name not in ours:
                what = f"has {name}, which is not in instances.names"
                yield BrokenRule(f"{path}.nodes", what, "keep names of our own nodes for it")
            elif name in kept:
                what = f"has {name}, which is kept for network {kept[name]} already"
                yield BrokenRule(f"{path}.nodes", what, "keep a name for one network")
            kept[name] = network.name
        before.add(network.name)


def _keys(libvirt: LibvirtEntry | None) -> Iterator[BrokenRule]:
    if libvirt is None:
        return
    around = libvirt.surroundings
    if not (around.munge_key or around.slurm_key):
        remedy = "name the cluster's munge key, or Slurm's own as slurm_key"
        yield BrokenRule("libvirt.surroundings.munge_key", "is missing", remedy)
    if around.munge_key and around.slurm_key:
        what = "is set beside munge_key, and Slurm has one of them"
        yield BrokenRule(
            "libvirt.surroundings.slurm_key", what, "keep the one that fits slurm.conf's AuthType"
        )


def _guest_network(libvirt: LibvirtEntry | None, instances: Template) -> Iterator[BrokenRule]:
    if libvirt is None:
        return
    if libvirt.guest_network.closed:
        for path, text in unreachable(libvirt, instances):
            what = f"names {text}, and closed guests reach IPv4 addresses only"
            yield BrokenRule(
                path, what, "write its IPv4 address, or set libvirt.guest_network.closed to false"
            )
    elif libvirt.guest_network.also:
        what = "is set, but guests may reach everything"
        remedy = "set libvirt.guest_network.closed to true, or leave it out"
        yield BrokenRule("libvirt.guest_network.also", what, remedy)


def _addresses(
    hosts: Sequence[HostEntry],
    instances: Template,
    libvirt: LibvirtEntry | None,
    openstack: OpenStackEntry | None,
    daemon: DaemonSettings,
) -> Iterator[BrokenRule]:
    taken = {forms.address_of_uri(host.uri): f"host {host.name}" for host in hosts}
    taken[forms.address_of_endpoint(daemon.listen)] = "daemon.listen"
    if libvirt is not None:
        around = libvirt.surroundings
        for address in forms.addresses_of_endpoints(around.conf_server):
            taken[address] = "libvirt.surroundings.conf_server"
        taken[forms.address_in(around.controller)] = "libvirt.surroundings.controller"
        taken[forms.address_in(around.gateway)] = "libvirt.surroundings.gateway"
    if openstack is not None:
        guest = openstack.guest
        for address in forms.addresses_of_endpoints(guest.conf_server):
            taken[address] = "openstack.guest.conf_server"
        taken[forms.address_in(guest.controller)] = "openstack.guest.controller"
    ours: dict[str, str] = {}
    for name, address in zip(instances.names, instances.addresses, strict=True):
        ip = str(ipaddress.ip_interface(address).ip)
        owner = taken.get(ip) or ours.get(ip)
        if owner:
            what = f"gives {ip} to {name}, but it belongs to {owner}"
            yield BrokenRule("instances.addresses", what, "choose a range that is free")
        ours[ip] = name


def _controllers(libvirt: LibvirtEntry | None, openstack: OpenStackEntry | None) -> Iterator[BrokenRule]:
    said = {}
    if libvirt is not None:
        said["libvirt.surroundings.controller"] = libvirt.surroundings.controller
    if openstack is not None:
        said["openstack.guest.controller"] = openstack.guest.controller
    for path, address in said.items():
        if ipaddress.ip_address(address).is_loopback:
            what = f"is {address}, a loopback address: inside a guest it means the guest itself"
            yield BrokenRule(path, what, "write the address at which guests reach slurmctld")


def _flavour(instances: Template) -> Iterator[BrokenRule]:
    flavour = instances.flavour
    if flavour.memory_margin_mb >= flavour.memory_mb:
        what = f"is {flavour.memory_margin_mb} MB of memory_mb = {flavour.memory_mb} MB"
        path = "instances.flavour.memory_margin_mb"
        yield BrokenRule(path, what, "leave something for jobs")


def _ceilings(scale: Scale, limits: Limits, instances: Template) -> Iterator[BrokenRule]:
    ceiling = min(limits.max_instances, len(instances.names))
    if scale.warm > ceiling:
        what = f"is {scale.warm}, but there can only be {ceiling} instances"
        yield BrokenRule("scale.warm", what, "lower it, or raise limits.max_instances and names")


def _saving(hosts: Sequence[HostEntry], saving: Saving) -> Iterator[BrokenRule]:
    clouds = [host.name for host in hosts if host.provider is Provider.OPENSTACK]
    if saving.automatic and clouds:
        what = f"is true, but host {clouds[0]} has provider: openstack, which keeps no checkpoints"
        yield BrokenRule("saving.automatic", what, "set it to false")


def _devices(
    hosts: Sequence[HostEntry], devices: Devices, environments: Environments
) -> Iterator[BrokenRule]:
    known = set(environments.features)
    for index, rule in enumerate(devices.entries):
        path = f"devices.entries[{index}]"
        if rule.name in known:
            what = f"is {rule.name}, which jobs ask for something else by"
            yield BrokenRule(f"{path}.name", what, "give it another name")
        known.add(rule.name)
        if not (rule.functions or rule.region_mb):
            remedy = "set functions, or region_mb"
            yield BrokenRule(path, f"gives jobs that ask for {rule.name} nothing", remedy)
        if rule.region_mb & (rule.region_mb - 1):
            what = f"is {rule.region_mb}, and such a region's size is a power of two"
            yield BrokenRule(f"{path}.region_mb", what, "write 16, 32, 64 or the like")
    without = [host.name for host in hosts if host.provider is Provider.OPENSTACK]
    if devices.entries and without:
        what = f"are asked for, but host {without[0]} has provider: openstack, which has none"
        yield BrokenRule("devices.entries", what, "leave them out")


_RULES: tuple[tuple[Callable[..., Iterator[BrokenRule]], tuple[str, ...]], ...] = (
    (_partitions, ("priorities",)),
    (_rungs, ("ladder",)),
    (_workloads, ("workloads", "ladder", "proof")),
    (_supply, ("supply", "condor", "priorities")),
    (_proof, ("ladder", "proof")),
    (_reading, ("slurm",)),
    (_hosts, ("hosts",)),
    (_libvirt, ("hosts", "libvirt", "instances")),
    (_images, ("libvirt", "instances")),
    (_keys, ("libvirt",)),
    (_guest_network, ("libvirt", "instances")),
    (_openstack, ("hosts", "openstack")),
    (_cloud_images, ("hosts", "openstack", "environments")),
    (_numa, ("libvirt", "placement", "hosts")),
    (_names, ("hosts", "instances")),
    (_machine_networks, ("hosts", "instances", "own_machines")),
    (_addresses, ("hosts", "instances", "libvirt", "openstack", "daemon")),
    (_controllers, ("libvirt", "openstack")),
    (_flavour, ("instances",)),
    (_saving, ("hosts", "saving")),
    (_devices, ("hosts", "devices", "environments")),
    (_roles, ("access",)),
    (_ceilings, ("scale", "limits", "instances")),
)
