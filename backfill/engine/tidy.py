"""Once an hour: old stories leave the journal, and checkpoints that nobody needs are removed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from backfill.core.expiry import WINDOWS_S, Expiry, by_id, needless
from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Checkpoint
from backfill.core.picture import barred, stale
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.engine.looking import Outside
from backfill.ports.capabilities import CheckpointKeeper
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill.tidy")


def expire(
    expiry: Expiry, keepers: Iterable[CheckpointKeeper], outside: Outside, policies: PolicySet, world: World
) -> None:
    """Remove checkpoints whose time is over and that nobody needs, as `Expiry` says.

    Slurm is asked about their jobs, and once more directly before each is removed. Where it cannot
    be asked, or is not believed, all of them stay.
    """
    kept: list[tuple[CheckpointKeeper, tuple[Checkpoint, ...]]] = []
    for keeper in keepers:
        try:
            keeper.tend()
            kept.append((keeper, keeper.checkpoints()))
        except DriverError as error:
            _LOG.warning("checkpoints could not be tidied: %s", error)
    try:
        _expire(expiry, kept, outside, policies, world)
    except DriverError as error:
        _LOG.warning("no more checkpoints are removed now: %s", error)


def _expire(
    expiry: Expiry,
    found: list[tuple[CheckpointKeeper, tuple[Checkpoint, ...]]],
    outside: Outside,
    policies: PolicySet,
    world: World,
) -> None:
    kept = [part for _, parts in found for part in parts]
    clock_s = outside.clock.now() - outside.clock.ahead()
    over = policies.checkpoints.expired(kept, clock_s, world.clock_moves)
    if not over:
        return
    blind = barred(world) or stale(world, "slurm", policies.limits)
    if blind:
        _LOG.warning("no checkpoint is removed, though the time of %d is over: %s", len(over), blind)
        return
    now_s = outside.clock.now()
    going, staying = expiry.due(over, kept, _jobs_of(outside, kept), now_s, policies.limits)
    for identity, why in staying.items():
        _LOG.info("checkpoint %s stays, though its time is over: %s", identity, why)
    for identity, why in going.items():
        destroyed = {within_s: world.destroyed_lately(within_s) for within_s in WINDOWS_S}
        full = expiry.full(destroyed, now_s, policies.limits)
        if full:
            _LOG.warning("checkpoint %s is not removed yet: %s", identity, full)
            return
        # Another provider's files may tell of a later one that is gone by now.
        there = [part for keeper, _ in found for part in keeper.checkpoints()]
        parts = by_id(there)
        if identity not in parts or needless(parts[identity], parts, _jobs_of(outside, there))[0] != why:
            _LOG.info("checkpoint %s stays: asked again, it was not so that %s", identity, why)
            continue
        for keeper, _ in found:
            keeper.drop(identity)
        expiry.dropped(identity, now_s)
        _LOG.info("checkpoint %s is removed: its time is over, and %s", identity, why)


def _jobs_of(outside: Outside, kept: Iterable[Checkpoint]) -> dict[str, Job]:
    return outside.manager.read_jobs(sorted({part.job for part in kept if part.job}))
