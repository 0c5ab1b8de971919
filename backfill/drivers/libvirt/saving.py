"""Suspend, restore, thaw and throttle: an instance's memory goes to disk and comes back."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.binding import bound
from backfill.drivers.libvirt.checkpoints import save_image
from backfill.drivers.libvirt.connection.domain_xml import NumaPlace, placed, rebound
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.devices.plugging import plugged
from backfill.drivers.libvirt.ownership import give, taken_back
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.store import Store, is_there
from backfill.ports.errors import (
    BusyError,
    DriverError,
    RefusedError,
    UnreachableError,
    UnreadableError,
    unreadable,
)

_LOG = logging.getLogger(__name__)
# Nobody has written to it for so long: what is missing of a memory image will not come any more.
_WRITTEN_S = 120.0
IN_MEMORY = frozenset({InstanceState.RUNNING, InstanceState.PAUSED})


def suspend(pool: Pool, host: str, name: str) -> float:
    """Write memory to the shared directory; returns MB. See `InstanceProvider.suspend`."""
    with pool.changing(name):
        domain, instance = pool.need(host, name)
        if instance.state is InstanceState.SUSPENDED:
            return 0.0
        if domain.saving or instance.state not in IN_MEMORY:
            raise BusyError(name, f"it is {_activity(domain, instance.state)} and cannot be saved")
        if plugged(pool, host, name):
            raise RefusedError(
                name,
                "devices are plugged into its guest, whose memory cannot be written",
                "give them back first",
            )
        if has_sent_all(pool, host, name, instance.state):
            return finish_save(pool, host, name)
        own_disks(pool, host, name, instance.state)
        store = pool.store_on(host)
        # What lies there is older than the memory that is about to be written.
        store.discard_memory(name)
        try:
            pool.on(host).save(name, store.memory(name))
        except UnreachableError:
            raise  # it may still be writing
        except DriverError:
            if not _was_saved(pool, host, name):
                raise
        return _written_mb(store, name)


def _written_mb(store: Store, name: str) -> float:
    """Return the size of the memory that has just been written. UnreadableError: not seen from here."""
    store.revalidate(name)
    image = store.memory(name)
    try:
        return image.stat().st_size / 1_000_000
    except OSError as error:
        raise unreadable(name, error, image) from error


def has_sent_all(pool: Pool, host: str, name: str, state: InstanceState) -> bool:
    return state is InstanceState.PAUSED and pool.on(host).has_sent_all(name)


def finish_save(pool: Pool, host: str, name: str) -> float:
    """Its emulator has sent all of its memory, and libvirtd died before it could say so.

    QEMU does not send it again before the guest has run, so what it wrote is used, where that is
    whole. RefusedError where it is not, or was sent to a host that has lost it.
    """
    store = pool.store_on(host)
    image = store.memory(name)
    store.revalidate(name)
    try:
        if not is_there(name, image) or not save_image.is_whole(image):
            _refuse_if_just_written(name, image)
            raise RefusedError(
                name,
                f"libvirtd on {host} died when its memory had just been sent, what was sent "
                "is lost, and QEMU does not send it again before it has run",
                "it goes on when its host is free",
            )
        save_image.seal(image)
    except OSError as error:
        raise unreadable(name, error, image) from error
    _LOG.warning("%s was saved on %s when libvirtd died there: that is finished now", name, host)
    pool.on(host).destroy(name)
    return image.stat().st_size / 1_000_000


def _refuse_if_just_written(name: str, image: Path) -> None:
    """BusyError where the end may still come: a helper of libvirt's outlives it and writes that."""
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - image.stat().st_mtime) < _WRITTEN_S:
            raise BusyError(name, f"the end of its memory is still being written to {image}")


def own_disks(pool: Pool, host: str, name: str, state: InstanceState) -> None:
    """Make sure that an instance that stands still, and may have come here so, can leave again."""
    if state is InstanceState.PAUSED:
        give_disk(pool, host, name)
        pool.on(host).own_disks(name)


def give_disk(pool: Pool, host: str, name: str) -> None:
    """Let its disk belong to QEMU's user on `host`, where its memory is: QEMU may open it anew.

    Where libvirt does not see that hosts share a directory, the one that a guest leaves takes the
    disk back, and so does the one that a guest was to come to and did not. The latter may do so
    late, when its libvirtd comes back. So what counts is as whom QEMU runs here, never to whom the
    disk belonged before. What is forbidden is told and tried without: QEMU may have it open.
    """
    disk = Path(pool.store_on(host).files(name).disk)
    try:
        # QEMU's user is not asked for without need: libvirtd may take seconds to tell.
        user = pool.on(host).qemu_user() if taken_back(disk) else None
        if user is not None and user[0] != 0:  # root opens what is anybody's
            give(user, host, disk)
    except (RefusedError, UnreadableError) as error:
        _LOG.warning("the guest of %s may be unable to go on when it is thawed: %s", name, error)


def _was_saved(pool: Pool, host: str, name: str) -> bool:
    """Return True if it is suspended in spite of an error; if it goes on, its useless image is removed."""
    domain, store = pool.find(host, name), pool.store_on(host)
    if domain is not None and domain.active and not domain.saving:
        store.discard_memory(name)
    return domain is not None and not domain.active and pool.has_memory(host, domain)


def restore(pool: Pool, host: str, name: str) -> None:
    """Load the memory again, paused. See `InstanceProvider.restore`."""
    with pool.changing(name):
        _, instance = pool.need(host, name)
        if instance.state in IN_MEMORY:
            return
        if instance.state is not InstanceState.SUSPENDED:
            raise BusyError(name, f"it is {instance.state}, there is nothing to restore")
        pool.refuse_if_elsewhere(host, name)
        store = pool.store_on(host)
        with bound(pool, host, name, instance.resources) as numa:
            _load(pool, host, name, numa)
        _, after = pool.need(host, name)
        if after.state is not InstanceState.PAUSED:
            raise BusyError(name, f"it is {after.state} after its memory was restored")
        # From here on the memory in RAM is the only truth; an old image must never be used.
        store.discard_memory(name)


def _load(pool: Pool, host: str, name: str, numa: NumaPlace | None) -> None:
    """Start it from its memory as what it is on this host: what it was where it was saved may differ."""
    hypervisor, store = pool.on(host), pool.store_on(host)
    saved = document = hypervisor.saved_document(name, store.memory(name))
    if pool.config.directories:
        document = placed(document, store.files(name))
    document = rebound(document, numa)
    if document == saved:
        hypervisor.restore(name, store.memory(name))
        return
    hypervisor.define(name, rebound(hypervisor.document(name), numa))
    hypervisor.restore(name, store.memory(name), document)


def thaw(pool: Pool, host: str, name: str) -> None:
    """Let the CPUs go on. See `InstanceProvider.thaw`."""
    with pool.changing(name):
        domain, instance = pool.need(host, name)
        if instance.state is InstanceState.RUNNING:
            return
        if domain.saving or instance.state is not InstanceState.PAUSED:
            raise BusyError(name, f"it is {_activity(domain, instance.state)}, not paused")
        pool.refuse_if_elsewhere(host, name, everywhere=False)
        pool.store_on(host).discard_memory(name)
        give_disk(pool, host, name)
        pool.on(host).resume(name)


def throttle(pool: Pool, host: str, name: str, percent: int | None) -> None:
    """Leave its CPUs a share of the time. See `Throttler.throttle`."""
    _, instance = pool.need(host, name)
    if instance.state not in IN_MEMORY:
        raise BusyError(name, f"it is {instance.state} on {host}")
    if instance.throttled or percent is not None:
        pool.on(host).throttle(name, percent)


def _activity(domain: Domain, state: InstanceState) -> str:
    return "being saved" if domain.saving else str(state)
