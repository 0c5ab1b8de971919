"""From a checked policy file to living parts: drivers behind their ports, and the daemon."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.config.cloud import GroupPolicy, OpenStackEntry
from backfill.config.forms import endpoints_in
from backfill.config.model import Bind, Config, HostEntry, LibvirtEntry, Provider
from backfill.config.reach import reach
from backfill.core.model.fleet import InstanceSpec
from backfill.core.model.quantities import Resources
from backfill.core.policies.access import EVERYBODY, People, Role, Roles
from backfill.drivers.condor.pool import CondorPool
from backfill.drivers.condor.settings import CondorConfig
from backfill.drivers.identity.audit import AuditFiles
from backfill.drivers.identity.directory import NssDirectory
from backfill.drivers.munge import LIFE_S, MungeCredentials
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.drivers.salt.driver import SaltProvisioner
from backfill.drivers.slurm.driver import SlurmManager
from backfill.engine.gate import Gatekeeper
from backfill.ports.capabilities import CheckpointKeeper, LeakFinder
from backfill.ports.hostbook import HostBook
from backfill.ports.provider import InstanceProvider, Provisioner, SeedFile
from backfill.ports.workload import Credentials
from backfill.ui import slurm_parts

if TYPE_CHECKING:
    from backfill.drivers.libvirt.settings import LibvirtConfig, NumaTerms

_LOG = logging.getLogger("backfill")
OnEvent = Callable[[str, str], None]


def slurm_manager(config: Config) -> SlurmManager:
    """Slurm through its tools, as `slurm:` in the policy file says."""
    return SlurmManager(
        slurm_parts.commands(config),
        registration=slurm_parts.registration(config),
        path=slurm_parts.read_path(config),
        access=slurm_parts.access(config.policies.environments),
    )


def credentials(config: Config, manager: SlurmManager) -> Credentials | None:
    """Munge at this machine, where Slurm trusts it; a cluster with another AuthType has none."""
    kind = manager.settings().raw.get("AuthType", "auth/munge")
    if kind != "auth/munge":
        return None
    # A guest whose agent is silent gets the same credential again, for as long as it may be silent.
    silent_s = config.libvirt.limits.agent_s if config.libvirt is not None else 0.0
    return MungeCredentials(life_s=silent_s + LIFE_S)


def provisioner(config: Config, on_event: Callable[[str], None] | None = None) -> SaltProvisioner | None:
    """Salt, where the policy file has the section."""
    if config.salt is None:
        return None
    entry = config.salt
    return SaltProvisioner(entry.python, entry.config, entry.within_s, on_event)


def payload_pool(config: Config) -> CondorPool | None:
    """Make the driver of the pool outside, where the policy file has the section."""
    if config.condor is None:
        return None
    entry = config.condor
    return CondorPool(
        CondorConfig(
            entry.python or sys.executable,
            entry.collector,
            entry.tokens,
            entry.constraint,
            entry.within_s,
            entry.most_idle,
            entry.most_runs,
        )
    )


def providers(
    config: Config, on_event: OnEvent | None, salt: Provisioner | None = None, book: HostBook | None = None
) -> Mapping[str, InstanceProvider]:
    """One provider for all hosts of a kind, by host. Imports a driver only when a host needs it.

    `on_event`: who makes instances hears when something has changed. None: only to look, which lets
    no host prove itself and leaves nothing there. `book`: what the hosts were before.
    """
    found: dict[str, InstanceProvider] = {}
    hosts = [h for h in config.hosts if h.provider is Provider.LIBVIRT]
    if hosts and config.libvirt is not None:
        # Only a site with libvirt hosts needs libvirt installed.
        from backfill.drivers.libvirt.provider import LibvirtProvider

        settings = libvirt_config(config, config.libvirt, hosts)
        if salt is None:
            pool = LibvirtProvider(settings, on_event, book=book)
        else:
            pool = LibvirtProvider(settings, on_event, seed_files=partial(_enrol, salt), book=book)
        found |= {h.name: pool for h in hosts}
    hosts = [h for h in config.hosts if h.provider is Provider.OPENSTACK]
    if hosts and config.openstack is not None:
        # As above: openstacksdk is an extra.
        from backfill.drivers.openstack.provider import OpenStackProvider

        cloud = OpenStackProvider(openstack_config(config, config.openstack, hosts), book=book)
        found |= {h.name: cloud for h in hosts}
    return found


def _enrol(salt: Provisioner, spec: InstanceSpec) -> Mapping[str, SeedFile]:
    return salt.enrol(spec.name, spec.tag.generation, spec.address)


def keepers(by_host: Mapping[str, InstanceProvider]) -> Mapping[str, CheckpointKeeper]:
    """Those of the providers that keep checkpoints, by host."""
    return {host: p for host, p in by_host.items() if isinstance(p, CheckpointKeeper)}


def leak_finders(by_host: Mapping[str, InstanceProvider]) -> list[LeakFinder]:
    """Those of the providers that can find leaks, each once."""
    found = {id(p): p for p in by_host.values() if isinstance(p, LeakFinder)}
    return list(found.values())


def distinct(found: Iterable[CheckpointKeeper]) -> list[CheckpointKeeper]:
    """Each keeper once: all hosts of one pool have the same."""
    return list({id(keeper): keeper for keeper in found}.values())


def _peers(config: Config) -> dict[str, str]:
    """Addresses of all of our nodes by name."""
    template = config.policies.instances
    pairs = zip(template.names, template.addresses, strict=True)
    return {name: address.partition("/")[0] for name, address in pairs}


def libvirt_config(config: Config, entry: LibvirtEntry, hosts: list[HostEntry]) -> LibvirtConfig:
    """Make the driver's settings of the file's."""
    from backfill.drivers.libvirt import settings as lv

    hardware, limits, around = entry.hardware, entry.limits, entry.surroundings
    return lv.LibvirtConfig(
        cluster=config.policies.cluster,
        uris={h.name: h.uri for h in hosts},
        directory=entry.directory,
        bridge=entry.bridge,
        surroundings=lv.Surroundings(
            controller=around.controller,
            conf_server=",".join(endpoints_in(around.conf_server)),
            munge_key=around.munge_key,
            slurm_key=around.slurm_key,
            gateway=around.gateway,
            slurmd_options=slurm_parts.slurmd_options(config, around.slurmd_options),
            no_ops=slurm_parts.no_ops(config, around.no_ops),
            asks=slurm_parts.guests_ask(config),
            time_server=around.time_server,
            mounts=around.mounts,
            peers=_peers(config),
        ),
        images={
            name: lv.ImageFiles(
                i.kernel, i.initrd, i.disk, i.cmdline, i.disk_format, i.sha256, i.user_data, i.own_root_mb
            )
            for name, i in entry.images.items()
        },
        nodes={h.name: h.node for h in hosts if h.node},
        reserve={
            h.name: Resources(h.keep_cpus, h.keep_memory_mb) for h in hosts if h.keep_cpus or h.keep_memory_mb
        },
        directories={h.name: h.directory for h in hosts if h.directory},
        hardware=lv.Hardware(
            domain_type=hardware.domain_type.value,
            machine=hardware.machine,
            cpu_model=hardware.cpu_model,
            cpu_features=hardware.cpu_features,
            cpu_shares=hardware.cpu_shares,
            disk_cache=hardware.disk_cache,
            balloon=hardware.balloon,
            slots=config.policies.devices.most,
            slot_mb=max((rule.region_mb for rule in config.policies.devices.entries), default=0),
            translation_cache_mb=hardware.translation_cache_mb,
        ),
        limits=lv.LibvirtLimits(
            limits.connect_s,
            limits.call_s,
            limits.start_s,
            limits.long_s,
            limits.agent_s,
            limits.keepalive_s,
            limits.keepalive_count,
            limits.stuck_calls,
        ),
        moves=lv.MoveTerms(
            entry.moves.bandwidth_mb_s,
            entry.moves.within_s,
            entry.moves.post_copy_after_s,
            entry.moves.turn_s,
            entry.moves.live,
        ),
        reach=reach(entry, config.policies.instances),
        await_salt=config.salt is not None and config.salt.gate,
        clock_offset_s=config.policies.readiness.clock_offset_s,
        networks={n.name: n.bridge for n in config.policies.own_machines.networks if n.bridge},
        numa=_numa(config, entry),
    )


def _numa(config: Config, entry: LibvirtEntry) -> NumaTerms | None:
    """Return the terms on which instances are bound to NUMA nodes; None: they are not."""
    from backfill.drivers.libvirt.settings import NumaTerms

    if entry.numa.bind is Bind.NONE:
        return None
    limits, overcommit = config.policies.limits, config.policies.placement.cpu_overcommit
    keep = Resources(limits.keep_cpus, limits.keep_memory_mb)
    return NumaTerms(entry.numa.memory.value, overcommit, keep)


def openstack_config(config: Config, entry: OpenStackEntry, hosts: list[HostEntry]) -> OpenStackConfig:
    """All of it, for these hosts."""
    known = config.policies.environments
    images = [name for name in known.images if not any(known.lacks(host.name, name) for host in hosts)]
    return OpenStackConfig(
        cluster=config.policies.cluster,
        places={h.name: CloudPlace(h.cloud, h.compute) for h in hosts},
        shape=Shape(
            flavours=entry.flavours,
            network=entry.network,
            zones=entry.zones or ("",),
            images={name: entry.images.get(name, name) for name in images},
            vnic_type=entry.vnic_type.value,
            group_policy="" if entry.spread is GroupPolicy.NONE else entry.spread.value,
            volume_gb=entry.volume_gb,
            config_drive=entry.config_drive,
            key_pair=entry.key_pair,
            networks={n.name: n.cloud for n in config.policies.own_machines.networks if n.cloud},
        ),
        guest=Guest(
            **asdict(entry.guest)
            | {
                "conf_server": ",".join(endpoints_in(entry.guest.conf_server)),
                "slurmd_options": slurm_parts.slurmd_options(config, entry.guest.slurmd_options),
                "peers": _peers(config),
            }
        ),
        clouds_yaml=entry.clouds_yaml,
        hours_cap=entry.hours_cap,
        patience=Patience(**asdict(entry.limits)),
    )


def gate(config: Config, access: Callable[[], Roles]) -> Gatekeeper:
    """Who may ask and act, by the policy file. RefusedError where a key or the log cannot be used."""
    tokens = config.daemon.tokens
    reader = None
    if tokens.jwt_key or tokens.jwks:
        from backfill.drivers.identity.tokens import SlurmTokens  # only this needs PyJWT

        key, public = (Path(name) if name else None for name in (tokens.jwt_key, tokens.jwks))
        reader = SlurmTokens(key, public, tokens.user_claim)
    audit = AuditFiles(Path(config.daemon.state_dir) / "audit.log")
    directory = NssDirectory()
    for sentence in _unknown_people(access(), directory):
        _LOG.warning("%s: %s", config.source, sentence)
    return Gatekeeper(access, directory, audit, reader)


def _unknown_people(access: Roles, directory: NssDirectory) -> Iterator[str]:
    """Yield a sentence for each user and group with a role whom this machine does not know."""
    for role in Role:
        people: People | None = getattr(access, role.value)
        if people is None:
            continue
        for kind, names, known in (
            ("user", people.users, directory.knows_user),
            ("group", people.groups, directory.knows_group),
        ):
            for name in names:
                if name != EVERYBODY and not known(name):
                    yield f"access.{role}: this machine knows no {kind} {name}; see `getent`"
