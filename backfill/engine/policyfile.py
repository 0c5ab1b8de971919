"""The policies that the daemon decides by: which file they are from, and how they are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from backfill.core.policy import PolicySet
from backfill.engine.cycle import Cycle

_LOG = logging.getLogger("backfill.policy")


@dataclass(frozen=True, slots=True)
class Reading:
    """A policy file as it was read just now: its policies, or everything that is wrong with it.

    `changed`: the keys in which it differs from what is in force.
    """

    source: str
    policies: PolicySet | None
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


# Reads the file again, given the policies in force: None when it has not changed since, unless
# `force`. Called from a thread of its own; must not raise.
Reread = Callable[[PolicySet, bool], Reading | None]


def never(policies: PolicySet, force: bool) -> Reading | None:
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

    def read(self, policies: PolicySet, *, force: bool = False) -> Reading | None:
        """Read the file again, in any thread."""
        return self._reread(policies, force)

    def take(self, reading: Reading, cycle: Cycle) -> dict[str, object]:
        """Put the file into force, or stay with the policies that are. Says what was done."""
        now_s = cycle.world.now_s
        self.source = reading.source
        if reading.policies is None:
            self.problems, self.refused_s = reading.problems, now_s
            for problem in reading.problems:
                _LOG.error("policy file not taken over: %s", problem)
            why = "; ".join(reading.problems)
            body: dict[str, object] = {"event": "policy file not taken over:", "why": why}
        else:
            cycle.policies = reading.policies
            self.problems, self.loaded_s = (), now_s
            changed = ", ".join(reading.changed) or "nothing"
            _LOG.info("policy file %s taken over; changed: %s", reading.source, changed)
            body = {"event": "policy file taken over, changed:", "why": changed}
        cycle.record("daemon", "cluster", {**body, "source": reading.source})
        return self.told()

    def told(self) -> dict[str, object]:
        """As plain data, for people."""
        return {
            "source": self.source,
            "loaded_s": self.loaded_s,
            "problems": list(self.problems),
            "refused_s": self.refused_s,
        }
