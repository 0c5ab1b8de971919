"""The books of one replay: where core seconds went, and how every eviction ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.fleet import Instance, InstanceState, Rung
from backfill.core.model.lifecycle import Phase, given_up_for
from backfill.core.model.plan import Action, SetNode
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment, Violation
from backfill.sim.replay.measures import Eviction, Harvest
from backfill.sim.replay.trace_cluster import JobTale

_RUNGS = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}
_STARTS_ANEW = (Rung.REQUEUE, Rung.CANCEL)
_NOT_ASKED = (Phase.BOOTING, Phase.RETURNING)
_BY_ITSELF = "its node"  # Slurm has started it anew without being asked


@dataclass(slots=True)
class Window:
    """The observation: core seconds outside of it do not count. Epoch seconds."""

    start_s: float
    end_s: float

    def part(self, start_s: float, end_s: float) -> float:
        """Return how many seconds of this stretch lie inside."""
        if start_s < self.start_s:
            start_s = self.start_s
        if end_s > self.end_s:
            end_s = self.end_s
        return end_s - start_s if end_s > start_s else 0.0


@dataclass(slots=True)
class Ledger:
    """Fed with every change, every step and every attempt of a job that is over."""

    window: Window
    host_cpus: int
    instance_cpus: int
    high_core_s: float = 0.0
    kept_core_s: float = 0.0
    lost_core_s: float = 0.0
    lost_by: dict[str, float] = field(default_factory=dict)  # core seconds, by why they were lost
    saving_core_s: float = 0.0  # spent by jobs on saving themselves
    on_cpu_s: float = 0.0  # instance seconds
    paused_s: float = 0.0  # instance seconds in memory without CPU
    evictions: list[Eviction] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    overbooked: list[Violation] = field(default_factory=list)
    _running: dict[tuple[str, str], float] = field(default_factory=dict)
    _paused: dict[tuple[str, str], float] = field(default_factory=dict)
    _asked: dict[tuple[str, str], float] = field(default_factory=dict)
    _kinds: dict[tuple[str, str], Rung] = field(default_factory=dict)  # the ladder's, while asked
    _given_up: dict[str, str] = field(default_factory=dict)  # by node: why its work was
    _ended: dict[str, str] = field(default_factory=dict)  # by job: why its latest attempt was

    # --- jobs ----------------------------------------------------------------------------------

    def attempt(self, tale: JobTale, segments: list[Segment], kept_s: float, saving: float = 0.0) -> None:
        """Book an attempt. `kept_s` of its computing is kept; `saving`: share spent on saving."""
        for segment in segments:
            length_s = segment.end_s - segment.start_s
            good_s = min(kept_s, length_s)
            kept_s -= good_s
            turn_s = segment.start_s + good_s
            good, bad = self.window.part(segment.start_s, turn_s) * tale.cpus, 0.0
            if turn_s < segment.end_s:
                bad = self.window.part(turn_s, segment.end_s) * tale.cpus
            if tale.high:
                self.high_core_s += good + bad
            else:
                self.kept_core_s += good * (1.0 - saving)
                self.saving_core_s += good * saving
                self.lost_core_s += bad
                if bad:
                    why = self._ended.get(segment.job, _BY_ITSELF)
                    self.lost_by[why] = self.lost_by.get(why, 0.0) + bad

    def ran(self, tale: JobTale, start_s: float, end_s: float) -> None:
        """Book a high-priority job that ran to its end undisturbed."""
        self.high_core_s += self.window.part(start_s, end_s) * tale.cpus

    # --- instances -----------------------------------------------------------------------------

    def change(self, world: World, change: ch.Change) -> None:
        """Follow the instances; `world` has taken the change."""
        match change:
            case ch.InstanceSeen():
                key = (change.instance.host, change.instance.name)
                self._instance(key, world.instances.get(key), change.seen_s)
            case ch.InstanceStopped() | ch.InstanceGone():
                key = (change.host, change.name)
                self._instance(key, world.instances.get(key), change.seen_s)
            case _:
                pass

    def _instance(self, key: tuple[str, str], instance: Instance | None, at_s: float) -> None:
        if instance is not None and instance.occupies_cpu:
            self._end_pause(key, at_s)
            if key not in self._running:
                self._running[key] = at_s
                self._count(key[0], at_s)
            return
        state = None if instance is None else instance.state
        self._stops(key, at_s, state)
        if state is InstanceState.PAUSED:
            self._paused.setdefault(key, at_s)

    def _count(self, host: str, at_s: float) -> None:
        """Instances may never have more CPUs than their host: what they do would count twice."""
        names = [name for there, name in self._running if there == host]
        if len(names) * self.instance_cpus > self.host_cpus:
            text = (
                f"instances {', '.join(names)} of {self.instance_cpus} CPUs run on {host}, "
                f"which has {self.host_cpus}"
            )
            self.overbooked.append(Violation(at_s, "overbooked", text))

    def _end_pause(self, key: tuple[str, str], at_s: float) -> None:
        since_s = self._paused.pop(key, None)
        if since_s is not None:
            self.paused_s += self.window.part(since_s, at_s)

    def _stops(self, key: tuple[str, str], at_s: float, state: InstanceState | None) -> None:
        self._end_pause(key, at_s)
        since_s = self._running.pop(key, None)
        if since_s is None:
            return
        self.on_cpu_s += self.window.part(since_s, at_s)
        asked_s = self._asked.pop(key, None)
        if asked_s is not None:
            self.evictions.append(Eviction(self._rung(key, state).value, asked_s, at_s))
            self._kinds.pop(key, None)

    def _rung(self, key: tuple[str, str], state: InstanceState | None) -> Rung:
        """By which rung the instance left the host's CPUs."""
        if state is not None:
            if self._kinds.get(key) in _STARTS_ANEW:
                return self._kinds[key]  # it only stands still until its work is thrown away
            return _RUNGS.get(state, Rung.REQUEUE)
        moved = any(name == key[1] and host != key[0] for host, name in self._running)
        return Rung.MIGRATE if moved else Rung.REQUEUE

    # --- steps ---------------------------------------------------------------------------------

    def step(self, at_s: float, step: Action) -> None:
        """Count what is done, and note when a host is asked back."""
        if isinstance(step, SetNode):
            node = step.node
            if node.condemned is not None:
                self._given_up[node.name] = given_up_for(node, node.condemned.cause)
            if node.phase is Phase.EVICTING:
                key = (node.host, node.name)  # also one that is still being made there
                self._asked.setdefault(key, at_s)
                if node.stopping.kind is not None:
                    self._kinds[key] = node.stopping.kind
            elif node.phase in _NOT_ASKED:
                self._asked.pop((node.host, node.name), None)
        else:
            self.steps[type(step).__name__] += 1
            if isinstance(step, act.RequeueJob | act.CancelJob):
                self._ended[step.job_id] = self._given_up.get(step.subject, _BY_ITSELF)

    # --- sums ----------------------------------------------------------------------------------

    def harvest(self, cpus: int) -> Harvest:
        """Everything on a cluster of so many CPUs. Call it when all is over."""
        worked = self.kept_core_s + self.lost_core_s
        on_cpu = self.on_cpu_s * self.instance_cpus
        return Harvest(
            capacity_core_s=cpus * (self.window.end_s - self.window.start_s),
            high_core_s=self.high_core_s,
            goodput_core_s=self.kept_core_s,
            badput_core_s=self.lost_core_s,
            overhead_core_s=max(0.0, on_cpu - worked),
        )


def counts_of(steps: Counter[str]) -> dict[str, int]:
    """Return the steps that people care about, by a name of theirs."""
    names: dict[str, type] = {
        "instances made": act.CreateInstance,
        "pauses": act.PauseInstance,
        "suspends to disk": act.SuspendInstance,
        "restores": act.RestoreInstance,
        "returns": act.ThawInstance,
        "moves": act.MigrateInstance,
        "requeues": act.RequeueJob,
    }
    return {text: steps[kind.__name__] for text, kind in names.items()}
