"""Converts the times that Slurm shows, which go by the machine's clock, to our time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeVar

from backfill.core.model.cluster import Job, Node

SeenT = TypeVar("SeenT", Job, Node)

_OF_JOBS = ("submit_s", "eligible_s", "start_s", "deadline_s", "planned_s")
_OF_NODES = ("boot_time_s", "slurmd_start_s", "planned_s", "maintenance_s")


class Almanac:
    """Nothing is to be done unless the machine's clock was set while the daemon ran.

    Then what reads as it did before is the same object again: only the rest is compared.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Job, int, Job]] = {}
        self._nodes: dict[str, tuple[Node, int, Node]] = {}

    def jobs(self, seen: dict[str, Job], ahead_s: float) -> dict[str, Job]:
        """Return the same with all moments in a time that is so far ahead of the machine's clock."""
        return _told(seen, ahead_s, self._jobs, _OF_JOBS)

    def nodes(self, seen: dict[str, Node], ahead_s: float) -> dict[str, Node]:
        """Likewise."""
        return _told(seen, ahead_s, self._nodes, _OF_NODES)

    def forget_others(self, nodes: Collection[str], jobs: Collection[str]) -> None:
        """Slurm knows only these."""
        # Another thread may just be reading some nodes.
        for name in list(self._nodes):
            if name not in nodes:
                self._nodes.pop(name, None)
        for name in list(self._jobs):
            if name not in jobs:
                self._jobs.pop(name, None)


def _told(
    seen: dict[str, SeenT],
    ahead_s: float,
    known: dict[str, tuple[SeenT, int, SeenT]],
    moments: tuple[str, ...],
) -> dict[str, SeenT]:
    by_s = round(ahead_s)  # Slurm tells whole seconds
    if not by_s:
        return seen
    found = {}
    for name, one in seen.items():
        was = known.get(name)
        if was is None or was[0] is not one or was[1] != by_s:
            was = known[name] = (one, by_s, _moved(one, by_s, moments))
        found[name] = was[2]
    return found


def _moved(one: SeenT, by_s: int, moments: tuple[str, ...]) -> SeenT:
    """0 stands for none."""
    times: dict[str, Any] = {m: at_s + by_s for m in moments if (at_s := getattr(one, m)) > 0.0}
    return replace(one, **times)
