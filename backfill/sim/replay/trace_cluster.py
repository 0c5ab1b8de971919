"""A simulated cluster for traces: instances on bare metal that has a queue of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.slurm.manager import SimulatedSlurm
from backfill.drivers.simulated.slurm.model import SimJob, SimReservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.replay.fast_forward import FastForward, Light
from backfill.sim.replay.trace_jobs import News, TraceJobs, TraceNodes, TwoQueues
from backfill.sim.schedulers.family import scheduler_in
from backfill.sim.schedulers.machine import SchedulerName, Tie
from backfill.sim.schedulers.node_sets import nodes_in
from backfill.sim.schedulers.requests import Request
from backfill.sim.schedulers.reservations import ReservationEntry, kept_nodes
from backfill.sim.schedulers.rooms import Nodes
from backfill.sim.traces.trace import JobDetails

# Where a trace does not say when it was, its replay begins then: no time is 0, which means "never".
START_S = 1_000_000.0
METAL = "metal"
_SOMEBODY = "user"
_EARLY = 1 << 61  # behind what is early in the queue of events, before all else


# See Ledger.attempt.
Attempt = Callable[["JobTale", list[Segment], float, float], None]


@dataclass(frozen=True, slots=True)
class MetalShape:
    """The bare-metal nodes, all equal. Jobs in `low` run on instances, with feature `virtual`.

    `keeps`: what instances never take, by node.
    """

    names: tuple[str, ...]
    cpus: int
    memory_mb: int
    high: str
    low: tuple[str, ...]
    virtual: str
    scheduler: SchedulerName = "easy"
    tie: Tie = "batch"
    keeps: Mapping[str, Resources] = field(default_factory=dict)


@dataclass(slots=True)
class JobTale:
    """The story of one job: when its script first began, its end, and its attempts."""

    index: int  # in its trace
    high: bool
    cpus: int
    submit_s: float
    start_s: float = -1.0
    end_s: float = -1.0
    wait_s: float = 0.0  # from its last allocation to its script's first command
    names: tuple[str, ...] = ()  # of the hosts of its last start
    placed: int = -1  # of `names` only these, a set of bits; -1: all of them
    lost_s: float = 0.0  # computing time that was lost
    run_s: float = 0.0  # computing time that was kept
    restarts: int = 0
    completed: bool = False
    segments: list[Segment] = field(default_factory=list)  # of the attempt that goes on

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its last start."""
        if self.placed < 0:
            return self.names
        return tuple(self.names[node] for node in nodes_in(self.placed))

    @property
    def host(self) -> str:
        """The first host of its last start."""
        if self.placed > 0:
            return self.names[(self.placed & -self.placed).bit_length() - 1]
        return self.names[0] if self.names else ""


class TraceCluster(SimulatedWorld):
    """Slurm decides at every change of its state, once all that is due at that moment is done."""

    def __init__(
        self, shape: MetalShape, *, cluster: str, boot_s: float, seed: int = 0, start_s: float = START_S
    ) -> None:
        super().__init__(
            start_s=start_s, seed=seed, cluster=cluster, boot_s=boot_s, manners=Manners(tick_s=0.0)
        )
        self.shape, self.start_s = shape, start_s
        self.tales: dict[str, JobTale] = {}
        for name in shape.low:
            self.add_partition(name, tier=1, feature=shape.virtual)
        self.add_partition(shape.high, tier=10, feature=METAL)
        for name in shape.names:
            keeps = shape.keeps.get(name, NOTHING)
            self.add_host(name, cpus=shape.cpus, memory_mb=shape.memory_mb, features=(METAL,), keeps=keeps)
        metal = [self._books.nodes[name] for name in shape.names]
        self.news = News(self._books)
        order = scheduler_in(shape.scheduler, Nodes([shape.cpus] * len(shape.names)))
        self.queue = TwoQueues(frozenset({shape.high}), metal, order)
        self.jobs = TraceJobs(self._events, self._machines, self._books, self.queue, self.news)
        self.jobs.before_start = self._started
        self.jobs.on_over = self._over
        self._jobs = self.jobs
        if shape.tie == "eventwise":
            self.jobs.eventwise = True
            self._machines.ticket_of = self.end_in_order
        self._nodes = TraceNodes(self._events, self._machines, self._books, self.jobs, self.news)
        self._machines.listener = self._nodes
        self.slurm = SimulatedSlurm(
            self._events, self._books, self._jobs, self._nodes, self.faults, self._lock, cluster
        )
        self.provider.woken = self._nodes.register
        self._watch_losses()
        self.saves = (0.0, 0.0)  # every so many seconds, and what one takes
        self.active_high = self.active_low = 0
        self.fast_forward = FastForward(self, self._events)
        self.queue.on_light = self.fast_forward.allocate
        # (job, its attempt, seconds of it that are kept, share of them spent on saving)
        self.on_attempt: Attempt = lambda tale, segments, kept_s, saving: None

    def keep(self, entries: Sequence[ReservationEntry]) -> None:
        """Reserve nodes, as an admin does before the first job; times count from the beginning."""
        shape = self.shape
        kept = kept_nodes(entries, shape.names, self.start_s)
        self.queue.metal = scheduler_in(shape.scheduler, Nodes([shape.cpus] * len(shape.names), kept))
        for entry in entries:
            start_s = self.start_s + entry.at_s
            end_s = start_s + entry.for_s
            self.slurm.reserve(entry.nodes, SimReservation(start_s, end_s, entry.maintenance))
            for at_s in (self.now_s, start_s, end_s):
                self.at(at_s, partial(self._turn, entry.nodes))

    def end_in_order(self, job_id: str) -> int:
        """At one instant bare metal's arrivals come first, then its completions in queue order.

        0 where a completion comes in its turn.
        """
        eventwise = self.shape.tie == "eventwise" and self.tales[job_id].high
        return int(job_id) - _EARLY if eventwise else 0

    def _turn(self, names: Sequence[str]) -> None:
        """Note that these nodes look different from now on."""
        self.fast_forward.end()
        for name in names:
            self.news.node(self._books.nodes[name])
        self.jobs.kick()

    # --- jobs ----------------------------------------------------------------------------------

    def add_high(self, index: int, run_s: float, estimate_s: float, processors: int) -> str:
        """Add a job for bare metal, packed onto as few nodes as can hold it, equally many on each."""
        nodes = -(-processors // self.shape.cpus)
        each = -(-processors // nodes)
        tale = JobTale(index, True, each * nodes, self.now_s)
        self.active_high += 1
        if self.fast_forward.on:
            number = self._last_job = self._last_order = self._last_job + 1
            request = Request(str(number), (self.now_s, number), nodes, each, estimate_s)
            self.tales[request.name] = tale
            self.fast_forward.add(Light(number, tale, request, processors, run_s))
            return request.name
        wishes = {"cpus": processors, "num_nodes": nodes, "time_limit_s": estimate_s}
        id_ = self.submit(self.shape.high, run_s, **wishes)
        self.tales[id_] = tale
        return id_

    def take_over(self, light: Light, *, begun: bool) -> None:
        """Write a job of which the fast-forward knew into the books."""
        request, tale = light.request, light.tale
        number, submit_s = light.number, tale.submit_s
        job = SimJob(request.name, number, number, self.shape.high, light.run_s, submit_s)
        job.cpus, job.num_nodes, job.time_limit_s = light.processors, request.nodes, request.estimate_s
        job.eligible_s = submit_s
        job.start_s = job.clock_s = light.placed_s
        self._books.jobs[job.id] = job
        self.jobs.take_over(job, request, light.launch_s, begun=begun)

    @property
    def hook_limit_s(self) -> float:
        """After so long the job starts whatever its hook says."""
        return self._books.manners.hook_timeout_s

    def add_low(self, index: int, run_s: float, processors: int, told: JobDetails) -> str:
        """Add a job for instances, in the first of their partitions if it tells of no other one.

        Saving itself makes it longer.
        """
        self.fast_forward.end()
        self.active_low += 1
        every_s, save_s = self.saves
        if every_s > 0.0:
            run_s += run_s // every_s * save_s
        lows = self.shape.low
        id_ = self.submit(
            told.partition if told.partition in lows else lows[0],
            run_s,
            cpus=processors,
            memory_mb=told.memory_mb,
            user=told.user or _SOMEBODY,
            account=told.account,
            qos=told.qos,
        )
        self.tales[id_] = JobTale(index, False, processors, self.now_s)
        return id_

    def withdraw_waiting(self) -> int:
        """End every low-priority job that waits; returns their number."""
        waiting = [
            job
            for job in self._books.known.values()
            if job.partition in self.shape.low and job.state is JobState.PENDING
        ]
        for job in waiting:
            self.jobs.end(job, JobState.CANCELLED)
        return len(waiting)

    def active(self) -> int:
        """Return how many jobs have not ended yet."""
        return self.active_high + self.active_low

    # --- what came of it -----------------------------------------------------------------------

    def take_news(self, world: World) -> Sequence[ch.Change]:
        """Everything of Slurm that differs from `world`."""
        return self.news.take(world, self.now_s)

    def _started(self, job: SimJob) -> None:
        self._starts(job)
        tale = self.tales[job.id]
        if tale.start_s < 0:
            tale.start_s = self.now_s
        tale.wait_s = self.now_s - job.start_s
        tale.names = tuple(self._machines.serving[node].host for node in job.nodes)

    def _over(self, job: SimJob, restart: int, done: bool) -> None:
        """Book an attempt that is over: what it computed is kept, wholly or as far as it was saved."""
        self._sort_segments()
        tale = self.tales[job.id]
        segments, tale.segments = tale.segments, []
        worked_s = sum(s.end_s - s.start_s for s in segments)
        kept_s, saving = worked_s if done else 0.0, 0.0
        every_s, save_s = self.saves
        if every_s > 0.0 and not tale.high:
            period_s = every_s + save_s
            saving = save_s / period_s
            if not done:
                kept_s = worked_s // period_s * period_s
                job.run_s -= kept_s  # it goes on from there
        tale.lost_s += worked_s - kept_s
        tale.run_s += kept_s
        tale.restarts = job.restarts
        if job.state is not JobState.PENDING:
            tale.end_s, tale.completed = self.now_s, done
            self.active_high -= tale.high
            self.active_low -= not tale.high
        self.on_attempt(tale, segments, kept_s, saving)

    def _sort_segments(self) -> None:
        """Give what was computed to its jobs, and let it go otherwise."""
        segments = self._machines.segments
        for segment in segments:
            self.tales[segment.job].segments.append(segment)
        segments.clear()
