"""The policies that the daemon decides by: which file they are from, and how they are replaced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from backfill.core.policy import PolicySet
from backfill.engine.cycle import Cycle

_LOG = logging.getLogger("backfill.policy")


@dataclass(frozen=True, slots=True)
class Reading:
    """A policy file as it was read just now: its policies, or everything that is wrong with it.

    `number`: the later a file was read, the higher.
    """

    source: str
    policies: PolicySet | None
    problems: tuple[str, ...] = ()
    number: int = 0


# Reads the file again: None when there is nothing new since the last time, unless `force`. Called
# from one thread at a time, never the daemon's; must not raise.
Reread = Callable[[bool], Reading | None]


def never(force: bool) -> Reading | None:
    """For a daemon whose policies come from no file."""
    if not force:
        return None
    return Reading("", None, ("this daemon was not started with a policy file",))


class PolicyFile:
    """Belongs to the daemon's thread, apart from `read`."""

    def __init__(self, reread: Reread = never) -> None:
        self._reread = reread
        self.source = ""
        self.loaded_s = 0.0
        self.problems: tuple[str, ...] = ()  # why the file as it is now is not in force
        self.refused_s = 0.0
        self._reading = threading.Lock()
        self._number = 0  # of the latest reading
        self._taken = 0  # the number of the one that was decided on last

    def read(self, *, force: bool = False) -> Reading | None:
        """Read the file again, in any thread.

        It waits for a reading that is under way: that may have begun with an older file. Who only
        looks whether there is something new goes away instead.
        """
        if not self._reading.acquire(blocking=force):
            return None
        try:
            reading = self._reread(force)
            if reading is None:
                return None
            self._number += 1
            return replace(reading, number=self._number)
        finally:
            self._reading.release()

    def take(self, reading: Reading, cycle: Cycle) -> dict[str, object]:
        """Put the file into force, or stay with the policies that are. Says what was done.

        A reading that is older than the last one taken comes too late, and counts for nothing.
        """
        if reading.number < self._taken:
            return {**self.told(), "changed": []}
        self._taken = reading.number
        now_s = cycle.world.now_s
        changed: list[str] = []
        self.source = reading.source
        if reading.policies is None:
            self.problems, self.refused_s = reading.problems, now_s
            for problem in reading.problems:
                _LOG.error("policy file not taken over: %s", problem)
            why = "; ".join(reading.problems)
            body: dict[str, object] = {"event": "policy file not taken over:", "why": why}
        else:
            changed = differing(cycle.policies, reading.policies)
            words = ", ".join(changed) or "nothing"
            cycle.policies = reading.policies
            self.problems, self.loaded_s = (), now_s
            _LOG.info("policy file %s taken over; changed: %s", reading.source, words)
            body = {"event": "policy file taken over, changed:", "why": words}
        cycle.record("daemon", "cluster", {**body, "source": reading.source})
        return {**self.told(), "changed": changed}

    def told(self) -> dict[str, object]:
        """As plain data, for people."""
        return {
            "source": self.source,
            "loaded_s": self.loaded_s,
            "problems": list(self.problems),
            "refused_s": self.refused_s,
        }


def differing(one: PolicySet, other: PolicySet) -> list[str]:
    """Names of the policies in which two sets differ."""
    return [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]
