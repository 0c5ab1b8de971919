"""Once a minute a few owners are told why their jobs still wait; nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backfill.core.model.actions import TellJob
from backfill.core.reconcile.notices import Told, tell_waiting
from backfill.engine.cycle import Cycle

EVERY_S = 60.0


class WaitingRoom:
    """Used by the daemon's own thread. `tell` begins to tell, or returns False when it is busy.

    What was told is not kept over a restart: the few of the next minutes are then told again.
    """

    def __init__(self, cycle: Cycle, tell: Callable[[Sequence[TellJob]], bool]) -> None:
        self._cycle = cycle
        self._tell = tell
        self._told: dict[str, Told] = {}
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        """Tell those whose turn it is, if a minute has passed and no hook waits for us."""
        cycle = self._cycle
        if now_s < self._next_s or any(claim.waiting for claim in cycle.world.claims.values()):
            return
        self._next_s = now_s + EVERY_S
        words, told = tell_waiting(cycle.world, cycle.policies, cycle.last.refusals, self._told)
        if words and not self._tell(words):
            return
        self._told = told
        for word in words:
            event = "its owner can read" if word.text else "no longer to be read, it has begun"
            body: dict[str, object] = {"event": event, "why": word.text}
            cycle.record("notice", word.job_id, body)
