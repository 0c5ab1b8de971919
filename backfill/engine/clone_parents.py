"""Parents of instant clones, made and given up through the port, as changes."""

from __future__ import annotations

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.engine.looking import Outside
from backfill.ports.capabilities import ParentKeeper
from backfill.ports.errors import RefusedError


def change_parents(outside: Outside, action: act.MakeParent | act.CancelParents) -> list[ch.Change]:
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
