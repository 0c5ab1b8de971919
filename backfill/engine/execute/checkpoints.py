"""Checkpoints made and put back through the port, as changes."""

from __future__ import annotations

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.engine.looking import Outside, read_instance
from backfill.ports.errors import RefusedError


def checkpoint(outside: Outside, action: act.CheckpointAction) -> list[ch.Change]:
    """Keep it or put it back; tell what is kept, or where the instance is now."""
    keeper = outside.keepers.get(action.host)
    if keeper is None:
        raise RefusedError(action.subject, f"the provider of {action.host} keeps no checkpoints")
    if isinstance(action, act.PutBackCheckpoint):
        keeper.put_back(action.host, action.subject, action.id)
        now_s = outside.clock.now()
        done = ch.CheckpointPutBack(action.subject, action.generation, now_s, action.id)
        return [done, *read_instance(outside, action.host, action.subject)]
    kept = keeper.keep(action.host, action.wanted, action.quota_mb)
    now_s = outside.clock.now()
    return [ch.CheckpointKept(action.subject, action.generation, now_s, kept.id, kept.size_mb)]
