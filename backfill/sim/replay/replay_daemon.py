"""The daemon in a replay: the same cycle and plan, fed with changes only when there are any."""

from __future__ import annotations

import math
from functools import partial

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job
from backfill.core.model.plan import AnswerClaim
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.drivers.simulated.events import SimEvent
from backfill.engine.cycle_driver import CycleDriver
from backfill.engine.execute.dispatch import attempt
from backfill.engine.looking import Outside
from backfill.engine.messages import HostPicture, NodesPicture
from backfill.engine.watch import Watch
from backfill.sim.replay.costs import ReplayCosts, Transfers, call_of
from backfill.sim.replay.deeds import deed_of
from backfill.sim.replay.quiescence import Quiescence
from backfill.sim.replay.replay_cycle import ReplayCycle
from backfill.sim.replay.trace_cluster import TraceCluster

# Slurm counts as seen without a gap when it is read at least this often (the world allows 15 s).
_SIGHT_S = 14.0
# After a failed call the daemon reads the host at once, which takes so long (libvirt, a few ms).
_LOOK_S = 0.01


class ReplayDaemon:
    """Reads Slurm every `poll_s` when something changed there, and at once where a hook calls.

    A reading without news changes nothing that a plan depends on but time, and a plan says itself
    when time alone makes a difference: so those readings are left out.
    """

    def __init__(
        self,
        sim: TraceCluster,
        policies: PolicySet,
        costs: ReplayCosts,
        poll_s: float = 2.0,
        *,
        fast_forward: bool = True,
    ) -> None:
        self.sim = sim
        self.policies = policies
        self.costs = costs
        self.poll_s = poll_s
        self.world = World()
        self.cycle = ReplayCycle(self.world, policies, self._begin, self._answer)
        self._driver = CycleDriver(self.cycle, Watch(0.03))
        self._provider = sim.provider
        self._outside = Outside(sim.slurm, dict.fromkeys(sim.provider.hosts, sim.provider), sim.clock)
        self._timer: SimEvent | None = None
        self._start_s = self._sight_s = sim.now_s
        # A daemon that reads more seldom than that has gaps, and knows old things.
        self._sight_every_s = max(poll_s, min(_SIGHT_S, policies.limits.stale_after_s / 2))
        self._memory_mb = policies.instances.flavour.memory_mb
        self._transfers = Transfers(sim, costs.transfers)
        self._poll_due = False
        self._decision_due = False
        # Calls that the present decision begins, by when they take effect.
        self._batches: dict[float, list[act.DriverAction]] = {}
        # An answer later than a hook may wait for would be about a job that has begun.
        fast_forward = fast_forward and costs.steps.hook_s < sim.hook_limit_s
        self._quiescence = Quiescence(self.world, sim, policies) if fast_forward else None
        sim.fast_forward.on_end = self._look_again
        sim.news.on_news = self._stir
        sim.hook(self._allocated, self._ended)
        self._first_look()

    # --- reading -------------------------------------------------------------------------------

    def _first_look(self) -> None:
        self._tick()
        for host in self._provider.hosts:
            seen = self._provider.observe(host)
            # Nobody cuts a host off here: what is known of it is never old.
            self.cycle.take([ch.HostSeen(seen.host, seen.seen_s), ch.SourceSeen(host, math.inf)])
        seen_s = self.sim.now_s
        cluster = self.sim.slurm.observe()
        self.cycle.take(ch.NodeSeen(node, seen_s) for node in cluster.nodes.values())
        self.cycle.take(self.sim.take_news(self.world))
        self.cycle.take([ch.SourceSeen("slurm", seen_s)])
        self._decide_soon()

    def _stir(self) -> None:
        """Slurm changed: the next regular reading will see it, the latest one has not."""
        if self._poll_due or self.sim.fast_forward.on:
            return
        self._poll_due = True
        past = math.floor((self.sim.now_s - self._start_s) / self.poll_s)
        latest_s = self._start_s + past * self.poll_s
        next_s = latest_s + self.poll_s
        if self._sight_s < min(latest_s, next_s - self._sight_every_s):
            self._in_sight(latest_s)
        self.sim.at(next_s, self._poll)

    def _poll(self) -> None:
        self._poll_due = False
        if self.sim.news.any and not self.sim.fast_forward.on:
            self._tick()
            self._read()
            self._decide_soon()

    def _read_hosts(self) -> None:
        """After a call that failed: see where its instance is."""
        self._tick()
        for host in sorted({host for doubt in self.world.doubts.values() for host in doubt.hosts}):
            self._driver.take_picture(HostPicture(self._provider.observe(host)), self.sim.now_s)
        self._decide_soon()

    def _look_again(self) -> None:
        """See what has become of everything: the fast-forward is over.

        Claims of jobs that ended meanwhile would have ended with them, and forbid nothing now.
        """
        self._tick()
        self._read()
        now_s, tales = self.sim.now_s, self.sim.tales
        over = [id_ for id_ in self.world.claims if 0.0 <= tales[id_].end_s < now_s]
        self.cycle.take(ch.ClaimEnded(id_, now_s) for id_ in over)

    def _read(self) -> None:
        """All of Slurm: what changed is news."""
        self.cycle.take(self.sim.take_news(self.world))
        self.cycle.take([ch.SourceSeen("slurm", self.sim.now_s)])
        self._sight_s = self.sim.now_s

    def _tick(self) -> None:
        """Let it be now; readings without news, left out until now, have kept us in the picture.

        None of them lies between news and the reading that will tell it: what Slurm has just
        allocated would look as if it had been let go.
        """
        now_s, every_s = self.sim.now_s, self._sight_every_s
        if not self._poll_due and now_s - self._sight_s > every_s:
            self._in_sight(self._sight_s + (now_s - self._sight_s) // every_s * every_s)
        self.world.apply(ch.Tick(now_s))

    def _in_sight(self, until_s: float) -> None:
        """Note readings without news, made again and again, the last of them then."""
        first_s = min(self._sight_s + self._sight_every_s, until_s)
        self._sight_s = until_s
        self.world.apply(ch.SourceSeen("slurm", until_s, first_s))

    def _read_nodes(self) -> None:
        now_s = self.sim.now_s
        names = self._driver.watch.due(now_s)
        if names:
            picture = NodesPicture(names, self.sim.slurm.observe_nodes(names))
            self._driver.take_picture(picture, now_s)

    # --- deciding ------------------------------------------------------------------------------

    def _decide_soon(self) -> None:
        """Decide once about all that happens at this instant."""
        if not self._decision_due:
            self._decision_due = True
            self.sim.at(self.sim.now_s, self._decide)

    def _decide(self) -> None:
        self._decision_due = False
        self._batches.clear()
        plan = self._driver.decide(self.sim.now_s)
        due_s = self._driver.due_s(self.sim.now_s)
        self._set_timer(due_s)
        if due_s == math.inf and self._quiescence is not None and self._quiescence.possible(plan):
            self.sim.fast_forward.begin(self.costs.steps.hook_s)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at_s == math.inf else self.sim.at(at_s, self._wake)

    def _wake(self) -> None:
        self._tick()
        self._read_nodes()
        self._decide_soon()

    # --- acting --------------------------------------------------------------------------------

    def _begin(self, action: act.DriverAction) -> None:
        fixed_s, transfer_s = self.costs.of(call_of(action, self.world), self._memory_mb)
        at_s = self.sim.now_s + fixed_s
        if transfer_s > 0.0:
            self._batches.pop(at_s, None)  # calls keep their order
            perform = partial(self._perform, [action])
            self.sim.at(at_s, partial(self._transfers.begin, transfer_s, perform))
        elif at_s in self._batches:
            self._batches[at_s].append(action)
        else:
            batch = self._batches[at_s] = [action]
            self.sim.at(at_s, partial(self._perform, batch))

    def _perform(self, batch: list[act.DriverAction]) -> None:
        """Let calls that were begun together take effect together, one after the other."""
        now_s = self.sim.now_s
        self._tick()
        for action in batch:
            deed = deed_of(action, self.world, self.policies, now_s)
            with self.sim.doing(deed):
                result = attempt(self._outside, action, self.sim.clock.now)
            if self._driver.take_result(result, now_s):
                self.sim.at(now_s + _LOOK_S, self._read_hosts)
            self._decide_soon()

    # --- hooks ---------------------------------------------------------------------------------

    def _allocated(self, job: Job, nodes: tuple[str, ...]) -> float | None:
        """Let the hook reach us after a moment; then Slurm waits until the room is free."""
        if self.sim.fast_forward.on:
            return self.costs.steps.hook_s
        hosts = tuple(h for n in nodes if (h := self.world.host_of_node(n)) is not None)
        if not hosts:
            return 0.0
        self.sim.at(self.sim.now_s + self.costs.steps.hook_s, partial(self._claim, job.id, hosts))
        return None

    def _claim(self, job_id: str, hosts: tuple[str, ...]) -> None:
        self._tick()
        self._driver.watch.comes(node for h in hosts if (node := self.world.hosts[h].node))
        self.cycle.take([ch.Claimed(job_id, hosts, self.sim.now_s, waiting=True)])
        self._decide_soon()

    def _ended(self, job: Job, nodes: tuple[str, ...]) -> None:
        """Read Slurm at once: that is the hook at the end of a job."""
        if self.sim.fast_forward.on:
            return
        self._driver.watch.leaves(str(job.raw_id), nodes, self.sim.now_s)
        self._tick()
        self._read()
        self._decide_soon()

    def _answer(self, answer: AnswerClaim) -> None:
        self._batches.clear()
        self.sim.release(answer.job_id)
