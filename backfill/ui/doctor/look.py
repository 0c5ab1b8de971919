"""Gathers the facts from a real cluster, as the user who runs this, and leaves everything as it was."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from backfill.config import Config, ImageEntry, conflicts, hints
from backfill.config.forms import endpoints_in
from backfill.config.model import Provider
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import NOTHING
from backfill.drivers.condor.diagnosis import look_at_tokens
from backfill.drivers.munge import MungeCredentials, try_key
from backfill.drivers.slurm.conf.site import Site
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.settings import check_settings, slurm_uid
from backfill.drivers.store.lease import lease_path
from backfill.ports.errors import DriverError
from backfill.ports.provider import HostObservation, InstanceProvider
from backfill.ui import slurm_parts
from backfill.ui.assemble import libvirt_config, payload_pool, providers, provisioner, slurm_manager
from backfill.ui.commands.file_check import foreign_files
from backfill.ui.commands.hook_check import Found, check_hooks
from backfill.ui.commands.options_check import check_options
from backfill.ui.doctor import network, places
from backfill.ui.doctor.facts import (
    GUESTS_UNIT,
    GUESTS_WANTED,
    PROTECTED,
    PROTECTIONS,
    Facts,
    HostFacts,
    ImageFacts,
    PlaceFacts,
    PoolFacts,
    SlurmFacts,
    Who,
)

_BESIDE = ("slurm.conf", "cgroup.conf")
_PACKAGES = "packages.lock"
_MUNGED = "/usr/sbin"  # an ordinary user's PATH may lack it


def look(config: Config) -> Facts:
    """Look at everything that the policy file names. Raises nothing that a cluster can cause."""
    manager = slurm_manager(config)
    facts = _own_machine(Facts(config, _who()))
    by_host: Mapping[str, InstanceProvider] = {}
    try:
        with contextlib.ExitStack() as marks:
            if not facts.libvirt_missing:
                by_host = providers(config, None)
            observed = {name: _observe(provider, name) for name, provider in by_host.items()}
            facts = _directories(facts, marks)
            facts = replace(facts, hosts=_hosts(facts, observed))
        facts = _slurm(facts, manager, {name: seen.host for name, seen in observed.items()})
        return _network(facts, observed)
    finally:
        for provider in set(by_host.values()):
            provider.close()


def _who() -> Who:
    uid = os.geteuid()
    with contextlib.suppress(KeyError):
        return Who(uid, pwd.getpwuid(uid).pw_name, frozenset(os.getgroups()))
    return Who(uid, f"uid {uid}")


# --- this machine ----------------------------------------------------------------------------------


def _own_machine(facts: Facts) -> Facts:
    config = facts.config
    has_libvirt = any(host.provider is Provider.LIBVIRT for host in config.hosts)
    tools = ["qemu-img"] if has_libvirt else []
    images = config.libvirt.images if config.libvirt is not None else {}
    return replace(
        facts,
        tools_missing=tuple(tool for tool in tools if shutil.which(tool) is None),
        libvirt_missing=has_libvirt and importlib.util.find_spec("libvirt") is None,
        state_dir=_made_by_the_unit(places.may_write(config.daemon.state_dir), "/var/lib/"),
        state_files=tuple(foreign_files(Path(config.daemon.state_dir))),
        socket_problem=_socket_problem(config),
        listen_problem=network.listen_problem(config.daemon.listen) if config.daemon.listen else None,
        images={name: image_facts(entry) for name, entry in images.items()},
        exposed=places.exposed(*_own_directories(config)),
        protections=places.protections(),
        salt_problem=_salt_problem(config),
        pool=_pool(config),
    )


def _own_directories(config: Config) -> Iterator[str]:
    yield from (config.daemon.state_dir, config.daemon.socket, str(config.slurm.hooks.directory))
    if config.libvirt is not None:
        yield config.libvirt.directory
        yield from (host.directory for host in config.hosts)


def _made_by_the_unit(place: PlaceFacts, below: str) -> PlaceFacts:
    """Excuse what systemd makes when it starts the daemon: that need not be there."""
    if not place.there and place.path == f"{below}backfill":
        return replace(place, problem="")
    return place


def _socket_problem(config: Config) -> str | None:
    if daemon_listens(config):
        return None
    place = places.may_write(str(Path(config.daemon.socket).parent))
    return _made_by_the_unit(place, "/run/").problem or None


def daemon_listens(config: Config) -> bool:
    """Return True if a daemon answers at the policy file's socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(config.daemon.socket) == 0


def image_facts(entry: ImageEntry) -> ImageFacts:
    """Read the starts of an image's files, and what is told beside its disk."""
    paths = {"kernel": entry.kernel, "initrd": entry.initrd, "disk": entry.disk, "user_data": entry.user_data}
    files = {key: places.read_file(path) for key, path in paths.items() if path}
    changed = ""
    if entry.sha256 and not files["disk"].problem:
        with open(entry.disk, "rb") as disk:
            found = hashlib.file_digest(disk, "sha256").hexdigest()
        changed = found if found != entry.sha256.lower() else ""
    try:
        packages = Path(entry.disk).with_name(_PACKAGES).read_text()
    except OSError:
        return ImageFacts(files, changed)
    systemd = re.search(r"^systemd-sysv\b", packages, re.M) is not None
    slurmd = re.search(r"^slurmd (\S+)", packages, re.M)
    return ImageFacts(files, changed, systemd, slurmd[1] if slurmd else "")


def _salt_problem(config: Config) -> str | None:
    salt = provisioner(config)
    if salt is None:
        return None
    try:
        salt.check()
    except DriverError as error:
        return str(error)
    finally:
        salt.close()
    return None


def _pool(config: Config) -> PoolFacts | None:
    """Look at the tokens, and ask the pool if one of them is good."""
    pool, entry = payload_pool(config), config.condor
    if pool is None or entry is None:
        return None
    seen = look_at_tokens(entry.tokens)
    left_s = None if seen.ends_s is None else seen.ends_s - time.time()
    if seen.problem is not None:
        return PoolFacts(str(seen.problem))
    try:
        pool.observe()
    except DriverError as error:
        return PoolFacts("", left_s, str(error))
    finally:
        pool.close()
    return PoolFacts("", left_s)


# --- hosts -----------------------------------------------------------------------------------------


def _observe(provider: InstanceProvider, name: str) -> HostObservation:
    try:
        return provider.observe(name)
    except DriverError as error:
        return HostObservation(0.0, Host(name, None, NOTHING, False, str(error)))


def _directories(facts: Facts, marks: contextlib.ExitStack) -> Facts:
    """Put a file into each of the instances' directories, for as long as `marks` last."""
    config = facts.config
    if config.libvirt is None:
        return facts
    found, hosts, names = {}, [], dict[str, str]()
    for host in config.hosts:
        directory = ""
        if host.provider is Provider.LIBVIRT:
            directory = host.directory or config.libvirt.directory
            if directory not in found:
                found[directory], names[directory] = marks.enter_context(places.write_into(directory))
        hosts.append(HostFacts(host.name, directory=directory, marker=names.get(directory, "")))
    return replace(facts, directories=found, hosts=tuple(hosts))


def _hosts(facts: Facts, observed: Mapping[str, HostObservation]) -> tuple[HostFacts, ...]:
    with ThreadPoolExecutor(16) as crew:
        hosts = facts.hosts or tuple(HostFacts(host.name) for host in facts.config.hosts)
        return tuple(crew.map(lambda host: _host(facts, host, observed.get(host.name)), hosts))


def _host(facts: Facts, host: HostFacts, seen: HostObservation | None) -> HostFacts:
    if seen is None:
        return host
    if not seen.host.reachable:
        return replace(host, problem=seen.host.problem or "it does not answer")
    host = replace(host, ours=frozenset(seen.instances))
    if not host.directory or facts.config.libvirt is None:
        return host
    from backfill.drivers.libvirt.inspection import inspect

    entry = next(e for e in facts.config.hosts if e.name == host.name)
    settings = libvirt_config(facts.config, facts.config.libvirt, [entry])
    conf = Path(facts.config.slurm.conf)
    folders: dict[str, tuple[str, ...]] = {host.directory: ()}
    for image in facts.images.values():
        folders |= {str(Path(place.path).parent): () for place in image.files.values()}
    folders[str(conf.parent)] = (*_BESIDE, facts.config.slurm.include)
    host = replace(host, exposed=_exposed(facts.config, host.directory))
    folders |= {PROTECTIONS: PROTECTED, GUESTS_WANTED: (), GUESTS_UNIT: ()}
    ways = () if host.exposed else places.ways_of_host(host.directory)
    try:
        seen_there = inspect(host.name, entry.uri, settings.limits, settings.hardware, folders, ways)
    except DriverError as error:
        return replace(host, problem=str(error))
    return replace(host, inspection=seen_there)


def _exposed(config: Config, directory: str) -> str:
    policies = config.policies
    if policies.own_machines.enabled or any(rule.region_mb for rule in policies.devices.entries):
        return "the memory that machines share (/dev/shm)"
    return directory if places.is_open(directory) else ""


# --- Slurm -----------------------------------------------------------------------------------------


def _slurm(facts: Facts, manager: SlurmManager, hosts: Mapping[str, Host]) -> Facts:
    config = facts.config
    try:
        settings = manager.settings()
        nodes = manager.observe().nodes
    except DriverError as error:
        return _munge(replace(facts, slurm_problem=str(error)), _conf(config)[0].get("slurm.conf", ""))
    longest_s = config.policies.longest_stop_s
    unfit = check_settings(
        settings, longest_s if longest_s is not None else float("inf"), config.slurm.registration.value
    )
    conf, site, closed = _conf(config)
    facts = replace(
        facts,
        slurm=SlurmFacts(
            settings,
            nodes,
            settings.partitions_raw,
            slurm_uid(settings),
            conf,
            site,
            closed,
            tuple(conflicts(config, settings, nodes, hosts) or unfit),
            tuple(h for h in hints(config, settings, nodes, hosts) if "eviction hook" not in h),
        ),
        lease=_lease(settings.raw.get("StateSaveLocation", ""), settings.cluster),
    )
    facts = replace(facts, options=check_options(config))
    facts = _munge(facts, f"AuthType={settings.raw.get('AuthType', '')}")
    try:
        if _hook_can_be_heard(config):
            return replace(facts, hooks=_hooks(config, manager))
        unheard = "no daemon runs, and its socket's directory comes with it"
        return replace(facts, hooks_unknown="" if facts.socket_problem else unheard)
    except (DriverError, ValueError) as error:
        return replace(facts, hooks=Found(problems=(str(error),)))


def _conf(config: Config) -> tuple[Mapping[str, str], Site | None, frozenset[str]]:
    """Texts of Slurm's files here, slurm.conf as Slurm reads it, and which of them are closed to us."""
    folder, texts, closed = Path(config.slurm.conf).parent, dict[str, str](), set[str]()
    for name in (*_BESIDE, config.slurm.include):
        try:
            texts[name] = (folder / name).read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            continue
        except OSError:
            closed.add(name)
    site = None
    with contextlib.suppress(DriverError):
        site = slurm_parts.transactions(config).site()
    return texts, site, frozenset(closed)


def _lease(state_save: str, cluster: str) -> PlaceFacts:
    try:
        path = lease_path(state_save, cluster)
    except DriverError as error:
        return PlaceFacts(state_save, str(error))
    if path is None:
        return PlaceFacts(state_save, "it is not seen from here")
    return places.may_write(str(path.parent))


def _munge(facts: Facts, conf: str) -> Facts:
    """Look at the key for guests, and try it and munge where this Slurm trusts munge."""
    kind = re.search(r"^\s*AuthType\s*=\s*(\S+)", conf, re.I | re.M)
    libvirt = facts.config.libvirt
    if libvirt is not None and libvirt.surroundings.slurm_key:
        return replace(facts, key_problem=places.read_file(libvirt.surroundings.slurm_key).problem)
    if kind is not None and kind[1] != "auth/munge":
        return facts
    munge = MungeCredentials(reader=os.geteuid())
    try:
        refused = munge.check(munge.make())
    except DriverError as error:
        return replace(facts, munge_problem=str(error))
    if refused:
        return replace(facts, munge_problem=f"munged here does not understand itself: {refused}")
    if facts.config.libvirt is None:
        return facts
    key = Path(facts.config.libvirt.surroundings.munge_key)
    place = places.read_file(str(key))
    if place.problem:
        return replace(facts, key_problem=place.problem)
    munged = shutil.which("munged") or f"{_MUNGED}/munged"
    try:
        return replace(facts, key_refused=try_key(key, munged))
    except DriverError as error:
        return replace(facts, key_refused=error.problem)


def _hook_can_be_heard(config: Config) -> bool:
    if config.daemon.listen and config.slurm.hooks.place.value == "host":
        return True
    return daemon_listens(config) or not places.may_write(str(Path(config.daemon.socket).parent)).problem


def _hooks(config: Config, manager: SlurmManager) -> Found:
    settings = manager.settings()
    found = check_hooks(config, settings)
    told: tuple[str, ...] = ()
    with contextlib.suppress(PermissionError):  # what an older backfill has installed, root alone can read
        told = slurm_parts.hook_status(config, settings.version).problems
    named = [Path(word) for word in settings.prolog_slurmctld.split(",") if word and "*" not in word]
    gone = [
        f"slurm.conf names {path}, which is not there, so that no job starts; put it back, or "
        f"backfill slurm hooks install --config {config.source}"
        for path in named
        if not path.exists()
    ]
    return replace(found, problems=tuple(dict.fromkeys([*found.problems, *gone, *told])))


# --- network ---------------------------------------------------------------------------------------


def _network(facts: Facts, observed: Mapping[str, HostObservation]) -> Facts:
    template = facts.config.policies.instances
    used = {name for seen in observed.values() for name in seen.instances}
    pairs = zip(template.names, template.addresses, strict=True)
    free = {name: address.split("/")[0] for name, address in pairs if name not in used}
    raw = facts.slurm.settings.raw if facts.slurm is not None else {}
    port = int(re.match(r"\d+", raw.get("SlurmdPort", "6818"))[0])  # type: ignore[index]
    # A node whose host does not answer may still be somewhere.
    taken = network.answering(free, port) if all(h.host.reachable for h in observed.values()) else {}
    if facts.config.libvirt is None:
        return replace(facts, taken=taken)
    servers = endpoints_in(facts.config.libvirt.surroundings.conf_server)
    told = {server: problem for server in servers if (problem := network.connect_problem(server))}
    return replace(facts, taken=taken, controller_problems=told)
