"""The order to give room in a burst host back: checked before anything changes."""

from __future__ import annotations

from backfill.core.model.changes import HoldSet
from backfill.core.world import World
from backfill.engine.checkpoint_order import CommandError


def reclaim_order(world: World, body: dict[str, object]) -> HoldSet:
    """Translate `backfill reclaim` into a change; CommandError says in one sentence why not."""
    host, keep = str(body.get("subject", "")), body.get("keep", 0)
    known = world.hosts.get(host)
    if known is None:
        raise CommandError(f"'{host}' is no host of ours")
    if known.node is not None:
        raise CommandError(f"{host} is a Slurm node: clear it with `backfill evict {host}`")
    if not isinstance(keep, int) or keep < 0:
        raise CommandError(f"--keep is {keep}; give a number of instances, 0 or more")
    reason = str(body.get("reason", "")) or "wanted back by hand"
    return HoldSet(host, world.now_s, bool(body.get("on", True)), reason, keep)
