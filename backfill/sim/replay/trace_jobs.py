"""The simulated slurmctld for traces: a queue for bare metal, and a note of whatever changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.world import World
from backfill.drivers.simulated.events import EventQueue, SimEvent
from backfill.drivers.simulated.hypervisor.hardware import SimMachine
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.slurm.books import Books, PendingQueue
from backfill.drivers.simulated.slurm.controller import NodeControl
from backfill.drivers.simulated.slurm.jobs import JobControl
from backfill.drivers.simulated.slurm.model import SimJob, SimNode
from backfill.sim.schedulers.fcfs import Fcfs
from backfill.sim.schedulers.node_sets import nodes_in
from backfill.sim.schedulers.requests import Request


class News:
    """All changes in Slurm since the daemon last looked: an observation of changes only."""

    def __init__(self, books: Books) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self._books = books
        self._jobs: dict[str, None] = {}
        self._nodes: dict[str, None] = {}

    def job(self, job: SimJob) -> None:
        """Note that the job, and with it its nodes, changed."""
        self.on_news()
        self._jobs[job.id] = None
        for name in job.nodes:
            self._nodes[name] = None

    def node(self, node: SimNode) -> None:
        """Note that the node changed."""
        self.on_news()
        self._nodes[node.name] = None

    def forgotten(self, job: SimJob) -> None:
        """Note a job that ended long ago: no reason to look, but told with the next news."""
        self._jobs[job.id] = None

    @property
    def any(self) -> bool:
        """Return True if there may be something to tell."""
        return bool(self._jobs or self._nodes)

    def take(self, world: World, seen_s: float) -> list[ch.Change]:
        """Everything that differs from `world`; from now on it counts as told."""
        found = [*self._of_nodes(world, seen_s), *self._of_jobs(world, seen_s)]
        self._jobs.clear()
        self._nodes.clear()
        return found

    def _of_nodes(self, world: World, seen_s: float) -> Iterator[ch.Change]:
        for name in self._nodes:
            node = self._books.nodes.get(name)
            if node is None:
                if name in world.nodes:
                    yield ch.NodeGone(name, seen_s)
            elif world.nodes.get(name) is not (view := node.view()):
                yield ch.NodeSeen(view, seen_s)

    def _of_jobs(self, world: World, seen_s: float) -> Iterator[ch.Change]:
        for id_ in self._jobs:
            job = self._books.known.get(id_)
            if job is None and id_ in world.jobs:
                yield ch.JobGone(id_, seen_s)
            elif job is not None and world.jobs.get(id_) is not job.view():
                yield ch.JobSeen(job.view(), seen_s)


class TwoQueues(PendingQueue):
    """Jobs for bare metal wait in a queue of their own, the others as Slurm's simulation has it."""

    def __init__(self, high: frozenset[str], nodes: Sequence[SimNode], metal: Fcfs) -> None:
        super().__init__()
        self.metal = metal
        self._high = high
        self._nodes = tuple(nodes)
        self._requests: dict[str, tuple[SimJob, Request]] = {}
        # The queue has placed a job; a light one is all that there is of it.
        self.on_metal: Callable[[SimJob, list[SimNode]], None] = lambda job, nodes: None
        self.on_light: Callable[[Request], None] = lambda request: None

    def push(self, job: SimJob, tier: int) -> None:
        """Let the job wait."""
        if not self.on_bare(job):
            super().push(job, tier)
            return
        estimate_s = job.run_s if job.time_limit_s is None else job.time_limit_s
        order = (job.submit_s, job.order)
        request = Request(job.id, order, job.num_nodes, job.cpus_per_node, estimate_s)
        self._requests[job.id] = (job, request)
        self.metal.add(request)

    def on_bare(self, job: SimJob) -> bool:
        """Return True if the job is one for bare metal."""
        return job.partition in self._high

    def schedule_metal(self, now_s: float) -> float:
        """One pass; tells when the next is due even if nothing happens until then."""
        if not self.metal.waits:
            return inf
        self.metal.schedule(now_s, self._start)
        return self.metal.wake_s(now_s) if self.metal.waits else inf

    def _start(self, request: Request, nodes: int) -> None:
        known = self._requests.get(request.name)
        if known is None:
            self.on_light(request)
        else:
            self.on_metal(known[0], self.metal_in(nodes))

    def metal_in(self, nodes: int) -> list[SimNode]:
        """Return the nodes in a set of bits."""
        return [self._nodes[node] for node in nodes_in(nodes)]

    def take_over(self, job: SimJob, request: Request) -> None:
        """Note a job that the queue knows already."""
        self._requests[job.id] = (job, request)

    def leaves(self, job: SimJob) -> None:
        """Note that a job on bare metal has left its nodes, or waits no longer."""
        found = self._requests.pop(job.id, None)
        if found is None:
            return
        if job.state is JobState.PENDING:
            self.metal.withdraw(job.id)
        else:
            self.metal.ended(found[1])


class TraceJobs(JobControl):
    """Jobs of traces never exceed their limit, so nobody watches for that."""

    def __init__(
        self, events: EventQueue, machines: Machines, books: Books, queue: TwoQueues, news: News
    ) -> None:
        super().__init__(events, machines, books)
        self._queue: TwoQueues = queue
        queue.on_metal = self._allocate
        self._news = news
        self.eventwise = False  # on bare metal: a pass after every arrival and every completion
        self._wake: SimEvent | None = None  # of the queue of bare metal
        self.on_start: Callable[[SimJob], None] = lambda job: None
        # (job, restart that is over, whether its work is done)
        self.on_over: Callable[[SimJob, int, bool], None] = lambda job, restart, done: None

    def submit(self, job: SimJob) -> None:
        """Take a new job."""
        super().submit(job)
        self._news.job(job)

    def wait(self, job: SimJob) -> None:
        """Let the pending job be looked at as soon as it is eligible."""
        super().wait(job)
        self._moved(job)

    def schedule_now(self) -> None:
        """Look at the waiting jobs without waiting for a tick."""
        if self._books.up:
            self._schedule()

    def _schedule(self) -> None:
        if not self.eventwise:
            self.schedule_metal()
        if self._queue.waits:
            super()._schedule()

    def schedule_metal(self) -> None:
        """Make a pass over those who wait for bare metal."""
        wake_s = self._queue.schedule_metal(self._events.now_s)
        if self._wake is not None and self._wake.at_s != wake_s:
            self._wake.cancel()
            self._wake = None
        if self._wake is None and wake_s < inf:
            self._wake = self._events.at(wake_s, self._wake_up)

    def _wake_up(self) -> None:
        self._wake = None
        if self.eventwise:
            self.schedule_metal()
        else:
            self.kick()

    def _moved(self, job: SimJob) -> None:
        """Under `eventwise`, let a pass of its own follow when a job waits or has left."""
        if self.eventwise and self._queue.on_bare(job):
            self.schedule_metal()

    def _allocate(self, job: SimJob, chosen: list[SimNode]) -> None:
        super()._allocate(job, chosen)
        self._news.job(job)
        self.on_start(job)

    def _launch(self, job: SimJob, restart: int) -> None:
        super()._launch(job, restart)
        self._news.job(job)

    def suspend(self, job: SimJob, by: str = "") -> None:
        """Stop the job's clock."""
        super().suspend(job, by)
        self._news.job(job)

    def resume(self, job: SimJob) -> None:
        """Let it go on."""
        super().resume(job)
        self._news.job(job)

    def requeue(self, job: SimJob, delay_s: float, *, held: bool = False) -> None:
        """Back to PENDING: what this attempt did may be lost."""
        self._news.job(job)
        self._queue.leaves(job)
        restart = job.restarts
        super().requeue(job, delay_s, held=held)
        self.on_over(job, restart, False)

    def end(self, job: SimJob, state: JobState) -> None:
        """End the job."""
        self._news.job(job)
        self._queue.leaves(job)
        super().end(job, state)
        self._news.job(job)
        self.on_over(job, job.restarts, state is JobState.COMPLETED)
        self._moved(job)

    def confirm(self, job: SimJob, node: SimNode) -> None:
        """Note that a node has nothing of the job any more."""
        if node.name in job.completing:
            self._news.job(job)
            super().confirm(job, node)

    def _forget(self, job: SimJob) -> None:
        super()._forget(job)
        self._news.forgotten(job)

    def take_over(self, job: SimJob, request: Request, launch_s: float, *, begun: bool) -> None:
        """Take a job of which only the queue knew: it waits, or has its nodes, or has begun on them."""
        self._books.known[job.id] = job
        self._queue.take_over(job, request)
        if request.placed:
            self._place(job, request)
            if begun:
                job.configuring = False
                self._machines.resume(job.id, job.nodes, job.run_s, launch_s)
            else:
                self._events.at(launch_s, partial(self._launch, job, job.restarts))
        self._news.job(job)

    def _place(self, job: SimJob, request: Request) -> None:
        chosen = self._queue.metal_in(request.placed)
        job.state, job.configuring = JobState.RUNNING, True
        job.nodes = tuple(node.name for node in chosen)
        for node in chosen:
            node.jobs[job.id] = job
            self._books.refresh(node)

    def watch_limit(self, job: SimJob) -> None:
        """Nothing: no job of a trace runs longer than its limit."""


class TraceNodes(NodeControl):
    """Notes every node that looks different now."""

    def __init__(
        self, events: EventQueue, machines: Machines, books: Books, jobs: JobControl, news: News
    ) -> None:
        super().__init__(events, machines, books, jobs)
        self._news = news

    def register(self, machine: SimMachine) -> None:
        """Let a slurmd say what it has."""
        super().register(machine)
        node = self._books.nodes.get(machine.node)
        if node is not None:
            self._news.node(node)

    def down(self, node: SimNode, reason: str, *, holds: bool) -> None:
        """DOWN."""
        super().down(node, reason, holds=holds)
        self._news.node(node)

    def _miss(self, node: SimNode) -> None:
        super()._miss(node)
        self._news.node(node)
