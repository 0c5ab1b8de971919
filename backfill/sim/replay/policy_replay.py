"""Replays traces on a cluster with instances, decided by the daemon's own plan, or without any."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Protocol

from backfill.core.model.changes import Change
from backfill.core.model.lifecycle import Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal, Refusal
from backfill.core.policies.victims import Extent
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.drivers.simulated.slurm.model import SimJob
from backfill.sim.replay.arrivals import Arrivals
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.fitting import misfit
from backfill.sim.replay.ledger import Ledger, Window
from backfill.sim.replay.measures import Harvest
from backfill.sim.replay.reference import BareReplay
from backfill.sim.replay.replay_daemon import ReplayDaemon
from backfill.sim.replay.trace_cluster import START_S, JobTale, MetalShape, TraceCluster
from backfill.sim.schedulers.machine import Cluster, SchedulerName, Tie
from backfill.sim.schedulers.reservations import ReservationEntry
from backfill.sim.traces.trace import JobTrace

_LONGEST_DRAIN_S = 60 * 86_400.0
_CHUNK_S = 3600.0
_STORY_LINES = 20
_OVER = frozenset({Phase.FAILED, Phase.GIVEN_UP})


class BrokenPromiseError(Exception):
    """The run broke a promise; `lines` is the story of those whom it is about."""

    def __init__(self, violations: list[str], lines: list[str]) -> None:
        self.violations, self.lines = violations, lines
        super().__init__("; ".join(violations))


@dataclass(frozen=True, slots=True)
class Setting:
    """The input that all compared runs share.

    `depth`: so many low-priority jobs wait in Slurm at most, the others follow, as pilot
    factories do it; those that no instance of a policy can carry are passed over.
    `saves_every_s`: low-priority jobs save themselves so often, which takes `save_s` each time,
    and go on from there after a requeue; 0: never.
    """

    cluster: Cluster
    high: JobTrace
    low: JobTrace | None = None
    node_names: tuple[str, ...] = ()
    memory_mb: int = 0
    depth: int = 0
    saves_every_s: float = 0.0
    save_s: float = 0.0
    costs: ReplayCosts = field(default_factory=ReplayCosts)
    seed: int = 0
    kept: tuple[ReservationEntry, ...] = ()  # times count from the first submission
    scheduler: SchedulerName = "easy"
    tie: Tie = "batch"  # on bare metal
    whole: bool = False  # observe until the end, also when no high-priority job is left
    start_s: float = START_S  # what the simulated clock shows at the beginning
    notes: tuple[str, ...] = ()  # what people must know of the input


@dataclass(frozen=True, slots=True)
class DaemonTerms:
    """What a policy file says besides its policies: how often Slurm is read, and what hosts keep."""

    poll_s: float = 2.0
    keeps: Mapping[str, Resources] = field(default_factory=dict)


class Watcher(Protocol):
    """Follows a replay with instances."""

    def change(self, world: World, change: Change) -> None:
        """Take note of a change that `world` has taken."""

    def attempt(self, tale: JobTale, segments: list[Segment], name: str) -> None:
        """Take note of the stretches in which a low-priority job called `name` computed."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run. Times of `tales` are simulated; `Setting.start_s` is the trace's first."""

    policies: PolicySet | None
    tales: tuple[JobTale, ...]
    ledger: Ledger
    harvest: Harvest
    withdrawn: int
    refusals: dict[tuple[Goal, Code], int]
    capacity: int = 0  # processors
    examples: dict[tuple[Goal, Code], Refusal] = field(default_factory=dict)  # of the refusals
    unfit: int = 0  # low-priority jobs that no instance can carry

    def high_starts(self) -> dict[Hashable, float]:
        """Return when the script of each high-priority job began, by its index in the trace."""
        return {tale.index: tale.start_s for tale in self.tales if tale.high}


def reference(setting: Setting, policies: PolicySet) -> Run:
    """Replay the same high-priority work on the same cluster without any instance."""
    cluster = setting.cluster
    high = setting.high
    length_s = inf if high.bound is None else (high.bound - high.begin) / high.ticks_per_s
    window = Window(setting.start_s, setting.start_s + length_s)
    ledger = Ledger(window, cluster.cpus, policies.instances.flavour.cpus)
    bare = BareReplay(
        setting.high,
        setting.node_names,
        cluster.cpus,
        ledger,
        setting.kept,
        setting.scheduler,
        setting.tie,
        setting.start_s,
    )
    bare.run()
    if high.bound is None:
        window.end_s = max(tale.end_s for tale in bare.tales)
    harvest = ledger.harvest(cluster.processors)
    return Run(None, tuple(bare.tales), ledger, harvest, 0, {}, cluster.processors)


def run(
    setting: Setting,
    policies: PolicySet,
    end_s: float,
    watcher: Watcher | None = None,
    *,
    terms: DaemonTerms | None = None,
    fast_forward: bool = True,
) -> Run:
    """Replay with instances; observe until `end_s`, then let what runs come to its end.

    `watcher` hears of all that instances and their jobs do. Without `fast_forward` the daemon looks
    at everything also where it has nothing to decide; the outcome is the same. Raises BrokenPromiseError.
    """
    replay = _Replay(setting, policies, end_s, terms or DaemonTerms(), fast_forward=fast_forward)
    if watcher is not None:
        replay.watch(watcher)
    return replay.run()


class _Replay:
    def __init__(
        self, setting: Setting, policies: PolicySet, end_s: float, terms: DaemonTerms, *, fast_forward: bool
    ) -> None:
        self.setting = setting
        self.policies = policies
        shape = MetalShape(
            setting.node_names,
            setting.cluster.cpus,
            setting.memory_mb,
            high=policies.priorities.high[0],
            low=policies.priorities.low,
            virtual=policies.instances.features[0],
            scheduler=setting.scheduler,
            tie=setting.tie,
            keeps=terms.keeps,
        )
        costs = setting.costs
        self.sim = TraceCluster(
            shape,
            cluster=policies.cluster,
            boot_s=costs.steps.boot_s,
            seed=setting.seed,
            start_s=setting.start_s,
        )
        if setting.kept:
            self.sim.keep(setting.kept)
        self.sim.checks.shared = policies.victims.extent is Extent.NEEDED
        self.sim.checks.overcommit = policies.placement.cpu_overcommit
        self.sim.saves = (setting.saves_every_s, setting.save_s)
        window = Window(setting.start_s, end_s)
        self.ledger = Ledger(window, setting.cluster.cpus, policies.instances.flavour.cpus)
        self.sim.on_attempt = self.ledger.attempt
        costs.order_failures(self.sim)
        self.daemon = ReplayDaemon(self.sim, policies, costs, terms.poll_s, fast_forward=fast_forward)
        self.daemon.cycle.on_change = self.ledger.change
        self.daemon.cycle.on_step = self.ledger.step
        self._next_low = 0
        self._waiting = 0
        low = setting.low
        numbers = range(0 if low is None else len(low))
        self._unfit = frozenset(i for i in numbers if low is not None and misfit(low, i, policies))
        self._closed = False
        self.sim.jobs.on_start = self._refill
        self._arrivals = Arrivals(self.sim, setting.high)
        self._feed_low()

    def watch(self, watcher: Watcher) -> None:
        """Let `watcher` hear of everything as well."""
        book, follow = self.ledger.attempt, self.ledger.change
        low = self.setting.low

        def attempt(tale: JobTale, segments: list[Segment], kept_s: float, saving: float) -> None:
            if low is not None and not tale.high:
                watcher.attempt(tale, segments, low.name(tale.index))
            book(tale, segments, kept_s, saving)

        def change(world: World, change: Change) -> None:
            watcher.change(world, change)
            follow(world, change)

        self.sim.on_attempt = attempt
        self.daemon.cycle.on_change = change

    # --- feeding -------------------------------------------------------------------------------

    def _feed_low(self) -> None:
        trace, number, now_s = self.setting.low, self._next_low, self.sim.now_s
        while trace is not None and number < len(trace) and not self._closed:
            at_s = self.sim.start_s + (trace.submit[number] - trace.begin) / trace.ticks_per_s
            if self._waiting >= self.setting.depth:
                break
            if at_s > now_s:
                self.sim.at(at_s, self._feed_low)
                break
            if number not in self._unfit:
                run_s = trace.run[number] / trace.ticks_per_s
                self.sim.add_low(number, run_s, trace.processors[number], trace.told(number))
                self._waiting += 1
            number += 1
        self._next_low = number

    def _refill(self, job: SimJob) -> None:
        """Let another job come when a low-priority one has started for the first time."""
        if job.partition in self.sim.shape.low and job.restarts == 0:
            self._waiting -= 1
            self._feed_low()

    # --- running -------------------------------------------------------------------------------

    def run(self) -> Run:
        window = self.ledger.window
        while self.setting.whole or self._arrivals.next_s < inf or self.sim.active_high:
            self._step(_CHUNK_S, window.end_s)
            if self.sim.now_s >= window.end_s:
                break
        self._closed = True
        withdrawn = self.sim.withdraw_waiting()
        limit_s = self.sim.now_s + _LONGEST_DRAIN_S
        while not self._quiet():
            if self.sim.now_s > limit_s:
                self._fail([f"after {_LONGEST_DRAIN_S:.0f} s not everything had come to rest"])
            self._step(60.0, float("inf"))
        self._judge()
        tales = tuple(self.sim.tales.values())
        cycle = self.daemon.cycle
        harvest = self.ledger.harvest(self.setting.cluster.processors)
        capacity = self.setting.cluster.processors
        return Run(
            *(
                self.policies,
                tales,
                self.ledger,
                harvest,
                withdrawn,
                cycle.refusals,
                capacity,
                cycle.examples,
            ),
            unfit=len(self._unfit),
        )

    def _step(self, by_s: float, end_s: float) -> None:
        self.sim.step_to(min(self.sim.now_s + by_s, end_s))
        if self.sim.violations or self.ledger.overbooked:
            self._judge()

    def _quiet(self) -> bool:
        return not self.sim.active() and not self._left()

    def _left(self) -> set[str]:
        """Instances that are not gone, but for the spares that the policy keeps for ever."""
        world = self.daemon.world
        left = {m.name for m in world.managed.values() if m.phase not in _OVER}
        left.update(name for host in self.sim.hosts.values() for name in host.instances)
        few = len(world.ready.idle) <= self.policies.scale.warm
        return left.difference(world.ready.idle) if few else left

    # --- judging -------------------------------------------------------------------------------

    def _judge(self) -> None:
        found = sorted([*self.sim.audit(), *self.ledger.overbooked], key=lambda v: v.at_s)
        if found:
            self._fail([str(violation) for violation in found], found[0].at_s)

    def _fail(self, complaints: list[str], at_s: float = float("inf")) -> None:
        """End the run with the story, until `at_s`, of whom the first complaint is about."""
        lines: list[str] = []
        known = {*self.daemon.policies.instances.names}
        words = complaints[0].replace(",", " ").split()
        jobs = {word for before, word in pairwise(words) if before == "job"}
        for subject in sorted(known.intersection(words) | jobs):
            story = self.daemon.cycle.story(subject, at_s)[-_STORY_LINES:]
            lines += [f"{subject}:", *story]
        raise BrokenPromiseError(complaints, lines)


_OBJECTS = 500_000


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Nearly all that a replay makes is kept to its end: to look again and again whether parts of
    it refer to nothing but each other costs a twentieth of its time. What is frozen already stays so."""
    before, is_ours = gc.get_threshold(), gc.get_freeze_count() == 0
    if is_ours:
        gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if is_ours:
            gc.unfreeze()
