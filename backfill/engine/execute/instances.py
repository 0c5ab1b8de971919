"""Actions on instances, on their checkpoints, and on the parents that instant clones go on from."""

from __future__ import annotations

import logging
from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.engine.execute.confirm import spared
from backfill.engine.execute.devices import holds_devices, move_with_devices
from backfill.engine.execute.guest import freeze
from backfill.engine.looking import Outside, read_instance
from backfill.ports.capabilities import Abandoner, ParentKeeper
from backfill.ports.errors import DriverError, RefusedError

_LOG = logging.getLogger("backfill.instances")
_CONSOLE_LINES = 12


# --- instances ---------------------------------------------------------------------------------
def on_instance(outside: Outside, action: act.InstanceAction) -> list[ch.Change]:
    """Do it, and read the instance."""
    provider = outside.providers[action.asks]
    match action:
        case act.CreateInstance():
            provider.create(action.spec)
        case act.DeleteInstance():
            return _abandon(outside, action) if action.off else _delete(outside, action)
        case act.SuspendInstance():
            return _suspend(outside, action)
        case act.RestoreInstance():
            provider.restore(action.host, action.subject)
        case act.MigrateInstance():
            return _migrate(outside, action)
        case act.CancelMove():
            provider.cancel_move(action.host, action.subject)
        case _:
            assert_never(action)
    return read_instance(outside, action.asks, action.subject)


def _delete(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Slurm and the hypervisor are asked anew first: what we knew may be old, or odd."""
    told = spared(outside, action)
    if not told:
        told = _last_words(outside, action) if action.last_words else []
        provider = outside.providers[action.host]
        provider.delete(action.host, action.subject, generation=action.generation)
        _expel(outside, action)
    return told + read_instance(outside, action.host, action.subject)


def _expel(outside: Outside, action: act.DeleteInstance) -> None:
    """Forget the key of an instance that is gone; its jobs do not wait for a provisioner that is out.

    Whoever enrols the name next makes that key void.
    """
    if outside.provisioner is None:
        return
    try:
        outside.provisioner.expel(action.subject, action.generation)
    except DriverError as error:
        _LOG.warning(
            "%s is gone, but its key is accepted until its name is enrolled anew: %s", action.subject, error
        )


def _suspend(outside: Outside, action: act.SuspendInstance) -> list[ch.Change]:
    """Memory to disk; how long that took is compared with what was predicted."""
    began_s = outside.clock.now()
    ran_s = freeze(outside, action)
    written_mb = outside.providers[action.host].suspend(action.host, action.subject)
    now_s = outside.clock.now()
    written = ch.MemoryWritten(
        action.host, action.subject, now_s, written_mb, now_s - began_s, action.expected_s
    )
    told: list[ch.Change] = [written] if written_mb else []
    if ran_s is not None:
        told.append(ch.InstanceStopped(action.host, action.subject, began_s, ran_s))
    return told + read_instance(outside, action.host, action.subject)


def _last_words(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Read the console of an instance that never registered; without one it is removed all the same."""
    try:
        text = outside.providers[action.host].console(action.host, action.subject)
    except DriverError:
        return []
    lines = text.strip().splitlines()[-_CONSOLE_LINES:]
    now_s = outside.clock.now()
    return [ch.LastWords(action.subject, action.generation, now_s, "\n".join(lines))] if lines else []


def _migrate(outside: Outside, action: act.MigrateInstance) -> list[ch.Change]:
    provider = outside.providers[action.host]
    if outside.providers.get(action.target) is not provider:
        raise RefusedError(action.subject, f"{action.host} and {action.target} belong to different providers")
    if holds_devices(provider, action.subject):
        move_with_devices(provider, action.host, action.subject, action.target)
    else:
        provider.migrate(action.host, action.subject, action.target)
    return read_instance(outside, action.host, action.subject) + read_instance(
        outside, action.target, action.subject
    )


def _abandon(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """Forget an instance whose host is off for good.

    A host that answers again later shows it once more: then it is a stale copy, and removed.
    """
    provider = outside.providers[action.host]
    if isinstance(provider, Abandoner):
        provider.abandon(action.host, action.subject)
    _expel(outside, action)
    return [ch.InstanceGone(action.host, action.subject, outside.clock.now())]


def change_parents(outside: Outside, action: act.ParentAction) -> list[ch.Change]:
    """Make or cancel parents; return what parents the host has now."""
    host = action.subject
    provider = outside.providers[host]
    if not isinstance(provider, ParentKeeper):
        raise RefusedError(host, "its provider makes no instant clones")
    if isinstance(action, act.MakeParent):
        provider.make_parent(host, action.image, action.flavour)
    else:
        provider.cancel_parents(host)
    seen = provider.observe(host)
    return [ch.HostSeen(seen.host, seen.seen_s)]


# --- their checkpoints --------------------------------------------------------------------------


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
