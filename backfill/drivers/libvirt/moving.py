"""Suspend, restore and migrate: an instance's memory goes to disk, comes back, changes hosts."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

from backfill.core.fleet import InstanceState
from backfill.drivers.libvirt.domains import Domain
from backfill.drivers.libvirt.escort import Escort
from backfill.drivers.libvirt.migration import Step
from backfill.drivers.libvirt.plugging import plugged
from backfill.drivers.libvirt.pool import AT_REST, Pool
from backfill.ports import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

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
                name, "devices are plugged into its guest, whose memory cannot be written",
                "give them back first",
            )  # fmt: skip
        _own_disks(pool, host, name, instance.state)
        # What lies there is older than the memory that is about to be written.
        pool.store.discard_memory(name)
        try:
            pool.on(host).save(name, pool.store.memory(name))
        except UnreachableError:
            raise  # it may still be writing
        except DriverError:
            if not _was_saved(pool, host, name):
                raise
        return pool.store.memory(name).stat().st_size / 1_000_000


def _own_disks(pool: Pool, host: str, name: str, state: InstanceState) -> None:
    """An instance that stands still may have come here so: make sure that it can leave again."""
    if state is InstanceState.PAUSED:
        pool.on(host).own_disks(name, pool.store.home(name) / "disks.sock")


def _was_saved(pool: Pool, host: str, name: str) -> bool:
    """Whether it is suspended in spite of an error; if it goes on, its useless image is removed."""
    domain = pool.find(host, name)
    if domain is not None and domain.active and not domain.saving:
        pool.store.discard_memory(name)
    return domain is not None and not domain.active and pool.store.has_memory(name)


def restore(pool: Pool, host: str, name: str) -> None:
    """Load the memory again, paused. See `InstanceProvider.restore`."""
    with pool.changing(name):
        _, instance = pool.need(host, name)
        if instance.state in _IN_MEMORY:
            return
        if instance.state is not InstanceState.SUSPENDED:
            raise BusyError(name, f"it is {instance.state}, there is nothing to restore")
        pool.refuse_if_elsewhere(host, name)
        pool.on(host).restore(name, pool.store.memory(name))
        _, after = pool.need(host, name)
        if after.state is not InstanceState.PAUSED:
            raise BusyError(name, f"it is {after.state} after its memory was restored")
        # From here on the memory in RAM is the only truth; an old image must never be used.
        pool.store.discard_memory(name)


def thaw(pool: Pool, host: str, name: str) -> None:
    """Let the CPUs go on. See `InstanceProvider.thaw`."""
    with pool.changing(name):
        domain, instance = pool.need(host, name)
        if instance.state is InstanceState.RUNNING:
            return
        if domain.saving or instance.state is not InstanceState.PAUSED:
            raise BusyError(name, f"it is {_activity(domain, instance.state)}, not paused")
        pool.refuse_if_elsewhere(host, name, everywhere=False)
        pool.store.discard_memory(name)
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
        source, destination = pool.on(host), pool.on(target)
        mine = pool.find(host, name)
        theirs = mine if host == target else destination.find(name)
        if mine is None and (theirs is None or not pool.ours(theirs)):
            raise NotFoundError(name, f"there is no such instance of ours on {host}")
        if host == target:
            return
        if _is_over(mine, theirs):
            _finish(pool, host, name, target)
            return
        _make_way(pool, name, target, mine, theirs)
        pool.store.claim(name, {host, target})
        _, instance = pool.need(host, name)
        if instance.state in AT_REST:
            # Disk and memory are in the shared directory: only the definition moves.
            destination.define(name, source.document(name))
            _finish(pool, host, name, target)
        elif instance.state in _IN_MEMORY:
            with pool.lanes.between(name, host, target, pool.config.moves.turn_s):
                _move_memory(pool, host, name, target)
        else:
            raise BusyError(name, f"it is {instance.state} on {host}")


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


def _make_way(
    pool: Pool, name: str, target: str, mine: Domain | None, theirs: Domain | None
) -> None:
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


def _move_memory(pool: Pool, host: str, name: str, target: str) -> None:
    _, instance = pool.need(host, name)  # it may have been stopped while it waited for its turn
    _own_disks(pool, host, name, instance.state)
    failure = _send(pool, host, name, target, instance.state is InstanceState.PAUSED)
    # The error code does not tell where the instance is now; the hosts do.
    mine, theirs = pool.find(host, name), pool.find(target, name)
    if _is_over(mine, theirs):
        _finish(pool, host, name, target)
        return
    if theirs is not None and not theirs.active:
        pool.on(target).undefine(name)
        theirs = None
    if theirs is None:
        pool.store.claim(name, {host})
    raise failure or BusyError(name, f"it did not leave {host}, although libvirt reported success")


def _send(pool: Pool, host: str, name: str, target: str, paused: bool) -> DriverError | None:
    """Send its memory over; returns what went wrong."""
    source, uri, terms = pool.on(host), pool.config.uris[target], pool.config.moves
    escort = Escort(source, name, terms)
    try:
        with escort:
            source.migrate(name, uri, data_uri(uri), paused, terms)
    except UnreachableError as error:
        with contextlib.suppress(DriverError):
            source.abort_job(name)
        return error
    except DriverError as error:
        if Step.CANCEL in escort.asked:
            return BusyError(
                name, f"its move to {target} took longer than {terms.within_s:g} s, was cancelled"
            )
        return error
    return None


def data_uri(uri: str) -> str | None:
    """Where a host receives memory: the machine in its libvirt address; None for a local one."""
    machine = urlsplit(uri).hostname
    if machine is None:
        return None
    return f"tcp://[{machine}]" if ":" in machine else f"tcp://{machine}"


def _activity(domain: Domain, state: InstanceState) -> str:
    return "being saved" if domain.saving else str(state)
