"""Calm: bare metal by itself, while there is nothing that the daemon could decide about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from backfill.drivers.simulated.events import Event
from backfill.drivers.simulated.hardware import Segment
from backfill.sim.waiting_asks import Ask

if TYPE_CHECKING:
    from backfill.sim.trace_cluster import JobTale, TraceCluster


@dataclass(slots=True, eq=False)
class Light:
    """A high-priority job as calm has it. `launch_s`: when its script begins, once it is placed."""

    number: int
    tale: JobTale
    ask: Ask
    processors: int
    run_s: float
    placed_s: float = 0.0
    launch_s: float = 0.0
    end: Event | None = None


class Calm:
    """The simulated slurmctld for high-priority jobs alone, without a picture of any node.

    It starts and ends jobs at the same instants as the whole simulation with a daemon that has
    nothing to say but that the room is free, which the hook hears after `hook_s`. What it knows is
    written into the books of the whole simulation when calm ends.
    """

    def __init__(self, cluster: TraceCluster) -> None:
        self.on = False
        self.on_end: Callable[[], None] = lambda: None  # the books are complete again
        self._cluster = cluster
        self._hook_s = 0.0
        self._jobs: dict[str, Light] = {}

    def begin(self, hook_s: float) -> None:
        """From now on nobody looks at single nodes. `hook_s`: until a hook has its answer."""
        self.on, self._hook_s = True, hook_s

    def end(self) -> None:
        """Somebody looks again; calm or not."""
        if not self.on:
            return
        self.on = False
        jobs, self._jobs = self._jobs, {}
        for light in jobs.values():
            if light.end is not None:
                light.end.cancel()
            begun = light.end is not None and light.launch_s < self._cluster.now_s
            if begun:
                self._tell_start(light)
            self._cluster.take_over(light, begun=begun)
        self.on_end()

    def _delay_s(self) -> float:
        return min(self._hook_s, self._cluster.hook_limit_s)

    # --- jobs ----------------------------------------------------------------------------------

    def add(self, light: Light) -> None:
        """The job waits from now on."""
        self._jobs[light.ask.name] = light
        self._cluster.queue.metal.add(light.ask)
        self._cluster.jobs.kick()

    def allocate(self, ask: Ask) -> None:
        """The queue has found nodes for the job."""
        light, sim = self._jobs[ask.name], self._cluster
        light.placed_s = sim.now_s
        if sim.queue.metal.room_on(ask.placed):
            sim.jobs.kick()  # as whenever a node with room has changed
        light.launch_s = light.placed_s + self._delay_s()
        light.end = sim.at(light.launch_s + light.run_s, partial(self._finish, light))

    def _tell_start(self, light: Light) -> None:
        tale = light.tale
        tale.start_s, tale.wait_s = light.launch_s, light.launch_s - light.placed_s
        tale.names, tale.placed = self._cluster.shape.names, light.ask.placed

    def _finish(self, light: Light) -> None:
        self._tell_start(light)
        sim, tale, ask = self._cluster, light.tale, light.ask
        del self._jobs[ask.name]
        sim.queue.metal.ended(ask)
        sim.jobs.kick()
        start_s, end_s = light.launch_s, sim.now_s
        tale.run_s, tale.end_s, tale.completed = end_s - start_s, end_s, True
        sim.active_high -= 1
        where = tale.host
        segments = [Segment(ask.name, 0, where, where, 0.0, start_s, end_s)]
        sim.on_attempt(tale, segments if end_s > start_s else [], tale.run_s, 0.0)
