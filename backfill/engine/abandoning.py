"""Forgets an instance whose host is off for good, and tells that as changes."""

from __future__ import annotations

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.engine.looking import Outside
from backfill.ports.capabilities import Abandoner


def abandon(outside: Outside, action: act.DeleteInstance) -> list[ch.Change]:
    """A host that answers again later shows it once more: then it is a stale copy, and removed."""
    provider = outside.providers[action.host]
    if isinstance(provider, Abandoner):
        provider.abandon(action.host, action.subject)
    if outside.provisioner is not None:
        outside.provisioner.expel(action.subject, action.generation)
    return [ch.InstanceGone(action.host, action.subject, outside.clock.now())]
