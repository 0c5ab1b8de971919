"""Stops and starts of instances between which nothing of a stale job runs, and nothing gets out."""

from __future__ import annotations

from collections.abc import Collection

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt import saving
from backfill.drivers.libvirt.connection.domain_xml import Frozen
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.guest import fencing
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import BusyError, RefusedError


def freeze(pool: Pool, host: str, name: str) -> bool:
    """Freeze all jobs in the running guest, and note it. See `GuestFence.freeze`.

    That it is asked to is noted before: its answer may be lost.
    """
    label = _need_running(pool, host, name).label
    ran = label is not None and label.frozen is Frozen.NO
    limit_s = pool.config.limits.agent_s
    if ran:
        pool.on(host).set_frozen(name, Frozen.PERHAPS)
    pool.on(host).with_agent(name, lambda ask: fencing.hold(ask, name, limit_s), _call_s(pool))
    pool.on(host).set_frozen(name, Frozen.YES)
    return ran


def thaw(pool: Pool, host: str, name: str, *, shut: bool) -> None:
    """Let its CPUs go on, behind a door that `release` opens if `shut`. See `InstanceProvider.thaw`.

    Only where somebody in it may have to end: to a program that connects just then, a link that is
    down for longer than it takes to give up a neighbour (3 s) is an error.
    """
    if shut:
        _, instance = pool.need(host, name)
        if instance.state is InstanceState.PAUSED:
            pool.on(host).set_link(name, up=False)
    saving.thaw(pool, host, name)


def release(pool: Pool, host: str, name: str, now_s: float, ended: Collection[int]) -> float:
    """End, let go on, and open the door, in this order. See `GuestFence.release`."""
    domain = _need_running(pool, host, name)
    frozen = Frozen.NO if domain.label is None else domain.label.frozen
    if ended and frozen is not Frozen.YES:
        raise RefusedError(
            name, "its jobs were not frozen before it stopped, so that none can be ended unrun"
        )
    limit_s = pool.config.limits.agent_s
    correction_s = pool.on(host).with_agent(
        name, lambda ask: fencing.clear(ask, name, now_s, ended, limit_s), _call_s(pool)
    )
    pool.on(host).set_link(name, up=True)
    if frozen is not Frozen.NO:
        pool.on(host).set_frozen(name, Frozen.NO)
    return correction_s


def _need_running(pool: Pool, host: str, name: str) -> Domain:
    domain, instance = pool.need(host, name)
    if instance.state is not InstanceState.RUNNING:
        raise BusyError(name, f"it is {instance.state} on {host}, its guest cannot answer")
    return domain


def _call_s(pool: Pool) -> float:
    limits = pool.config.limits
    return limits.agent_s + limits.call_s
