"""The daemon's own cycle against the simulated cluster, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job
from backfill.core.model.plan import AnswerClaim
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.events import SimEvent
from backfill.drivers.simulated.losses import Deed
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.engine.cycle import Cycle
from backfill.engine.cycle_driver import CycleDriver
from backfill.engine.execute.dispatch import attempt
from backfill.engine.looking import Outside, observe_cluster, observe_host, observe_nodes, observe_pool
from backfill.engine.messages import ClusterPicture, HostPicture, NodesPicture, ReadFailed
from backfill.engine.observe import pool_changes
from backfill.engine.timekeeping import Timekeeper
from backfill.engine.watch import Watch
from backfill.ports.errors import DriverError
from backfill.ports.storage import Journal
from backfill.sim.replay.costs import call_of
from backfill.sim.replay.deeds import deed_of

_LONGEST_WAIT_S = 3600.0


class Rehearsal:
    """Plays the daemon: reads, plans and acts at simulated times, and may be killed anywhere.

    With `spare`, whom no step can be decided for is set aside, as by the daemon; else that is an error.
    `costs` says how long each call takes; the call takes effect at the end of that time. With
    `on_step` set, it is asked after every effect whether the daemon shall be killed there.
    """

    def __init__(
        self,
        sim: SimulatedWorld,
        policies: PolicySet,
        journal: Journal,
        costs: StepCosts | None = None,
        poll_s: float = 2.0,
        hooks: bool = True,
        spare: bool = False,
    ) -> None:
        self.sim = sim
        self._spare = spare
        self.policies = policies
        self.journal = journal
        self.costs = costs if costs is not None else StepCosts()
        self.poll_s = poll_s
        self.steps = 0
        self.on_step: Callable[[str], bool] | None = None
        self.alive = False
        self._life = 0
        self._timer: SimEvent | None = None
        self._lanes: dict[frozenset[str], float] = {}  # when the last move between them is over
        if hooks:
            sim.hook(self._allocated, self._ended)
        self.start()

    # --- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon, with what its journal remembers."""
        self._life += 1
        self.alive = True
        self.world = World()
        self.cycle = Cycle(
            self.world, self.policies, self.journal, self._begin, self._answer, spare=self._spare
        )
        self._clock = self.sim.new_clock()
        by_host = dict.fromkeys(self.sim.provider.hosts, self.sim.provider)
        self._outside = Outside(self.sim.slurm, by_host, self._clock, by_host)
        self._timekeeper = Timekeeper(self._clock, self.cycle, self.journal)
        self._driver = CycleDriver(self.cycle, Watch(0.03))
        self.cycle.tick(self.now_s)
        self._timekeeper.recall()
        self.cycle.record("daemon", "cluster", {"event": "start"})
        self._poll(self._life)

    def kill(self) -> None:
        """SIGKILL: calls that are under way still take effect, but nobody hears of it."""
        self.alive = False
        self._life += 1

    @property
    def now_s(self) -> float:
        """The daemon's time, which is that of the simulation unless the machine's clock was set."""
        return self._clock.now()

    def _tick(self) -> None:
        self.cycle.tick(self.now_s)
        self._timekeeper.look()

    def run(self, for_s: float) -> None:
        """Let simulated time pass."""
        self.sim.step_to(self.sim.now_s + for_s)

    def until(self, done: Callable[[], bool], limit_s: float) -> None:
        """Let time pass until `done`; TimeoutError with the world's picture after `limit_s`."""
        end_s = self.sim.now_s + limit_s
        while not done():
            next_s = self.sim.next_s
            if next_s is None or next_s > end_s:
                phases = {m.name: f"{m.phase}: {m.reason}" for m in self.world.managed.values()}
                raise TimeoutError(f"not reached within {limit_s} s; managed nodes: {phases}")
            self.sim.step_to(next_s)

    # --- reading -------------------------------------------------------------------------------

    def _poll(self, life: int) -> None:
        if life != self._life or not self.alive:
            return
        self._read_all()
        self.sim.at(self.sim.now_s + self.poll_s, lambda: self._poll(life))

    def _read_all(self) -> None:
        """Each source is news by itself, and Slurm, the slowest, comes last."""
        self._tick()
        for host in self._outside.providers:
            self._driver.take_picture(HostPicture(observe_host(self._outside, host)), self.now_s)
            self._decide()
        self._read_slurm()
        if self.policies.supply.on:
            self._read_pool()
        self._decide()

    def _read_pool(self) -> None:
        try:
            seen, problem = observe_pool(self._outside, self.sim.pool), ""
        except DriverError as error:
            seen, problem = None, str(error)
        self.cycle.take(pool_changes(self.world, seen, problem))

    def _read_slurm(self) -> None:
        picture: ClusterPicture | ReadFailed
        try:
            picture = ClusterPicture(observe_cluster(self._outside))
        except DriverError as error:
            picture = ReadFailed("slurm", str(error))
        self._driver.take_picture(picture, self.now_s)

    def _read_nodes(self) -> None:
        names = self._driver.watch.due(self.now_s)
        if not names:
            return
        try:
            picture = NodesPicture(names, observe_nodes(self._outside, names))
        except DriverError as error:
            picture = NodesPicture(names, None, str(error))
        self._driver.take_picture(picture, self.now_s)

    def _decide(self) -> None:
        self._driver.decide(self.now_s)
        self._set_timer(self._driver.due_s(self.now_s))

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        life = self._life
        due_s = min(at_s, self.now_s + _LONGEST_WAIT_S) - self._clock.base_s
        self._timer = self.sim.at(due_s, lambda: self._wake(life))

    def _wake(self, life: int, *, poked: bool = False) -> None:
        if life != self._life or not self.alive:
            return
        self._tick()
        if poked:
            self._read_slurm()
        self._read_nodes()
        self._decide()

    # --- acting --------------------------------------------------------------------------------

    def _begin(self, action: act.DriverAction) -> None:
        memory_mb = self.policies.instances.flavour.memory_mb
        life = self._life
        cost_s = self.costs.of(call_of(action, self.world), memory_mb)
        if isinstance(action, act.MigrateInstance):
            turn_s = self._turn_s(frozenset({action.host, action.target}), cost_s)
            begin = partial(self._show_move, action, on=True)
            self.sim.at(self.sim.now_s + turn_s, begin) if turn_s else begin()
            cost_s += turn_s
        deed = deed_of(action, self.world, self.policies, self.sim.now_s)
        self.sim.at(self.sim.now_s + cost_s, lambda: self._perform(action, deed, life, cost_s))
        self._step(f"intent {action.key}")

    def _turn_s(self, lane: frozenset[str], cost_s: float) -> float:
        """Return how long a move waits: between the same two hosts they take turns, as in the driver."""
        now_s = self.sim.now_s
        free_s = max(now_s, self._lanes.get(lane, now_s))
        self._lanes[lane] = free_s + cost_s
        return free_s - now_s

    def _show_move(self, action: act.MigrateInstance, *, on: bool) -> None:
        self.sim.provider.under_way(action.host, action.subject, action.target, on=on)

    def _perform(self, action: act.DriverAction, deed: Deed, life: int, elapsed_s: float) -> None:
        if isinstance(action, act.MigrateInstance):
            self._show_move(action, on=False)
        with self.sim.doing(deed):
            result = attempt(self._outside, action, self._clock.now)
        if life != self._life or not self.alive:
            return
        if self._step(f"effect {action.key}"):
            return
        self._tick()
        self._driver.take_result(replace(result, elapsed_s=elapsed_s), self.now_s)
        self._decide()
        if self.world.doubts:
            self._read_all()

    def _step(self, what: str) -> bool:
        """Count one step; true when the daemon was killed right after it."""
        self.steps += 1
        if self.alive and self.on_step is not None and self.on_step(what):
            self.kill()
            return True
        return False

    # --- hooks ---------------------------------------------------------------------------------

    def _allocated(self, job: Job, nodes: tuple[str, ...]) -> float | None:
        """PrologSlurmctld: with the daemon down, the hook gives up at once and lets the job go."""
        hosts = tuple(h for n in nodes if (h := self.world.host_of_node(n)) is not None)
        lends = self.policies.devices.entries
        ours = tuple(n for n in nodes if n in self.world.managed) if lends else ()
        if not self.alive or not (hosts or ours):
            return 0.0
        # The simulated scheduler is in the middle of its work: decide right after it.
        life = self._life
        claimed = ch.Claimed(job.id, hosts, self.now_s, waiting=True, nodes=ours)
        self.sim.at(self.sim.now_s, lambda: self._feed(life, claimed))
        return None

    def _feed(self, life: int, change: ch.Change) -> None:
        if life != self._life or not self.alive:
            return
        self._tick()
        self.cycle.take([change])
        self._decide()

    def _ended(self, job: Job, nodes: tuple[str, ...]) -> None:
        if not self.alive:
            return
        self._driver.watch.leaves(str(job.raw_id), nodes, self.now_s)
        life = self._life
        self.sim.at(self.sim.now_s, lambda: self._wake(life, poked=True))

    def _answer(self, answer: AnswerClaim) -> None:
        self.sim.release(answer.job_id)
