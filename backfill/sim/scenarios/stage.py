"""Defines the cluster that a scenario is played on, and provides a simulated one with its mishaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from backfill.core.model.cluster import ENDED, Job
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.victims import Extent
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.slurm.model import SimReservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.ports.storage import Record
from backfill.sim.replay.trace_cluster import METAL
from backfill.sim.scenarios.payloads import PayloadStock, stock
from backfill.sim.scenarios.rehearsal import Rehearsal
from backfill.sim.scenarios.rhythm import Rhythm
from backfill.sim.scenarios.scenario import FaultEntry, Mishap, PayloadsEntry, Scenario
from backfill.sim.traces.draws import seeded

# Of these the daemon keeps no more than the memory.
_OVER = frozenset({Phase.FAILED, Phase.GIVEN_UP})
# A job that goes on until it is told to finish.
_ENDLESS_S = 1e9


@dataclass(frozen=True, slots=True)
class JobAsk:
    """A job to submit. It runs `run_s`, or counts to `count`, or (both 0) until `finish`."""

    name: str
    partition: str
    cpus: int = 1
    memory_mb: int = 0
    nodes: tuple[str, ...] = ()
    run_s: float = 0.0
    count: int = 0
    limit_s: float = 0.0  # 0: none


class Stage(Protocol):
    """A cluster with a daemon. Times are epoch seconds of the stage's own clock.

    `look_s`: a play looks at it so often, counted from its beginning; 0: whenever something stirs.
    """

    look_s: float

    def now(self) -> float:
        """Return the time there."""

    def submit(self, ask: JobAsk) -> str:
        """Submit a job; returns its id."""

    def finish(self, job_id: str) -> None:
        """Let a running job that was to go on until told so come to its end."""

    def cancel(self, job_id: str) -> None:
        """Cancel the job, as its owner would."""

    def befall(self, fault: FaultEntry) -> None:
        """Let a mishap happen now, and be over in its time. LabError where it cannot be done."""

    def jobs(self) -> Mapping[str, Job]:
        """Return the jobs submitted here by id, as Slurm shows them now; ended ones too."""

    def step(self, until_s: float) -> None:
        """Let time pass until something may have changed, at most until `until_s`."""

    def records(self, after_id: int = 0) -> Iterable[Record]:
        """Return the daemon's journal."""

    def start_delay_s(self, job_id: str) -> float | None:
        """From Slurm's allocation of the job to its first command; None while unknown."""

    def complaints(self) -> list[str]:
        """Return what went wrong with the work itself: gaps, duplicates, jobs that ran twice."""

    def left(self) -> list[str]:
        """Instances and nodes of ours that are still there."""

    def payloads(self) -> PayloadStock | None:
        """Return what has become of the payloads of a pool outside; None where there is none."""


def _world(scenario: Scenario, rhythm: Rhythm) -> SimulatedWorld:
    manners = Manners(tick_s=rhythm.tick_s)
    sim = SimulatedWorld(
        cluster=scenario.policies.cluster,
        boot_s=scenario.costs.boot_s,
        count_every_s=rhythm.count_s or scenario.count_every_s,
        manners=manners,
    )
    sim.checks.shared = scenario.policies.victims.extent is Extent.NEEDED
    sim.checks.overcommit = scenario.policies.placement.cpu_overcommit
    start_s = sim.now_s + rhythm.lead_s
    manners.tick_at_s = start_s + rhythm.tick_at_s
    manners.first_s = start_s + rhythm.first_at_s
    return sim


def drawn_payloads(entry: PayloadsEntry, seed: int) -> Iterator[float]:
    """Yield how long each payload runs, s."""
    rng = seeded(seed)
    for _ in range(entry.copies):
        most_s = entry.run_most_s or entry.run_s
        yield entry.run_s + (most_s - entry.run_s) * rng.random()


class SimulatedCluster:
    """A scenario's hosts, partitions and jobs in simulated time, with nobody beside Slurm.

    `after_step` is called with the simulated seconds since the beginning: a place to slow down.
    `low_on`: the feature of the nodes on which low-priority jobs run.
    """

    def __init__(
        self,
        scenario: Scenario,
        after_step: Callable[[float], None] | None = None,
        rhythm: Rhythm | None = None,
        low_on: str = METAL,
    ) -> None:
        policies = scenario.policies
        self._after_step = after_step
        rhythm = rhythm if rhythm is not None else Rhythm()
        self.look_s = rhythm.look_s
        self._sim = _world(scenario, rhythm)
        for name in policies.priorities.low:
            self._sim.add_partition(name, tier=1, feature=low_on)
        for name in policies.priorities.high:
            self._sim.add_partition(name, tier=10, feature=METAL)
        for group in scenario.hosts:
            for name in group.names:
                self._sim.add_host(name, cpus=group.cpus, memory_mb=group.memory_mb, features=(METAL,))
        self._start_s = self._sim.now_s + rhythm.lead_s
        for entry in scenario.reservations:
            start_s = self._start_s + entry.at_s
            kept = SimReservation(start_s, start_s + entry.for_s, entry.maintenance)
            self._sim.slurm.reserve(entry.nodes, kept)
        self._pool = scenario.payloads
        if self._pool is not None:
            self._sim.pool.gives_up_s = self._pool.gives_up_s or None
            for run_s in drawn_payloads(self._pool, scenario.seed):
                self._sim.pool.add(run_s)
        self._ids: dict[str, JobAsk] = {}
        self._over: dict[str, Job] = {}
        self._finished: set[str] = set()

    def now(self) -> float:
        """Return simulated epoch seconds."""
        return self._sim.now_s

    def submit(self, ask: JobAsk) -> str:
        """Submit a job; returns its id."""
        run_s = ask.run_s or (ask.count * self._sim.count_every_s) or _ENDLESS_S
        job_id = self._sim.submit(
            ask.partition,
            run_s,
            name=ask.name,
            cpus=ask.cpus,
            memory_mb=ask.memory_mb,
            required_nodes=ask.nodes,
            time_limit_s=ask.limit_s or None,
        )
        self._ids[job_id] = ask
        return job_id

    def finish(self, job_id: str) -> None:
        """Let a running job come to its end."""
        self._finished.add(job_id)
        self._sim.finish_job(job_id)

    def cancel(self, job_id: str) -> None:
        """Cancel the job."""
        self._finished.add(job_id)
        self._sim.user_cancel(job_id)

    def jobs(self) -> Mapping[str, Job]:
        """Return the jobs as Slurm shows them, or would if it still remembered them."""
        found = {job_id: self._sim.job(job_id) for job_id in self._ids if job_id not in self._over}
        self._over.update((i, job) for i, job in found.items() if job.state in ENDED and not job.flags)
        return {**self._over, **found}

    def step(self, until_s: float) -> None:
        """Go to the next event, if it is seen by itself, or to `until_s`."""
        next_s = None if self.look_s else self._sim.next_s
        self._sim.step_to(min(until_s, math.inf if next_s is None else next_s))
        if self._after_step is not None:
            self._after_step(self._sim.now_s - self._start_s)

    def start_delay_s(self, job_id: str) -> float | None:
        """From the allocation to the first moment at which it really computed."""
        first_s = min((s.start_s for s in self._sim.segments if s.job == job_id), default=None)
        return None if first_s is None else first_s - self._sim.job(job_id).start_s

    def begins_s(self) -> dict[str, float]:
        """Return when each job that has computed did so for the first time, by its id; epoch seconds."""
        return {s.job: s.start_s for s in sorted(self._sim.segments, key=lambda s: -s.start_s)}

    def ends_s(self) -> dict[str, float]:
        """Return when each job that has computed did so for the last time, by its id; epoch seconds."""
        return {s.job: s.end_s for s in sorted(self._sim.segments, key=lambda s: s.end_s)}

    def complaints(self) -> list[str]:
        """Gaps and duplicates of the counters, and every promise that the simulation saw broken."""
        ours = tuple(f"job {job_id}{end}" for job_id in self._finished for end in (" ", ","))
        # A job that was told to finish did not count to the end that the simulation expects.
        gaps = [gap for gap in self._sim.gaps() if not gap.startswith(ours or ("\0",))]
        return gaps + [str(violation) for violation in self._sim.audit()]

    def payloads(self) -> PayloadStock | None:
        """Return what has become of the scenario's payloads."""
        return None if self._pool is None else stock(self._sim.pool.kept(), self._sim.segments)


class SimulatedStage(SimulatedCluster):
    """The daemon's own cycle against the simulated cluster; nothing waits for a wall clock."""

    def __init__(
        self,
        scenario: Scenario,
        after_step: Callable[[float], None] | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        policies = scenario.policies
        super().__init__(scenario, after_step, rhythm, policies.instances.features[0])
        self._journal = MemoryJournal()
        self.rehearsal = Rehearsal(
            self._sim, policies, self._journal, costs=scenario.costs, poll_s=scenario.poll_s
        )
        self._sim.step_to(self._start_s)

    def befall(self, fault: FaultEntry) -> None:
        """Let a mishap happen now."""
        over = befall(fault, self._sim, self.rehearsal)
        if over is not None:
            self._sim.at(self._sim.now_s + fault.for_s, over)

    def records(self, after_id: int = 0) -> Iterable[Record]:
        """Return the journal."""
        return self._journal.read(after_id)

    def left(self) -> list[str]:
        """Our nodes, as the daemon sees them, and instances on any host."""
        managed = self.rehearsal.world.managed.values()
        found = {node.name for node in managed if node.phase not in _OVER}
        for host in self._sim.hosts.values():
            found.update(host.instances)
        return sorted(found)


_UNSEEN = {
    Mishap.JOBS_UNSEEN: Odd.NO_JOBS,
    Mishap.NODES_UNSEEN: Odd.NO_NODES,
    Mishap.HALF_UNSEEN: Odd.HALF,
    Mishap.INSTANCES_UNSEEN: Odd.NO_INSTANCES,
}


def befall(fault: FaultEntry, sim: SimulatedWorld, daemon: Rehearsal) -> Callable[[], None] | None:
    """Let it happen now; returns what ends it, None where nothing has to be ended."""
    match fault.what:
        case Mishap.DAEMON_KILLED:
            return _kill(daemon)
        case Mishap.SLURM_SILENT:
            sim.stop_slurm()
            return sim.start_slurm
        case Mishap.HOST_CUT:
            sim.cut_host(fault.host)
            return partial(sim.join_host, fault.host)
        case Mishap.HOST_DEAD:
            sim.kill_host(fault.host)
            return partial(sim.power_host, fault.host)
        case Mishap.FILES_OUT:
            sim.stop_file_server()
            return sim.start_file_server
        case _:
            _once(fault, fault.what, sim)
            return None


def _once(fault: FaultEntry, what: Mishap, sim: SimulatedWorld) -> None:
    """Let a mishap happen that is over by itself."""
    match what:
        case Mishap.CALL_FAILS:
            error = UnreachableError(fault.call, "failed, as the scenario wants it to")
            sim.faults.fail(fault.call, error, subject=fault.host or None, times=fault.times)
        case Mishap.NEVER_BOOTS:
            sim.faults.never_boots(fault.node, fault.times)
        case Mishap.CLOCK_SET:
            sim.set_clock(fault.by_s)
        case _:
            sim.faults.misread(_UNSEEN[what], subject=fault.host or None, times=fault.times)


def _kill(daemon: Rehearsal) -> Callable[[], None]:
    """Kill it, if it lives; whoever starts it again finds it dead, or started by others."""
    daemon.kill()

    def start() -> None:
        if not daemon.alive:
            daemon.start()

    return start
