"""Our time and the machine's clock: what the journal says of both, and when that clock was set."""

from __future__ import annotations

import logging
from itertools import chain

from backfill.core.model import changes as ch
from backfill.core.model.clock import NOTABLE_S
from backfill.core.model.records import REMEMBERED, began, encode, remembered
from backfill.engine.cycle import Cycle
from backfill.engine.narrate import clock_began, clock_set
from backfill.ports.storage import Clock, Journal

_LOG = logging.getLogger("backfill.clock")
# So often the journal is told our time: after a boot of the machine no more than that is doubted.
_EVERY_S = 300.0


class Timekeeper:
    """Belongs to the daemon's thread."""

    def __init__(self, clock: Clock, cycle: Cycle, journal: Journal) -> None:
        self._clock, self._cycle, self._journal = clock, cycle, journal
        self._due_s = 0.0

    def recall(self) -> int:
        """Take from the journal what only we know, in our time; tell the number of nodes."""
        world, journal = self._cycle.world, self._journal
        told = (r.body for r in journal.read(types=(ch.ClockRead.__name__,)))
        start = began(told, self._reading())
        before = (r.body for r in journal.read(types=REMEMBERED) if r.kind in ("change", "clock"))
        for change in remembered(chain(before, [encode(start)]), world.now_s):
            world.apply(change)
        self._write(start)
        if start.moved_s:
            _LOG.warning("%s", clock_began(start))
        return len(world.managed)

    def look(self) -> None:
        """Tell the world when the machine's clock was set; and the journal our time, at times."""
        world = self._cycle.world
        ahead_s = self._clock.ahead()
        if abs(ahead_s - world.ahead_s) >= NOTABLE_S:
            _LOG.warning("%s", clock_set(world.ahead_s - ahead_s))
            self._cycle.take([ch.ClockSet(world.now_s, ahead_s)])
        if world.now_s >= self._due_s:
            self._write(self._reading())

    def _reading(self) -> ch.ClockRead:
        return ch.ClockRead(self._cycle.world.now_s, *self._clock.reading())

    def _write(self, reading: ch.ClockRead) -> None:
        """Not as a change: the world of a running daemon has nothing to learn from it."""
        self._due_s = reading.at_s + _EVERY_S
        self._cycle.record("clock", "cluster", encode(reading))
