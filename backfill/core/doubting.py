"""Calls that failed and may have acted all the same: where may the instance be until we looked?"""

from __future__ import annotations

from dataclasses import replace

from backfill.core.fleet import InstanceState
from backfill.core.ledger import UncertainOutcome
from backfill.core.picture import Picture


class Doubting(Picture):
    """The part of the world that keeps doubts; only `World.apply` calls these methods."""

    def _doubt(self, name: str, host: str, at_s: float) -> None:
        """A call that was to bring the instance to `host` failed: did it act?"""
        known = self.managed.get(name)
        hosts = {host, known.host} if known is not None and known.host else {host}
        self.doubts[name] = UncertainOutcome(at_s, frozenset(hosts))
        for what in hosts:
            self._touch(what)

    def _settle_doubts(self, host: str, seen_s: float) -> None:
        """A host was read: the instance is where it was seen, or not where it was not."""
        for name, doubt in tuple(self.doubts.items()):
            if host not in doubt.hosts or seen_s < doubt.at_s:
                continue
            there = self.instances.get((host, name))
            found = there is not None and there.state is not InstanceState.MIGRATING
            left = doubt.hosts - {host}
            if found or not left:
                del self.doubts[name]
            else:
                self.doubts[name] = replace(doubt, hosts=left)
            for what in (name, *doubt.hosts):
                self._touch(what)
