"""Runs bare metal by itself while there is nothing that the daemon could decide about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from backfill.drivers.simulated.events import EventQueue, SimEvent
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.sim.schedulers.requests import Request

if TYPE_CHECKING:
    from backfill.sim.replay.arrivals import Arrivals
    from backfill.sim.replay.trace_cluster import JobTale, TraceCluster


@dataclass(slots=True, eq=False)
class Light:
    """A high-priority job during a fast-forward. `launch_s`: when its script begins, once it is placed."""

    number: int
    tale: JobTale
    request: Request
    processors: int
    run_s: float
    placed_s: float = -1.0  # not yet
    launch_s: float = 0.0


class FastForward:
    """The simulated slurmctld for high-priority jobs alone, without a picture of any node.

    It starts and ends jobs at the same instants as the whole simulation with a daemon that has
    nothing to say but that the room is free, which the hook hears after `hook_s`. What it knows is
    written into the books of the whole simulation when it ends. It goes from instant to instant
    by itself until something is due of which it does not know.
    """

    def __init__(self, cluster: TraceCluster, events: EventQueue) -> None:
        self.on = False
        self.on_end: Callable[[], None] = lambda: None  # the books are complete again
        self.arrivals: Arrivals | None = None
        self._cluster, self._events = cluster, events
        self._hook_s = 0.0
        self._jobs: dict[str, Light] = {}
        self._ends: list[tuple[float, int, Light]] = []  # a heap: by end
        self._placed = 0
        self._next: SimEvent | None = None
        self._going = False  # from instant to instant
        self._pass_due = False

    def begin(self, hook_s: float) -> None:
        """From now on nobody looks at single nodes. `hook_s`: until a hook has its answer."""
        self.on, self._hook_s = True, min(hook_s, self._cluster.hook_limit_s)
        if self.arrivals is not None:
            self.arrivals.pause()
        self._wait()

    def end(self) -> None:
        """Let the daemon look again; harmless where no fast-forward is on."""
        if not self.on:
            return
        self.on = False
        if self._next is not None:
            self._next.cancel()
        self._ends.clear()
        jobs, self._jobs = self._jobs, {}
        for light in jobs.values():
            begun = light.placed_s >= 0.0 and light.launch_s < self._events.now_s
            if begun:
                self._tell_start(light)
            self._cluster.take_over(light, begun=begun)
        if self.arrivals is not None:
            self.arrivals.go_on()
        self.on_end()

    # --- time ----------------------------------------------------------------------------------

    def _next_s(self) -> float:
        """Return when a job comes or ends."""
        end_s = self._ends[0][0] if self._ends else inf
        arrivals = self.arrivals
        return end_s if arrivals is None or end_s < arrivals.next_s else arrivals.next_s

    def _wait(self) -> None:
        """Go on when a job comes or ends."""
        if self._next is not None:
            self._next.cancel()
        next_s = self._next_s()
        self._next = None
        if next_s < inf:
            self._next = self._events.at(next_s, self._go, self._ticket(next_s))

    def _ticket(self, next_s: float) -> int:
        """Return the place of arrivals, or under `eventwise` of the job that ends: see TraceCluster."""
        arrivals = self.arrivals
        if arrivals is not None and arrivals.next_s <= next_s:
            return self._events.ticket(early=self._cluster.jobs.eventwise)
        return self._cluster.end_in_order(self._ends[0][2].request.name)

    def _go(self) -> None:
        """Go from instant to instant until something else is due."""
        events, ends, arrivals = self._events, self._ends, self.arrivals
        eventwise = self._cluster.jobs.eventwise
        self._next, self._going = None, True
        while True:
            now_s = events.now_s
            if eventwise and arrivals is not None and arrivals.next_s <= now_s:
                arrivals.submit()
                if not events.pass_to(now_s):
                    break  # others may end before these
            while ends and ends[0][0] <= now_s:
                self._finish(heappop(ends)[2])
            if arrivals is not None and arrivals.next_s <= now_s:
                arrivals.submit()
            while self._pass_due:
                self._pass(now_s)
            next_s = self._next_s()
            if next_s == inf or not events.pass_to(next_s):
                break
        self._going = False
        self._wait()

    def _pass(self, now_s: float) -> None:
        """Start those who may, once all that is due at this instant is done."""
        self._pass_due = False
        jobs = self._cluster.jobs
        if self._events.pass_to(now_s):
            jobs.schedule_now()
        else:
            jobs.kick()

    def _moved(self) -> None:
        """Note that a job has come or ended."""
        if self._cluster.jobs.eventwise:
            self._cluster.jobs.schedule_metal()

    def _kick(self) -> None:
        if self._going:
            self._pass_due = True
        else:
            self._cluster.jobs.kick()

    # --- jobs ----------------------------------------------------------------------------------

    def add(self, light: Light) -> None:
        """Let the job wait from now on."""
        self._jobs[light.request.name] = light
        self._cluster.queue.metal.add(light.request)
        self._kick()
        self._moved()

    def allocate(self, request: Request) -> None:
        """Give the job the nodes that the queue has found."""
        light = self._jobs[request.name]
        light.placed_s = self._events.now_s
        if self._cluster.queue.metal.room_on(request.placed):
            self._kick()  # as whenever a node with room has changed
        light.launch_s = light.placed_s + self._hook_s
        self._placed += 1
        # Of several ends at one instant: see TraceCluster.
        order = light.number if self._cluster.jobs.eventwise else self._placed
        heappush(self._ends, (light.launch_s + light.run_s, order, light))
        if not self._going:
            self._wait()

    def _tell_start(self, light: Light) -> None:
        tale = light.tale
        tale.start_s, tale.wait_s = light.launch_s, light.launch_s - light.placed_s
        tale.names, tale.placed = self._cluster.shape.names, light.request.placed

    def _finish(self, light: Light) -> None:
        self._tell_start(light)
        sim, tale, request = self._cluster, light.tale, light.request
        del self._jobs[request.name]
        sim.queue.metal.ended(request)
        self._pass_due = True
        start_s, end_s = light.launch_s, self._events.now_s
        tale.run_s, tale.end_s, tale.completed = end_s - start_s, end_s, True
        sim.active_high -= 1
        where = tale.host
        segments = [Segment(request.name, 0, where, where, 0.0, start_s, end_s)]
        sim.on_attempt(tale, segments if end_s > start_s else [], tale.run_s, 0.0)
        self._moved()
