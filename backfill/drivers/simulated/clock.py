"""Simulated time behind the Clock port, and the machine's clock, which somebody may set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backfill.core.model.cluster import Job, Node
from backfill.drivers.simulated.events import EventQueue
from backfill.ports.workload import ClusterObservation


class WallClock:
    """The clock by which simulated Slurm and hypervisors go. `boot` names the machine's boot."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._steps: list[tuple[float, float]] = []  # since when it is how far ahead
        self.boot = "boot 1"

    def set(self, by_s: float) -> None:
        """Set it forward, or back by a negative amount."""
        self._steps.append((self._events.now_s, self.ahead_s + by_s))

    @property
    def ahead_s(self) -> float:
        """By how much it is ahead of the time that really passed."""
        return self._steps[-1][1] if self._steps else 0.0

    def at(self, at_s: float) -> float:
        """Return its time at a moment of the simulation, if nobody sets it before."""
        shown_s = 0.0
        for since_s, ahead_s in self._steps:
            if at_s >= since_s:
                shown_s = ahead_s
        return at_s + shown_s

    def told(self, seen: ClusterObservation) -> ClusterObservation:
        """Show a picture of Slurm with the times that Slurm would tell."""
        if not self._steps:
            return seen
        nodes = {name: self.stamped(node) for name, node in seen.nodes.items()}
        jobs = {id_: self.stamped_job(job) for id_, job in seen.jobs.items()}
        return ClusterObservation(self.at(seen.seen_s), nodes, jobs)

    def stamped(self, node: Node) -> Node:
        """Show a node likewise."""
        return replace(
            node, **self._times(node, "boot_time_s", "slurmd_start_s", "planned_s", "maintenance_s")
        )

    def stamped_job(self, job: Job) -> Job:
        """Show a job likewise."""
        return replace(job, **self._times(job, "submit_s", "eligible_s", "start_s"))

    def _times(self, one: Job | Node, *names: str) -> dict[str, Any]:
        return {n: self.at(at_s) for n in names if (at_s := getattr(one, n)) > 0.0}


class SimulatedClock:
    """Time that passes only when it is told to: that of a daemon which started at this moment."""

    def __init__(self, events: EventQueue, step_to: Callable[[float], None], wall: WallClock) -> None:
        self._events = events
        self._step_to = step_to
        self._wall = wall
        self.base_s = wall.ahead_s  # by so much it is ahead of the simulation's own time

    def now(self) -> float:
        """Return simulated epoch seconds."""
        return self._events.now_s + self.base_s

    def ahead(self) -> float:
        """Unless somebody set the machine's clock since, 0."""
        return self.base_s - self._wall.ahead_s

    def reading(self) -> tuple[str, float]:
        """Return the simulated machine's boot, and its uptime."""
        return self._wall.boot, self._events.now_s

    def advance(self, by_s: float) -> None:
        """Let `by_s` seconds pass with everything that happens in them."""
        self._step_to(self._events.now_s + by_s)
