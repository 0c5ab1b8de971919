"""A plan in the making: collects actions, and knows which are in flight or have failed.

What each step may ask is here as well: whose turn it is on a host, what the budgets leave, whose
memory is written to disk, and the words that owners of jobs read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from functools import cached_property, wraps
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from backfill.core.model.actions import DriverAction, Head, SuspendInstance, TellJob
from backfill.core.model.cluster import ENDED, OUR_REASON, JobState
from backfill.core.model.fleet import STILL, Fleet, Instance, InstanceState, Rung
from backfill.core.model.lifecycle import ABSENT, ON_CPU, HeldJob, ManagedNode, Phase
from backfill.core.model.operations import Operation
from backfill.core.model.plan import Action, AnswerClaim, Before, ForgetNode, Plan, SetNode
from backfill.core.model.refusals import (
    Aside,
    Code,
    Goal,
    Reason,
    Refusal,
    Words,
    because,
    call_failed,
    refusal,
)
from backfill.core.picture import Picture, barred, stale
from backfill.core.policies.budgets import Of
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet
from backfill.core.queue import Entity, Kind, Result, Topic

if TYPE_CHECKING:
    from backfill.core.world import World

# So often one entity may act in one plan; more often means that its steps undo one another.
MOST_STEPS = 100

_AGAIN_S = 1.0


class Progress(Enum):
    """How far a wanted action is."""

    BEGUN = auto()  # it is part of this plan
    RUNNING = auto()  # a driver works on it
    WAITING = auto()  # it failed and will be tried again later
    REFUSED = auto()  # it may not be done now
    FINAL = auto()  # it failed, and trying again cannot help


Found = TypeVar("Found")


def once_a_look(ask: Callable[[PlanBuilder], Found]) -> Callable[[PlanBuilder], Found]:
    """Have it reckoned once in a look, whoever asks: until that is over the world stays as it is."""

    @wraps(ask)
    def asked(builder: PlanBuilder) -> Found:
        if ask not in builder.asked:
            builder.asked[ask] = ask(builder)
        found: Found = builder.asked[ask]
        return found

    return asked


class PlanBuilder:
    """Collects the plan. Each step takes effect in the world at once; the planner may take all of it back."""

    def __init__(self, world: World, policies: PolicySet) -> None:
        self.world: Picture = world  # for steps: to be read
        self._world = world
        self.policies = policies
        self.now_s = world.now_s  # epoch seconds
        self.barred = barred(world)
        self.blind = stale(world, "slurm", policies.limits) or self.barred
        slurm = world.sources.get("slurm")
        # What Slurm does not show means nothing as long as Slurm has shown nothing at all.
        self.unread = slurm is None or slurm.seen_s == 0.0
        self._actions: list[Action] = []
        self._before: list[Before] = []  # of each action that has been tried on the world
        self.accused: set[str] = set()  # nodes against whose work something was found
        self._keys: set[str] = set()  # of the calls of this step
        self._changed: set[str] = set()  # nodes whose records this step changes
        self._result = Result()
        self.asked: dict[Callable[..., Any], Any] = {}  # what `once_a_look` has found in this one
        self._said: dict[tuple[str, Goal, str], Refusal] = {}  # by steps that began calls

    # --- one look at a time --------------------------------------------------------------------

    def look_at(
        self, looks: Mapping[Kind, Callable[..., None]], entity: Entity, settled: bool
    ) -> tuple[Result, bool]:
        """Look at an entity as its kind wants it, and try the actions on the world.

        Returns what came of it, and whether it acted. The world stays as it is until the look is
        over. Not `settled`: it has acted so often that its steps undo one another.
        """
        before = len(self._actions)
        self._result = Result()
        self.asked.clear()
        if not settled:
            self._put_off(entity)
        elif entity.name:
            looks[entity.kind](self, entity.name)
        else:
            looks[entity.kind](self)
        acted = self._actions[before:]
        if acted:
            if any(isinstance(action, Head) for action in acted):
                self._said.update(self._result.refusals)  # once its calls are under way it says less
            self.settle()
        return self._result, bool(acted)

    def try_to_look_at(
        self, looks: Mapping[Kind, Callable[..., None]], entity: Entity, settled: bool
    ) -> tuple[Result, bool] | Exception:
        """Look at an entity; where its step raises take back what it has begun, and return the error."""
        begun, changes = len(self._actions), self.world.undo.changes
        try:
            return self.look_at(looks, entity, settled)
        except MemoryError:
            raise  # that is nobody's step
        except Exception as error:  # noqa: BLE001 - a defect that one entity meets must not end all others
            self.world.undo.take_back(changes)
            del self._actions[begun:], self._before[begun:]
            self._keys.clear()
            self._changed.clear()
            return error

    def _put_off(self, entity: Entity) -> None:
        """Leave to the next plan what its steps would do next."""
        self.refuse(entity.name or "cluster", Goal.ANY_STEP, because(Code.UNSETTLED, count=MOST_STEPS))
        self.wake_at(self.now_s + _AGAIN_S)

    def settle(self) -> None:
        """Try on the world what this step has decided so far: from here on it looks like that."""
        for action in self._actions[len(self._before) :]:
            self._before.append(self._known(action))
            self._world.apply(action.effect(self.now_s))
        self._keys.clear()
        self._changed.clear()

    def _known(self, action: Action) -> Before:
        match action:
            case SetNode(node=node):
                return self.world.managed.get(node.name)
            case ForgetNode(name=name):
                return self.world.managed.get(name)
            case AnswerClaim(job_id=job_id):
                return self.world.claims.get(job_id)
            case _:
                return None

    # --- collecting ----------------------------------------------------------------------------

    def do(self, action: DriverAction) -> Progress:
        """Want `action`; it joins the plan unless it is in flight, backing off or forbidden."""
        key = action.key
        operation = self.world.operations.get(key)
        if operation is not None:
            if operation.running:
                return Progress.RUNNING
            if operation.final:
                return Progress.FINAL
            if self.now_s < operation.not_before_s:
                self.wake_at(operation.not_before_s)
                return Progress.WAITING
        return self._begin(action, key)

    def _begin(self, action: DriverAction, key: str) -> Progress:
        """Let it join the plan unless it is in it already, or forbidden."""
        if key in self._keys:
            return Progress.RUNNING
        if self.barred and not action.safe_unwritten:
            self.refuse("cluster", Goal.ANY_CHANGE, self.barred)
            return Progress.REFUSED
        if self.blind and not action.safe_when_blind:
            self.refuse("cluster", Goal.ANY_CHANGE, self.blind)
            return Progress.REFUSED
        self._keys.add(key)
        self._actions.append(action)
        return Progress.BEGUN

    def insist(self, action: DriverAction, goal: Goal, about: str = "") -> Progress:
        """Want `action` until it is done: one refused for good, too, is tried again, ever less often.

        For what nothing else takes the place of. Meanwhile it is said why it is not done.
        """
        operation = self.operation(action)
        if operation is None or operation.running:
            return self.do(action)
        progress = Progress.FINAL if operation.final else Progress.WAITING
        if self.now_s >= operation.not_before_s:
            progress = self._begin(action, action.key)
        else:
            self.wake_at(operation.not_before_s)
        self.refuse(action.subject, goal, call_failed(operation.problem), about)
        return progress

    def under_way(self, kind: str, but: str) -> set[str]:
        """Nodes, other than `but`, with an action of this kind in flight, where these are counted."""
        return {key.split(":")[1] for key in self.world.calls.under_way(kind)} - {but}

    def operation(self, action: DriverAction) -> Operation | None:
        """Return what is known of an action that was begun before and has not succeeded yet."""
        return self.world.operations.get(action.key)

    def become(
        self, node: ManagedNode, phase: Phase, reason: str, story: str = "", /, **fields: object
    ) -> None:
        """Record the next phase of `node`; its clock starts over unless the phase is the same.

        `story`: what its story tells of this step, where that is not the reason that it keeps.
        """
        if phase is Phase.REMOVING:
            raise AssertionError(f"{node.name} is removed past core/reconcile/condemn.py: {reason}")
        self._become(node, phase, reason, story, **fields)

    def remove(self, node: ManagedNode, reason: str, **fields: object) -> None:
        """Let the removal of `node` begin. For core/reconcile/condemn.py alone, which knows what is lost."""
        self._become(node, Phase.REMOVING, reason, unconfirmed=None, **fields)

    def _become(
        self, node: ManagedNode, phase: Phase, reason: str, story: str = "", /, **fields: object
    ) -> None:
        if self.barred and phase not in (node.phase, Phase.EVICTING):
            self.refuse(node.name, Goal.PHASE, self.barred, about=phase.value)
            return
        if phase is not node.phase:
            fields.setdefault("since_s", self.now_s)
            fields.setdefault("suspicion", None)
            if phase not in ABSENT:
                fields["condemned"] = None
        known = replace(node, phase=phase, reason=reason, **fields)  # type: ignore[arg-type]
        self._set(known, story or reason)

    def note(self, node: ManagedNode, reason: str, **fields: object) -> None:
        """Change fields of the record without a new phase."""
        self._set(replace(node, **fields), reason)  # type: ignore[arg-type]  # its own fields

    def _set(self, node: ManagedNode, reason: str) -> None:
        if node.name in self._changed:
            return  # one change of a record in each step, which is taken once more after it
        self._changed.add(node.name)
        self.add(SetNode(node, reason))

    def add(self, action: Action) -> None:
        """Add a step of our own."""
        self._actions.append(action)

    def forget(self, node: ManagedNode, reason: str) -> None:
        """Drop the record of a node of which nothing is left."""
        self.add(ForgetNode(node.name, reason, node.generation))

    def refuse(self, subject: str, wanted: Goal, why: Reason, about: str = "") -> None:
        """Say that something wanted is not done; once per subject and thing."""
        refused = refusal(subject, wanted, why, about)
        self._result.refusals[refused.key] = refused

    def refuse_all(self, refusals: Iterable[Refusal]) -> None:
        """Say the same of many, as it was found before."""
        self._result.refusals.update((refused.key, refused) for refused in refusals)

    def watch(self, *nodes: str) -> None:
        """Look at these Slurm nodes again at once: their next change is awaited."""
        self._result.watch.update(nodes)

    def wake_at(self, at_s: float) -> None:
        """Look at this again at this time at the latest."""
        if self.now_s < at_s < self._result.wake_s:
            self._result.wake_s = at_s

    def awaits(self, topic: Topic) -> None:
        """Look at this again when that happens, which concerns others as well."""
        self._result.topics.add(topic)

    def finish(self, results: Iterable[Result], wake_s: float) -> Plan:
        """Return the plan, with all that was found out and still holds."""
        refusals = dict(self._said)
        watch: set[str] = set()
        self._result = Result(refusals)
        if self.barred:  # it is said also where nothing is wanted now
            self.refuse("cluster", Goal.ANY_CHANGE, self.barred)
        for result in results:
            refusals.update(result.refusals)
            watch |= result.watch
        for name in sorted(self.world.odd):
            subject, said = "cluster" if name == "slurm" else name, Words(self.world.sources[name].problem)
            self.refuse(subject, Goal.BELIEF, because(Code.NOT_BELIEVED, said=said))
        wake_at_s = wake_s if wake_s < inf else None
        actions, before = tuple(self._actions), tuple(self._before)
        return Plan(actions, tuple(refusals.values()), frozenset(watch), wake_at_s, before)

    def overdue(self, since_s: float, within_s: float) -> bool:
        """Return True if what began then takes longer than that; look again when it does.

        It has all of that time from when we see Slurm: nobody could act before.
        """
        began_s = self.now_s if self.unread else max(since_s, self.world.sighted_since_s)
        self.wake_at(began_s + within_s)
        return self.now_s >= began_s + within_s

    def vanished(self, name: str) -> tuple[HeldJob, ...]:
        """Return jobs that Slurm has ceased to show on a node, as long as they may be there all the same."""
        lost = self.world.vanished_on(name)
        over_s = self.world.vanished_s(name) + self.policies.limits.missing_s
        if not lost or self.now_s >= over_s:
            return ()
        self.wake_at(over_s)
        return lost

    def surely_gone(self, job_id: str) -> bool:
        """Return True if Slurm has not shown a job for so long that it is over; look again when it is.

        One reading without it says nothing. Where Slurm had shown its end, nothing is left to wait for.
        """
        if job_id in self.world.jobs or self.unread:
            return False
        over_s = self.world.missing_since_s(job_id) + self.policies.limits.missing_s
        self.wake_at(over_s)
        return self.now_s >= over_s

    def instance(self, node: ManagedNode) -> Instance | None:
        """Return the node's instance on the host where it should be."""
        found = self.world.instances.get((node.host, node.name))
        if found is not None and found.tag.generation != node.generation:
            return None
        return found

    def taken(self, host: str) -> bool:
        """Return True if a job, a person or its maintenance takes the host as a whole."""
        return self.world.taken(host) or self.left(host)

    def taken_from(self, node: ManagedNode) -> bool:
        """Return the same of the node's host, unless it is within the allocation of its own job."""
        return not (node.inside and self.world.inside(node)) and self.taken(node.host)

    def left(self, host: str) -> bool:
        """Return True if the host is left for its maintenance by now."""
        if (due_s := maintenance_s(self.world, host)) is None:
            return False
        self.wake_at(clear_s := self.policies.gaps.clear_at_s(due_s))
        return self.now_s >= clear_s

    @cached_property
    def all_asked(self) -> bool:
        """Tell whether every host of the policy file was read, or could not be: no step changes that."""
        sources = (self.world.sources.get(host) for host in self.policies.hosts)
        return all(known is not None and (known.seen_s or known.failed_s) for known in sources)

    def budget_full(self, more: int = 1) -> Reason | None:
        """Return why a budget does not let so many more instances work now, if it does not.

        Those that move will work where they arrive.
        """
        if not self.policies.budgets.windows:
            return None
        self.wake_at(budgets_change_s(self.world, self.policies))
        self.awaits(Topic.ON_CPU)
        most = most_instances(self.world, self.policies)
        moving = self.world.fleet.count_in(Phase.MOVING)
        if most is None or on_cpu(self.world) + moving + more <= most:
            return None
        return because(Code.BUDGET, most=most)

    def rule(self, node: ManagedNode) -> RungRule:
        """Return the present rung of a node: one that would start its jobs anew spares the protected."""
        return present_rung(self.world, self.policies, node)

    def stopped(self, node: ManagedNode) -> bool:
        """Return True if the node's instance stands still with its work kept."""
        instance = self.instance(node)
        return instance is not None and instance.state in STILL


def members(builder: PlanBuilder, fleet: Fleet) -> list[ManagedNode]:
    """Return records of the members of an order, as far as there are any."""
    known = (builder.world.managed.get(name) for name in fleet.members)
    return [node for node in known if node is not None and node.fleet == fleet.id]


NOT_OURS = "its node is back; it stays suspended, because somebody else had suspended it before"


def went_on(pause_s: float) -> str:
    """Of a job that was suspended meanwhile."""
    return (
        f"went on after a pause of {pause_s:.0f} s; its time limit leaves that out, "
        "Slurm's fair-share counts it"
    )


def tell(builder: PlanBuilder, node: ManagedNode, jobs: Iterable[str], text: str) -> None:
    """Leave a sentence for the owners of these jobs. Best effort: nothing waits for it."""
    notice = builder.policies.notice
    if not notice.admin_comment:
        return
    said = f"{OUR_REASON} {text}"
    for job_id in jobs:
        job = builder.world.jobs.get(job_id)
        aloud = notice.terminal and job is not None and job.interactive
        why = "its owner may ask"
        builder.do(
            TellJob(
                subject=node.name,
                generation=node.generation,
                reason=why,
                job_id=job_id,
                text=said,
                aloud=aloud,
            )
        )


def tell_requeued(builder: PlanBuilder, node: ManagedNode) -> None:
    """Correct what was said of jobs that Slurm has put back into the queue while they stood still.

    Of one that ended nothing can be said any more: slurmctld updates no job that is over.
    """
    for held in node.held:
        job = builder.world.jobs.get(held.id)
        if job is None or job.restarts == held.restarts or job.state in ENDED:
            continue
        text = "Slurm put it back into the queue while its node stood still, so that it starts over"
        if job.state is JobState.PENDING and job.reason.startswith("JobHeld"):
            text += f", and holds it ({job.reason}): an admin has to release it"
        tell(builder, node, (job.id,), text)


def maintenance_s(world: Picture, host: str) -> float | None:
    """Return when the host's next maintenance begins or began; None: none is known."""
    known = world.hosts.get(host)
    node = world.nodes.get(known.node) if known is not None and known.node else None
    return node.maintenance_s or None if node is not None else None


def ladder_of(policies: PolicySet, node: ManagedNode) -> Ladder:
    """Return the ladder by which a node gives its host back: its jobs' workload's, or that of all."""
    return policies.ladder_of(node.stopping.workload)


def present_rung(world: Picture, policies: PolicySet, node: ManagedNode) -> RungRule:
    """Return the present rung of a node: one that would start its jobs anew spares the protected."""
    stop = node.stopping
    rule = policies.ladder_of(stop.workload).present(stop.rung, stop.kind)
    if rule.rung is not Rung.REQUEUE:
        return rule
    jobs = [j for j in world.jobs_on(node.name) if j.active]
    kept = policies.victims.keeps([j.restarts for j in jobs])
    # Who can wait without end is not lost by the ladder of a neighbour that cannot.
    patient = stop.workload and any(policies.workloads.waits(j, stop.workload) for j in jobs)
    if kept or patient or any(not j.requeue for j in jobs):
        return RungRule(Rung.SUSPEND, within_s=rule.within_s)
    return rule


# --- budgets -------------------------------------------------------------------------------------


def most_instances(world: Picture, policies: PolicySet) -> int | None:
    """Return how many instances may be at work now by the budgets; None: they do not say."""
    if not policies.budgets.windows:
        return None
    clock_s = world.clock_s
    return policies.budgets.ceiling(Of.INSTANCES, _whole(policies), clock_s)


def budgets_change_s(world: Picture, policies: PolicySet) -> float:
    """Return when a budget begins or ceases to hold next, in our time; 0: never."""
    at_s = policies.budgets.changes_s(world.clock_s)
    return 0.0 if at_s is None else at_s + world.ahead_s


def budget_lifts_s(world: Picture, policies: PolicySet) -> float | None:
    """Return when the budgets allow more instances at work than now, in our time; None: not known."""
    at_s = policies.budgets.lifts_s(Of.INSTANCES, _whole(policies), world.clock_s)
    return None if at_s is None else at_s + world.ahead_s


def _whole(policies: PolicySet) -> int:
    return min(policies.limits.max_instances, len(policies.instances.names))


def on_cpu(world: Picture) -> int:
    """Return how many instances are at work, or about to be."""
    return world.fleet.count_in(*ON_CPU)


def removals(world: Picture, host: str, *phases: Phase) -> int:
    """Return how many that go, in these phases, hold up the next one on a host.

    What waits for a host that does not answer, or for a job, may do so for days: it is in the way only
    of others on such hosts, which would all go together when these answer again.
    """
    going = [world.managed[name] for name in world.fleet.in_phase(*phases)]
    if not answers(world, host):
        return len(going)
    waits = (m.phase is Phase.DRAINING and world.job_index.any_on(m.name) for m in going)
    return sum(1 for m, waiting in zip(going, waits, strict=True) if not waiting and answers(world, m.host))


def answers(world: Picture, host: str) -> bool:
    """Return True if the host was read, and could be read when that was last tried."""
    known = world.hosts.get(host)
    return known is not None and known.reachable


# --- memory to disk, in turns ---------------------------------------------------------------------

_KIND = SuspendInstance.__name__


def kept_in_memory(instance: Instance | None) -> Reason | None:
    """Return why an instance that stands still can neither be saved nor moved, if it cannot.

    To let go of devices its guest would have to run, on a host that others were given.
    """
    if instance is None or instance.state is not InstanceState.PAUSED or not instance.plugged:
        return None
    return because(Code.HOLDS_DEVICES, job=instance.devices_of)


def suspend(builder: PlanBuilder, node: ManagedNode, reason: str, *, insist: bool = False) -> Progress:
    """Write the instance's memory to disk when it is its turn; REFUSED: it is not yet.

    `insist`: what the hypervisor refused for good is tried again now and then.
    """
    kept = kept_in_memory(builder.instance(node))
    if kept:
        builder.refuse(node.name, Goal.SUSPEND, kept)
        return Progress.FINAL
    world, queue = builder.world, builder.policies.disk_queue
    action = _to_disk(builder, node, reason)
    if world.running(action.key):
        return Progress.RUNNING
    writing = {name: _used_mb(builder, name) for name in builder.under_way(_KIND, but=node.name)}
    here_mb = sum(mb for name, mb in writing.items() if _is_on(builder, name, node.host))
    refusal = queue.refusal(_used_mb(builder, node.name), here_mb, sum(writing.values()))
    if refusal:
        builder.awaits(Topic.DISK)
        others = Aside(tuple(sorted(writing)))
        builder.refuse(node.name, Goal.SUSPEND, refusal.plus(others=others))
        return Progress.REFUSED
    if insist:
        return builder.insist(action, Goal.SUSPEND)
    progress, operation = builder.do(action), builder.operation(action)
    if progress in (Progress.WAITING, Progress.FINAL) and operation is not None:
        builder.refuse(node.name, Goal.SUSPEND, call_failed(operation.problem))
    return progress


def failed_suspends(builder: PlanBuilder, node: ManagedNode) -> int:
    """Return how often in a row the instance's memory could not be written."""
    operation = builder.operation(_to_disk(builder, node, ""))
    return 0 if operation is None else operation.attempts


def _to_disk(builder: PlanBuilder, node: ManagedNode, reason: str) -> SuspendInstance:
    return SuspendInstance(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        host=node.host,
        expected_s=_expected_s(builder, node),
    )


def _is_on(builder: PlanBuilder, name: str, host: str) -> bool:
    node = builder.world.managed.get(name)
    return node is not None and node.host == host


def _used_mb(builder: PlanBuilder, name: str) -> int:
    """Return how much of its memory there is to write, as far as the hypervisor tells."""
    node = builder.world.managed.get(name)
    instance = None if node is None else builder.instance(node)
    if instance is None:
        return 0
    return min(instance.rss_mb or instance.resources.memory_mb, instance.resources.memory_mb)


def _expected_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """By what this host did before; 0 when it has not been learned."""
    rate = builder.world.rates.get(node.host)
    return (rate.predict_s(_used_mb(builder, node.name)) or 0.0) if rate is not None else 0.0
