"""Making an instance and ending it, so that a repeated or interrupted call does no harm."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from backfill.core.model.fleet import CloneMethod, Flavour, InstanceSpec, InstanceState, Tag
from backfill.drivers.libvirt.binding import bound
from backfill.drivers.libvirt.clones.building import parent_of
from backfill.drivers.libvirt.clones.forking import fork
from backfill.drivers.libvirt.connection.domain_xml import Memory, NumaPlace, domain_xml, mac_address
from backfill.drivers.libvirt.devices.plugging import sweep
from backfill.drivers.libvirt.errors import is_unsupported
from backfill.drivers.libvirt.guest.keys import key_place, read_key
from backfill.drivers.libvirt.guest.seed import (
    ENTROPY_BYTES,
    MOST_USER_DATA,
    OWN_ROOT,
    PEERS,
    Identity,
    for_a_clone,
    own_root_text,
    peers_text,
    seed_tar,
)
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)
from backfill.ports.provider import SeedFile

_Made = TypeVar("_Made")
_log = logging.getLogger(__name__)
_ENDED = (InstanceState.OFF, InstanceState.CRASHED)
# What libvirt says where the control group for CPU weights cannot be used, and its code says only "failed".
_NO_WEIGHTS = "controller"


def create(pool: Pool, spec: InstanceSpec) -> None:
    """Make disk and seed, define and boot. See `InstanceProvider.create`."""
    image = _files_of(pool, spec.image)
    _bridge(pool, spec)
    pool.store.home(spec.name)  # refuses a name that cannot be a folder
    if spec.tag.cluster != pool.config.cluster:
        raise RefusedError(spec.name, f"its tag names cluster '{spec.tag.cluster}', not ours")
    with pool.changing(spec.name):
        if _is_there(pool, spec):
            return
        pool.refuse_if_elsewhere(spec.host, spec.name)
        _clear(pool, spec.host, spec.name)
        try:
            _make(pool, spec, image)
        except UnreachableError:
            raise  # what it did is unknown: the claim stays, and the next call finds out
        except DriverError:
            _clear(pool, spec.host, spec.name)
            raise


def delete(pool: Pool, host: str, name: str, generation: int | None = None) -> None:
    """End it and remove its files. See `InstanceProvider.delete`."""
    with pool.changing(name):
        there = pool.find(host, name)
        label = None if there is None else there.label
        if label is None or generation in (None, label.tag.generation):
            _clear(pool, host, name)


def _is_there(pool: Pool, spec: InstanceSpec) -> bool:
    """Return True if the wanted instance exists already. AlreadyThereError for one that is not it."""
    domain = pool.on(spec.host).find(spec.name)
    if domain is None:
        return False
    instance = pool.instance(spec.host, domain)
    if instance is None:
        raise AlreadyThereError(
            spec.name, f"{spec.host} has a machine of this name that is not ours", "choose other node names"
        )
    if instance.state in _ENDED:
        return False  # left by an interrupted creation, or an instance that ended by itself
    if instance.state is InstanceState.UNKNOWN:
        raise UnreadableError(spec.name, f"what became of it on {spec.host} is not known: {instance.problem}")
    building = instance.state is InstanceState.BUILDING
    if building and not pool.has_memory(spec.host, domain):
        return False  # libvirtd died while it was started; nothing has run in it yet
    if instance.tag != spec.tag:
        raise AlreadyThereError(
            spec.name,
            f"generation {instance.tag.generation} of it is {instance.state} on {spec.host}, "
            f"not generation {spec.tag.generation}",
            "delete that one first",
        )
    return True


def make_parent(pool: Pool, host: str, image: str, flavour: Flavour) -> None:
    """See `ParentKeeper.make_parent`."""
    files = _files_of(pool, image)
    spec = InstanceSpec("parent", host, Tag(pool.config.cluster, "", 0), flavour, image, "")
    seed = partial(_parent_seed, pool)
    _with_weights(pool, lambda hardware: parent_of(pool, spec, files, hardware, seed))


def _files_of(pool: Pool, name: str) -> ImageFiles:
    image = pool.config.images.get(name)
    if image is None:
        known = ", ".join(pool.config.images) or "none"
        raise RefusedError(name, "is no image that I know", f"known images: {known}")
    return image


def _with_weights(pool: Pool, work: Callable[[Hardware], _Made]) -> _Made:
    """Do it; where the host has no CPU weights, without them.

    A document that it does not support for another reason fails once more, with the same words.
    """
    hardware = pool.config.hardware
    try:
        return work(hardware)
    except DriverError as error:
        if hardware.cpu_shares is None or not (is_unsupported(error) or _NO_WEIGHTS in error.problem):
            raise
        return work(replace(hardware, cpu_shares=None))


def _make(pool: Pool, spec: InstanceSpec, image: ImageFiles) -> None:
    pool.store.claim(spec.name, {spec.host})
    hardware = pool.config.hardware
    with bound(pool, spec.host, spec.name, spec.flavour.resources) as numa:
        weight = _with_weights(pool, lambda given: _make_with(pool, spec, image, given, numa))
    if hardware.cpu_shares is not None and weight != hardware.cpu_shares:
        _log.warning(
            "%s has no CPU weights: instances there compete with its own jobs until they are "
            "paused; mount the cpu control group and restart libvirtd",
            spec.host,
        )


def _make_with(
    pool: Pool, spec: InstanceSpec, image: ImageFiles, hardware: Hardware, numa: NumaPlace | None
) -> int | None:
    """Disk, seed, definition, start. Returns the CPU weight that it got."""
    if spec.method is CloneMethod.INSTANT:
        return _fork(pool, spec, image, hardware, numa)
    full = spec.method is CloneMethod.FULL
    seed = _seed(pool, spec, image=image)
    pool.store_on(spec.host).make(spec.name, image, spec.flavour.disk_gb, seed, full)
    hypervisor = pool.on(spec.host)
    hypervisor.define(spec.name, _document(pool, spec, image, hardware, None, numa))
    return hypervisor.start(spec.name)


def _fork(
    pool: Pool, spec: InstanceSpec, image: ImageFiles, hardware: Hardware, numa: NumaPlace | None
) -> int | None:
    parent = parent_of(pool, spec, image, hardware, partial(_parent_seed, pool))
    pool.store.lean_on(spec.name, parent.home)
    seed = for_a_clone(spec.name, _seed(pool, spec, image=image))
    pool.store_on(spec.host).make(spec.name, parent.image(image), spec.flavour.disk_gb, seed)
    hypervisor, memory = pool.on(spec.host), Memory(str(parent.memory), shared=False)
    hypervisor.define(spec.name, _document(pool, spec, image, hardware, memory, numa))
    return fork(hypervisor, spec.name, parent.state, pool.config.limits.start_s)


def _document(
    pool: Pool,
    spec: InstanceSpec,
    image: ImageFiles,
    hardware: Hardware,
    memory: Memory | None,
    numa: NumaPlace | None,
) -> str:
    files, behind = pool.store_on(spec.host).files(spec.name), pool.config.guest_filter
    filtered_by, bridge = "" if behind is None else behind.name, _bridge(pool, spec)
    now_s = time.time()
    return domain_xml(spec, image, files, hardware, bridge, now_s, memory, filtered_by=filtered_by, numa=numa)


def _bridge(pool: Pool, spec: InstanceSpec) -> str:
    """Return the hosts' bridge into its network. RefusedError for a network that they do not have."""
    if not spec.network:
        return pool.config.bridge
    bridge = pool.config.networks.get(spec.network)
    if bridge is None:
        known = ", ".join(pool.config.networks) or "none"
        raise RefusedError(spec.name, f"there is no network {spec.network}", f"known networks: {known}")
    return bridge


def _parent_seed(pool: Pool, spec: InstanceSpec, canary: bool) -> bytes:
    """Make the seed of a parent, or of the canary that tries it out."""
    seed = _seed(pool, spec, os.urandom(ENTROPY_BYTES) if canary else b"", canary)
    return for_a_clone(spec.name, seed)


def _seed(
    pool: Pool,
    spec: InstanceSpec,
    entropy: bytes | None = None,
    canary: bool = False,
    image: ImageFiles | None = None,
) -> bytes:
    around = pool.config.surroundings
    key = read_key(around)
    identity = Identity(
        node_name=spec.name,
        address=spec.address,
        gateway=around.gateway,
        controller=around.controller,
        conf_server=around.conf_server,
        slurmd_options=around.slurmd_options,
        mac=mac_address(spec.tag.cluster, spec.name),
        time_server=around.time_server,
        mounts=around.mounts,
    )
    if entropy is None:
        entropy = os.urandom(ENTROPY_BYTES)
    # A parent is nobody in particular: only what is one node's own is enrolled.
    more = (
        {}
        if image is None
        else {**pool.seed_files(spec), **_of_image(pool, spec, image), **_peers(pool, spec)}
    )
    place = key_place(around)
    return seed_tar(identity, key, around.no_ops, entropy, canary, more, around.asks, place)


def _peers(pool: Pool, spec: InstanceSpec) -> dict[str, SeedFile]:
    text = peers_text(pool.config.surroundings.peers, spec.name)
    return {PEERS: SeedFile(text, 0o644)} if text else {}


def _of_image(pool: Pool, spec: InstanceSpec, image: ImageFiles) -> dict[str, SeedFile]:
    """Return what the catalogue gives to guests of an image."""
    own_root: dict[str, SeedFile] = {}
    if image.own_root_mb:
        text = own_root_text(image.own_root_mb, pool.config.surroundings.mounts)
        own_root = {OWN_ROOT: SeedFile(text, 0o644)}  # what reads it runs as the job's user
    return own_root | _user_data(spec, image.user_data)


def _user_data(spec: InstanceSpec, path: str) -> dict[str, SeedFile]:
    """Return the files of cloud-init's NoCloud folder; nothing without user data."""
    if not path:
        return {}
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RefusedError(path, f"cannot read the user data: {error.strerror}") from error
    if len(content) > MOST_USER_DATA:
        raise RefusedError(path, f"user data may have {MOST_USER_DATA} bytes", "make it shorter")
    once = f"instance-id: {spec.name}-{spec.tag.generation}\nlocal-hostname: {spec.name}\n"
    folder = "/var/lib/cloud/seed/nocloud"
    return {f"{folder}/user-data": SeedFile(content), f"{folder}/meta-data": SeedFile(once.encode())}


def _clear(pool: Pool, host: str, name: str) -> None:
    """Remove our instance from `host`, and its files unless another host has it."""
    hypervisor = pool.on(host)
    if pool.find(host, name) is not None:
        hypervisor.destroy(name)
        hypervisor.undefine(name)
    _clear_files(pool, host, name)


def abandon(pool: Pool, host: str, name: str) -> None:
    """Its files, unless another host has it. See `Abandoner.abandon`."""
    with pool.changing(name):
        hypervisor = pool.on(host)
        try:
            hypervisor.find(name)
        except UnreachableError:
            if hypervisor.connected:
                raise  # one call has failed, but somebody is there
            _clear_files(pool, host, name)
            return
    raise BusyError(name, f"{host} answers, so it is not off", "evict it without --off")


def _clear_files(pool: Pool, host: str, name: str) -> None:
    """Remove the instance's files unless another host than this has it."""
    if not pool.store.exists(name):
        return
    claims = pool.store.claims(name)
    elsewhere = set()
    for other in set(pool.hypervisors if claims is None else claims) - {host}:
        # A host that left the configuration cannot be asked, and cannot have it by our doing.
        if other in pool.hypervisors and pool.find(other, name) is not None:
            elsewhere.add(other)
    if elsewhere:
        pool.store.claim(name, elsewhere)
    holding = pool.devices.of(name)
    pool.remove_files(name, but_for=elsewhere)
    if holding is not None and holding.regions and not elsewhere:
        sweep(pool, holding.host, holding.regions)
