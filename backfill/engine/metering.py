"""Counts what the daemon does while it does it: from changes, steps and refusals, never from texts.

It decides nothing and is asked by nobody who does. What is only looked up when somebody asks is in
`gauges.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.fleet import Instance, InstanceState, Rung
from backfill.core.model.lifecycle import Cause, EvictionCause, ManagedNode, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.plan import Action, AnswerClaim, Before
from backfill.core.model.refusals import Code, Refusal
from backfill.core.world import World
from backfill.engine.families import Body, Counts, Family, FamilyKind, Spreads
from backfill.engine.work_account import LostRun, WorkAccount

_COUNTER, _HISTOGRAM = FamilyKind.COUNTER, FamilyKind.HISTOGRAM
# Upper ends of buckets, seconds: of what takes milliseconds, of what takes seconds, of calls of any kind.
_PROMPT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0)
_SLOW_S = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 60.0, 120.0, 600.0)
_CALL_S = (0.1, 1.0, 10.0, 60.0, 300.0)
_CYCLE_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

EVICTIONS = Family(
    "backfill_evictions",
    _COUNTER,
    "Instances pushed off their host's CPUs, by the rung and the cause.",
    ("rung", "cause"),
)
EVICTION_S = Family(
    "backfill_eviction_seconds",
    _HISTOGRAM,
    "From the decision to push an instance aside until the hypervisor showed it off the host's CPUs.",
    ("rung",),
)
ROOM_S = Family(
    "backfill_room_answer_seconds",
    _HISTOGRAM,
    "From a hook's call that Slurm gave a host to a job until the answer: free, or not_proven.",
    ("answer",),
)
RETURNS = Family(
    "backfill_returns",
    _COUNTER,
    "Finished returns of instances to work: back, put_off, evicted, removed.",
    ("outcome",),
)
RETURN_S = Family(
    "backfill_return_seconds", _HISTOGRAM, "From the beginning of a return until the node was back at work."
)
JOINS = Family(
    "backfill_joins", _COUNTER, "Finished boots of nodes: ready, evicted, failed, removed.", ("outcome",)
)
JOIN_S = Family(
    "backfill_join_seconds",
    _HISTOGRAM,
    "For nodes that became ready: make (instance), register (slurmd), prove, release, and total.",
    ("step",),
)
CALLS_S = Family(
    "backfill_operation_seconds",
    _HISTOGRAM,
    "Calls to Slurm and hypervisors, by kind, including failed ones.",
    ("kind",),
)
FAILED_CALLS = Family(
    "backfill_operation_failures", _COUNTER, "Calls to Slurm and hypervisors that failed, by kind.", ("kind",)
)
REFUSALS = Family(
    "backfill_refusals", _COUNTER, "Refusals that were new or had a new reason, by code.", ("code",)
)
GUARDS = Family(
    "backfill_guard_trips",
    _COUNTER,
    "How often a guard began to hold something back, by its code or the limit's key.",
    ("guard",),
)
DESTROYED = Family("backfill_destroyed", _COUNTER, "Nodes whose work was given up, by cause.", ("cause",))
FENCE = Family(
    "backfill_fence_verdicts",
    _COUNTER,
    "Stopped copies that were allowed to continue, were stale, or whose destruction was not confirmed.",
    ("verdict",),
)
CYCLE_S = Family("backfill_cycle_seconds", _HISTOGRAM, "Work of one cycle of the daemon's own thread.")
HOOKS = Family("backfill_hooks", _COUNTER, "Calls of Slurm's hooks, by event.", ("event",))

# Refusals that mean: what was read or what was done lately does not let us act as we would.
GUARD_CODES = frozenset(
    {
        Code.LIMIT,
        Code.RAMP,
        Code.NEVER_READ,
        Code.STALE,
        Code.BARRED,
        Code.NOT_BELIEVED,
        Code.MANY_SILENT,
        Code.BROKEN_NETWORK,
        Code.HOST_FAILS,
        Code.IMAGE_FAILS,
        Code.FEW_JOBS,
        Code.FEW_JOBS_TORN,
        Code.NO_INSTANCES,
        Code.BUDGET_DISRUPTIONS,
    }
)
_RUNGS = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}
_STARTS_ANEW = (Rung.REQUEUE, Rung.CANCEL)
# From these an instance is asked off the CPUs; THROTTLED and PARKED are off already.
_OVER = frozenset({Phase.READY, Phase.RETURNING, Phase.FAILED, Phase.GIVEN_UP, Phase.BOOTING})
_ANSWERS = {True: "free", False: "not_proven"}
_RETURNED = {Phase.READY: "back", Phase.PARKED: "put_off", Phase.REMOVING: "removed"}
_JOINED = {Phase.READY: "ready", Phase.EVICTING: "evicted"}


@dataclass(slots=True)
class _Asked:
    """An instance that has to leave a host's CPUs."""

    since_s: float
    host: str
    cause: EvictionCause
    kind: Rung | None


@dataclass(slots=True)
class _Boot:
    """A node on its way to READY."""

    generation: int
    since_s: float
    made_s: float | None = None
    registered_s: float | None = None


def ones(values: Iterable[str]) -> list[tuple[str]]:
    """Return sets of labels of one value each."""
    return [(str(value),) for value in values]


class Meter:
    """Follows one daemon's cycle; for its thread alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._work = WorkAccount(world)
        self._asked: dict[str, _Asked] = {}
        self._boots: dict[str, _Boot] = {}
        every = [(rung.value, cause.value) for rung in Rung for cause in EvictionCause]
        self._evictions = Counts(EVICTIONS, known=every)
        self._eviction_s = Spreads(EVICTION_S, _PROMPT_S, ones(Rung))
        self._room_s = Spreads(ROOM_S, _PROMPT_S, ones(_ANSWERS.values()))
        self._returns = Counts(RETURNS, known=ones(sorted({"evicted", *_RETURNED.values()})))
        self._return_s = Spreads(RETURN_S, _SLOW_S)
        self._joins = Counts(JOINS, known=ones([*_JOINED.values(), "failed", "removed"]))
        self._join_s = Spreads(JOIN_S, _SLOW_S)
        self._call_s = Spreads(CALLS_S, _CALL_S)
        self._failed_calls = Counts(FAILED_CALLS)
        self._refusals = Counts(REFUSALS)
        self._guards = Counts(GUARDS, known=ones(sorted(code.value for code in GUARD_CODES - {Code.LIMIT})))
        self._destroyed = Counts(DESTROYED, known=ones(Cause))
        self._fence = Counts(FENCE, known=ones(("let_go_on", "stale", "not_borne_out")))
        self._cycle_s = Spreads(CYCLE_S, _CYCLE_S)
        self._hooks = Counts(HOOKS)

    @property
    def lost(self) -> list[LostRun]:
        """Runs of jobs that came to nothing and that nobody has taken note of yet."""
        return self._work.lost

    @property
    def harvested(self) -> tuple[float, float]:
        """Core seconds that jobs have worked on instances until now, and those of them that were lost."""
        return self._work.totals

    # --- what happens ----------------------------------------------------------------------------

    def took(self, change: ch.Change, before: ManagedNode | None) -> None:
        """Count a change of the world; `before`: of a change of a node's record, the one until then."""
        take = _TAKES.get(type(change))
        if take is not None:
            take(self, change, before)

    def step(self, step: Action, before: Before) -> None:
        """Note a step that is about to be carried out. `before`: of an answer, the claim until then."""
        if isinstance(step, AnswerClaim) and isinstance(before, HostAllocation):
            took_s = max(0.0, self._world.now_s - before.since_s)
            self._room_s.observe(took_s, _ANSWERS[step.ok])
        elif isinstance(step, act.ThawInstance) and step.held:
            self._fence.add("let_go_on")

    def refused(self, refusal: Refusal) -> None:
        """Note a refusal that is new or says something new."""
        self._refusals.add(refusal.code.value)
        if refusal.code in GUARD_CODES:
            key = next((f.value for f in refusal.facts if f.name == "key"), "")
            self._guards.add(str(key) if refusal.code is Code.LIMIT and key else refusal.code.value)

    def called(self, action: act.DriverAction, elapsed_s: float, problem: str) -> None:
        """Note a call that is over."""
        kind = type(action).__name__
        self._call_s.observe(elapsed_s, kind)
        if problem:
            self._failed_calls.add(kind)

    def hook(self, event: str) -> None:
        """Note a call of a hook."""
        self._hooks.add(event)

    def cycle(self, took_s: float) -> None:
        """Note the work of one cycle, the wait before it left out."""
        self._cycle_s.observe(took_s)

    def told(self) -> list[Body]:
        """Return all of it as plain data."""
        kept = (
            self._evictions,
            self._eviction_s,
            self._room_s,
            self._returns,
            self._return_s,
            self._joins,
            self._join_s,
            self._call_s,
            self._failed_calls,
            self._refusals,
            self._guards,
            self._destroyed,
            self._fence,
            self._cycle_s,
            self._hooks,
        )
        return [*(one.told() for one in kept), *self._work.told()]

    # --- changes ---------------------------------------------------------------------------------

    def _job_seen(self, change: ch.JobSeen, _: object) -> None:
        job = self._world.jobs.get(change.job.id)
        if job is not None:
            self._work.job(job)

    def _job_gone(self, change: ch.JobGone, _: object) -> None:
        if change.id not in self._world.jobs:
            self._work.gone(change)

    def _instance_seen(self, change: ch.InstanceSeen, _: object) -> None:
        self._instance(change.instance.host, change.instance.name, change.seen_s)

    def _instance_moved(self, change: ch.InstanceStopped | ch.InstanceGone, _: object) -> None:
        self._instance(change.host, change.name, change.seen_s)

    def _instance(self, host: str, name: str, seen_s: float) -> None:
        self._work.instances((name,))
        asked = self._asked.get(name)
        if asked is None or asked.host != host:
            return
        there = self._world.instances.get((host, name))
        if there is not None and there.occupies_cpu:
            return
        del self._asked[name]
        rung = self._rung(asked, name, there)
        self._evictions.add(rung.value, asked.cause.value)
        self._eviction_s.observe(max(0.0, seen_s - asked.since_s), rung.value)

    def _rung(self, asked: _Asked, name: str, there: Instance | None) -> Rung:
        """By which rung it has left the CPUs: as its hypervisor shows it, whatever was tried."""
        if there is None:
            moved = any(place.occupies_cpu for place in self._world.places_of(name))
            return Rung.MIGRATE if moved else Rung.REQUEUE
        if asked.kind in _STARTS_ANEW and asked.kind is not None:
            return asked.kind  # it only stands still until its work is thrown away
        return Rung.THROTTLE if there.throttled else _RUNGS.get(there.state, Rung.REQUEUE)

    def _node_managed(self, change: ch.NodeManaged, before: ManagedNode | None) -> None:
        node = change.node
        if before is not None and before.generation != node.generation:
            before = None
        self._follow_eviction(node, before)
        if before is None or before.phase is not node.phase:
            self._follow_boot(node, before)
            if before is not None and before.phase is Phase.RETURNING:
                self._returned(node, before)
            self._work.instances((node.name,))
        if node.condemned is not None and (before is None or before.condemned is None):
            self._condemned(node.condemned.cause)

    def _follow_eviction(self, node: ManagedNode, before: ManagedNode | None) -> None:
        asked = self._asked.get(node.name)
        if asked is not None and node.phase in _OVER:
            del self._asked[node.name]
        elif asked is not None and node.stop is not None:
            asked.kind = node.stop.kind
        elif node.phase is Phase.EVICTING and (before is None or before.phase is not Phase.EVICTING):
            there = self._world.instances.get((node.host, node.name))
            if there is not None and there.occupies_cpu:
                cause = node.stopping.cause or EvictionCause.STOPPED
                self._asked[node.name] = _Asked(node.since_s, node.host, cause, node.stopping.kind)

    def _follow_boot(self, node: ManagedNode, before: ManagedNode | None) -> None:
        if node.phase is Phase.BOOTING:
            self._boots[node.name] = _Boot(node.generation, node.since_s)
            return
        if before is None or before.phase is not Phase.BOOTING:
            return
        boot = self._boots.pop(node.name, None)
        removed = "failed" if node.fail else "removed"
        self._joins.add(_JOINED.get(node.phase, removed))
        if node.phase is Phase.READY and boot is not None and boot.generation == node.generation:
            self._joined(node, boot)

    def _joined(self, node: ManagedNode, boot: _Boot) -> None:
        """Book how long each step took, so far as it was seen."""
        now_s = self._world.now_s
        self._join_s.observe(max(0.0, now_s - boot.since_s), "total")
        ends = (
            ("make", boot.made_s),
            ("register", boot.registered_s),
            ("prove", node.proof.first_s),
            ("release", now_s),
        )
        began_s: float | None = boot.since_s
        for step, end_s in ends:
            if began_s is not None and end_s is not None:
                self._join_s.observe(max(0.0, end_s - began_s), step)
            began_s = end_s

    def _returned(self, node: ManagedNode, before: ManagedNode) -> None:
        outcome = _RETURNED.get(node.phase, "evicted")
        if node.phase is Phase.EVICTING and node.stopping.cause is EvictionCause.PUT_OFF:
            outcome = "put_off"
        self._returns.add(outcome)
        if outcome == "back":
            self._return_s.observe(max(0.0, self._world.now_s - before.since_s))

    def _condemned(self, cause: Cause) -> None:
        self._destroyed.add(cause.value)
        if cause is Cause.STALE:
            self._fence.add("stale")

    def _forgotten(self, change: ch.NodeForgotten, _: object) -> None:
        self._asked.pop(change.name, None)
        self._boots.pop(change.name, None)

    def _unconfirmed(self, change: ch.Unconfirmed, _: object) -> None:
        self._fence.add("not_borne_out")

    def _done(self, change: ch.OperationDone, _: object) -> None:
        if change.problem or not change.key.startswith(act.CreateInstance.__name__):
            return
        boot = self._boots.get(change.key.split(":")[1])
        if boot is not None and boot.made_s is None:
            boot.made_s = change.at_s

    def _node_seen(self, change: ch.NodeSeen, _: object) -> None:
        boot = self._boots.get(change.node.name)
        if boot is None or boot.registered_s is not None:
            return
        node = change.node
        # Slurm tells whole seconds; an older one is of the node's life before.
        if node.responding and node.slurmd_start_s >= int(boot.since_s):
            boot.registered_s = change.seen_s


_TAKES: dict[type, Callable[[Meter, Any, ManagedNode | None], None]] = {
    ch.JobSeen: Meter._job_seen,
    ch.JobGone: Meter._job_gone,
    ch.InstanceSeen: Meter._instance_seen,
    ch.InstanceStopped: Meter._instance_moved,
    ch.InstanceGone: Meter._instance_moved,
    ch.NodeManaged: Meter._node_managed,
    ch.NodeForgotten: Meter._forgotten,
    ch.Unconfirmed: Meter._unconfirmed,
    ch.OperationDone: Meter._done,
    ch.NodeSeen: Meter._node_seen,
}
