"""Suspend, restore and migrate: an instance's memory goes to disk, comes back, changes hosts."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from backfill.core.fleet import InstanceState
from backfill.drivers.libvirt import carrying, save_image
from backfill.drivers.libvirt.domain_xml import placed
from backfill.drivers.libvirt.domains import Domain
from backfill.drivers.libvirt.migration import Carriage, Step
from backfill.drivers.libvirt.move_watchdog import MoveWatchdog
from backfill.drivers.libvirt.ownership import give, refuse_if_taken_back, taken_back
from backfill.drivers.libvirt.plugging import plugged
from backfill.drivers.libvirt.pool import AT_REST, Pool
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.drivers.libvirt.store import is_there
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UnreadableError,
    unreadable,
)

_LOG = logging.getLogger(__name__)
# A guest that stands still on its way must not be missed for as long as Slurm waits for a node.
_STILL_S = 60.0
# Nobody has written to it for so long: what is missing of a memory image will not come any more.
_WRITTEN_S = 120.0
_IN_MEMORY = frozenset({InstanceState.RUNNING, InstanceState.PAUSED})


def suspend(pool: Pool, host: str, name: str) -> float:
    """Write memory to the shared directory; returns MB. See `InstanceProvider.suspend`."""
    with pool.changing(name):
        domain, instance = pool.need(host, name)
        if instance.state is InstanceState.SUSPENDED:
            return 0.0
        if domain.saving or instance.state not in _IN_MEMORY:
            raise BusyError(name, f"it is {_activity(domain, instance.state)} and cannot be saved")
        if plugged(pool, host, name):
            raise RefusedError(
                name,
                "devices are plugged into its guest, whose memory cannot be written",
                "give them back first",
            )
        if _has_sent_all(pool, host, name, instance.state):
            return _finish_save(pool, host, name)
        _own_disks(pool, host, name, instance.state)
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
        return store.memory(name).stat().st_size / 1_000_000


def _has_sent_all(pool: Pool, host: str, name: str, state: InstanceState) -> bool:
    return state is InstanceState.PAUSED and pool.on(host).has_sent_all(name)


def _finish_save(pool: Pool, host: str, name: str) -> float:
    """Its emulator has sent all of its memory, and libvirtd died before it could say so.

    QEMU does not send it again before the guest has run, so what it wrote is used, where that is
    whole. RefusedError where it is not, or was sent to a host that has lost it.
    """
    store = pool.store_on(host)
    image = store.memory(name)
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


def _own_disks(pool: Pool, host: str, name: str, state: InstanceState) -> None:
    """An instance that stands still may have come here so: make sure that it can leave again."""
    if state is InstanceState.PAUSED:
        _give_disk(pool, host, name)
        pool.on(host).own_disks(name)


def _give_disk(pool: Pool, host: str, name: str) -> None:
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
    """Whether it is suspended in spite of an error; if it goes on, its useless image is removed."""
    domain, store = pool.find(host, name), pool.store_on(host)
    if domain is not None and domain.active and not domain.saving:
        store.discard_memory(name)
    return domain is not None and not domain.active and pool.has_memory(host, name)


def restore(pool: Pool, host: str, name: str) -> None:
    """Load the memory again, paused. See `InstanceProvider.restore`."""
    with pool.changing(name):
        _, instance = pool.need(host, name)
        if instance.state in _IN_MEMORY:
            return
        if instance.state is not InstanceState.SUSPENDED:
            raise BusyError(name, f"it is {instance.state}, there is nothing to restore")
        pool.refuse_if_elsewhere(host, name)
        store = pool.store_on(host)
        # What was saved on a host with another directory finds its files here.
        files = store.files(name) if pool.config.directories else None
        pool.on(host).restore(name, store.memory(name), files)
        _, after = pool.need(host, name)
        if after.state is not InstanceState.PAUSED:
            raise BusyError(name, f"it is {after.state} after its memory was restored")
        # From here on the memory in RAM is the only truth; an old image must never be used.
        store.discard_memory(name)


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
        _give_disk(pool, host, name)
        pool.on(host).resume(name)


def throttle(pool: Pool, host: str, name: str, percent: int | None) -> None:
    """Leave its CPUs a share of the time. See `Throttler.throttle`."""
    _, instance = pool.need(host, name)
    if instance.state not in _IN_MEMORY:
        raise BusyError(name, f"it is {instance.state} on {host}")
    if instance.throttled or percent is not None:
        pool.on(host).throttle(name, percent)


def migrate(pool: Pool, host: str, name: str, target: str) -> None:
    """Move to `target` in the state it is in. See `InstanceProvider.migrate`."""
    with pool.changing(name):
        mine = pool.find(host, name)
        theirs = mine if host == target else pool.on(target).find(name)
        if mine is None and (theirs is None or not pool.ours(theirs)):
            raise NotFoundError(name, f"there is no such instance of ours on {host}")
        if host == target:
            return
        if _is_over(mine, theirs):
            _finish(pool, host, name, target)
            if theirs is not None and theirs.active:
                _give_disk(pool, target, name)
            return
        _make_way(pool, name, target, mine, theirs)
        carrying.refuse_if_leaning(pool, name, target, pool.store.leans_on(name))
        _, instance = pool.need(host, name)
        if instance.state not in AT_REST | _IN_MEMORY:
            raise BusyError(name, f"it is {instance.state} on {host}")
        if _has_sent_all(pool, host, name, instance.state):
            _finish_save(pool, host, name)
            _, instance = pool.need(host, name)
        with pool.move_slots.between(name, host, target, pool.config.moves.turn_s):
            if instance.state in AT_REST:
                _move_files(pool, host, name, target)
            else:
                _move_memory(pool, host, name, target)


def cancel(pool: Pool, host: str, name: str) -> None:
    """Stop its way to another host. See `InstanceProvider.cancel_move`."""
    pool.need(host, name)
    pool.on(host).cancel_move(name)


def _is_over(mine: Domain | None, theirs: Domain | None) -> bool:
    """Whether an earlier call has brought it over, and only tidying up is left."""
    if theirs is None or theirs.label is None or not theirs.persistent:
        return False
    if mine is None:
        return True
    return theirs.label == mine.label and theirs.active and not mine.active


def _make_way(pool: Pool, name: str, target: str, mine: Domain | None, theirs: Domain | None) -> None:
    """Remove what an earlier attempt left on `target`. Raises where it is more than that."""
    if theirs is None:
        return
    if not pool.ours(theirs):
        raise AlreadyThereError(name, f"{target} has a machine of this name that is not ours")
    if theirs.active:
        same = mine is not None and mine.label == theirs.label
        problem = f"{target} is receiving it" if same else f"another one is active on {target}"
        raise BusyError(name, problem)
    pool.on(target).undefine(name)


def _finish(pool: Pool, host: str, name: str, target: str) -> None:
    pool.on(host).undefine(name)
    pool.store.claim(name, {target})
    carrying.forget(pool, host, name, target)


def _move_files(pool: Pool, host: str, name: str, target: str) -> None:
    """Where both have the same files only the definition moves; otherwise copies come first."""
    document = pool.on(host).document(name)
    if not pool.share(host, target):
        document = placed(document, pool.store_on(target).files(name))
    with carrying.at_rest(pool, host, name, target):
        pool.store.claim(name, {host, target})
        pool.on(target).define(name, document)
    _finish(pool, host, name, target)


def _move_memory(pool: Pool, host: str, name: str, target: str) -> None:
    _, instance = pool.need(host, name)  # it may have been stopped while it waited for its turn
    _own_disks(pool, host, name, instance.state)
    running = instance.state is InstanceState.RUNNING
    live = running and pool.config.moves_live
    if pool.share(host, target):
        refuse_if_taken_back(name, Path(pool.store_on(host).files(name).disk))
    with carrying.for_guest(pool, host, name, target) as carriage:
        if running and not live:
            # Should the move fail it is left so: who wants its room has it, and a return is proven.
            pool.on(host).pause(name, pool.config.cluster)
        pool.store.claim(name, {host, target})
        # When libvirtd here loses the answer of the one there at the very end, it lets the guest go
        # on here, and relies on the lock of the disk that both share. Where each has its own disk
        # the guest arrives standing still, and we let it go on when it is certainly gone here.
        still = not live or carriage is not None
        failure = _send(pool, host, name, target, still, _terms(pool, running, still), carriage)
        _see_it_there(pool, host, name, target, failure)
    _finish(pool, host, name, target)
    _give_disk(pool, target, name)
    if running and still:
        pool.on(target).resume(name)


def _terms(pool: Pool, running: bool, still: bool) -> MoveTerms:
    """The configured ones, less what a guest must not do that arrives standing still."""
    terms = pool.config.moves
    if still:
        # At the target it could not run without all of its memory, nor come back without its disk.
        terms = replace(terms, post_copy_after_s=None)
    if running and not pool.config.moves_live:
        terms = replace(terms, within_s=min(terms.within_s, _STILL_S))
    return terms


def _send(
    pool: Pool, host: str, name: str, target: str, paused: bool, terms: MoveTerms, carriage: Carriage | None
) -> DriverError | None:
    """Send its memory over, and its disk where there is a carriage; returns what went wrong."""
    source, uri = pool.on(host), pool.config.uris[target]
    watchdog = MoveWatchdog(source, name, terms)
    try:
        with watchdog:
            source.migrate(name, uri, data_uri(uri), paused, terms, carriage)
    except UnreachableError as error:
        with contextlib.suppress(DriverError):
            source.abort_job(name)
        return error
    except DriverError as error:
        if Step.CANCEL in watchdog.asked:
            return BusyError(
                name, f"its move to {target} took longer than {terms.within_s:g} s, was cancelled"
            )
        return error
    return None


def _see_it_there(pool: Pool, host: str, name: str, target: str, failure: DriverError | None) -> None:
    """It is on `target` when this returns, and stays where it was when this raises."""
    # The error code does not tell where the instance is now; the hosts do.
    mine, theirs = pool.find(host, name), pool.find(target, name)
    if _is_over(mine, theirs):
        return
    if theirs is not None and not theirs.active:
        pool.on(target).undefine(name)
        theirs = None
    if theirs is None:
        pool.store.claim(name, {host})
        with contextlib.suppress(DriverError):  # why it stayed is what is told
            _give_disk(pool, host, name)
    raise failure or BusyError(name, f"it did not leave {host}, although libvirt reported success")


def data_uri(uri: str) -> str | None:
    """Where a host receives memory: the machine in its libvirt address; None for a local one."""
    machine = urlsplit(uri).hostname
    if machine is None:
        return None
    return f"tcp://[{machine}]" if ":" in machine else f"tcp://{machine}"


def _activity(domain: Domain, state: InstanceState) -> str:
    return "being saved" if domain.saving else str(state)
