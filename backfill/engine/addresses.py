"""Once a minute: do the names in our hosts' NodeAddr still mean what Slurm thinks they do?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from backfill.engine.cycle import Cycle

EVERY_S = 60.0
_LOG = logging.getLogger("backfill.daemon")


class AddressBook:
    """Used by the daemon's own thread. `look_up` begins to look, or returns False when it is busy.

    Only nodes of hosts that the policy file names; other nodes are none of our business, and those
    that we have made have an IP address.
    """

    def __init__(self, cycle: Cycle, look_up: Callable[[Sequence[str]], bool]) -> None:
        self._cycle = cycle
        self._look_up = look_up
        self._next_s = 0.0
        self._said: Mapping[str, str] = {}
        self._asked: Sequence[str] = ()
        self._known: set[str] = set()

    def look(self, now_s: float) -> None:
        """Begin to look, if a minute has passed and there is a host with a name."""
        world = self._cycle.world
        if now_s < self._next_s or not world.nodes or not world.hosts:
            return
        self._next_s = now_s + EVERY_S
        nodes = (world.nodes.get(host.node or "") for host in world.hosts.values())
        # One that had a name has an address while it is being told to look the name up.
        ever = {*self._asked}
        names = sorted(n.name for n in nodes if n is not None and (n.named or n.name in ever))
        if names and self._look_up(names):
            self._asked = names

    def heard(self, found: Mapping[str, str]) -> None:
        """Put what was found on record; the same sentence about a node only once."""
        for name in sorted({*self._asked} - self._known):
            _LOG.info("the NodeAddr of %s is a name: looked up, and again every minute", name)
            self._known.add(name)
        for name, sentence in found.items():
            if self._said.get(name) != sentence:
                _LOG.warning("%s: %s", name, sentence)
                self._cycle.record("address", name, {"event": "looked up", "why": sentence})
        self._said = found
