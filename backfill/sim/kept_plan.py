"""The daemon's own plan, without taking again the steps that must lead to nothing again.

Claims, steps, orphans and scaling are the daemon's code. What is left out is what that code
would find out a second time; `Minutes` compares with a plan from scratch now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf

from backfill.core import changes as ch
from backfill.core import planner, scaling
from backfill.core.actions import DriverAction
from backfill.core.draft import Draft, Progress
from backfill.core.fleet import Instance
from backfill.core.guards import may_create
from backfill.core.ledger import Operation
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.plan import Action, Plan
from backfill.core.policies.demand import Need
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.sim.memo import Memo, Refusals

_HANDLERS: dict[type, Callable[[World, ch.Change], None]]
_HANDLERS = World.__dict__["_apply"].dispatcher.registry


class KeepingWorld(World):
    """A world that tells its memo of every change."""

    def __init__(self) -> None:
        super().__init__()
        self.memo = Memo()

    def apply(self, change: ch.Change) -> None:
        """Take one change into the picture."""
        self.memo.touched.by(self, change)
        _HANDLERS[type(change)](self, change)

    def claims_on(self, host: str) -> Iterable[str]:
        """Ids of the jobs that claim a host."""
        return self._claims.on(host)

    def takers(self, host: str) -> tuple[str, ...]:
        """Ids of the jobs that have, or were just given, the host's own node."""
        found = self.memo.takers.get(host)
        if found is None:
            found = self.memo.takers[host] = super().takers(host)
        return found


class TracingDraft(Draft):
    """Notices whether a step led to anything."""

    def __init__(self, world: World, policies: PolicySet) -> None:
        super().__init__(world, policies)
        self.acted = False
        self.woken_s = inf
        self.said: Refusals = {}

    def begin_step(self) -> None:
        """From here on it is about another step."""
        self.acted, self.woken_s, self.said = False, inf, {}

    def repeat(self, refusals: Refusals) -> None:
        """Refuse again what was refused before."""
        self._refusals.update(refusals)

    def do(self, action: DriverAction) -> Progress:
        """Want an action: even one under way is more than nothing."""
        self.acted = True
        return super().do(action)

    def operation(self, action: DriverAction) -> Operation | None:
        """Look at an action that was begun before."""
        self.acted = True
        return super().operation(action)

    def become(self, node: ManagedNode, phase: Phase, reason: str, **fields: object) -> None:
        """Record the next phase."""
        self.acted = True
        super().become(node, phase, reason, **fields)

    def note(self, node: ManagedNode, reason: str, **fields: object) -> None:
        """Change fields of the record."""
        self.acted = True
        super().note(node, reason, **fields)

    def add(self, action: Action) -> None:
        """Add a step of our own."""
        self.acted = True
        super().add(action)

    def forget(self, node: ManagedNode, reason: str) -> None:
        """Drop the record."""
        self.acted = True
        super().forget(node, reason)

    def watch(self, *nodes: str) -> None:
        """Await a change: the next plan has to look for it."""
        self.acted = True
        super().watch(*nodes)

    def refuse(self, subject: str, what: str, reason: str) -> None:
        """Say that something wanted is not done."""
        super().refuse(subject, what, reason)
        self.said[subject, what] = self._refusals[subject, what]

    def wake_at(self, at_s: float) -> None:
        """Plan again at this time at the latest."""
        if self.now_s < at_s < self.woken_s:
            self.woken_s = at_s
        super().wake_at(at_s)


def kept_plan(world: KeepingWorld, policies: PolicySet) -> Plan:
    """Return the plan that `planner.plan` would return, its refusals perhaps in another order."""
    if not world.memo.begin(world, policies):
        return planner.plan(world, policies)
    world.memo.look_for_rooms(world)
    draft = TracingDraft(world, policies)
    _claims(draft, world)
    _steps(draft, world)
    _orphans(draft, world)
    draft.policies = policies
    _scale(draft, world)
    return draft.finish()


# --- claims --------------------------------------------------------------------------------------


def _claims(draft: TracingDraft, world: KeepingWorld) -> None:
    awake = world.memo.claims
    if not awake:
        return
    every = world.claims
    world.claims = {job_id: claim for job_id, claim in every.items() if job_id in awake}
    try:
        planner._answer_claims(draft)
    finally:
        world.claims = every
    for job_id in tuple(awake):
        claim = every.get(job_id)
        if claim is None or (not claim.waiting and _is_there(world, job_id, claim.hosts)):
            awake.discard(job_id)


def _is_there(world: World, job_id: str, hosts: tuple[str, ...]) -> bool:
    """Whether Slurm shows the job on a host's node: then its claim is not over."""
    for name in hosts:
        host = world.hosts.get(name)
        for job in world.jobs_on(host.node) if host is not None and host.node else ():
            if job_id in (job.id, str(job.raw_id)):
                return True
    return False


# --- steps ---------------------------------------------------------------------------------------


def _steps(draft: TracingDraft, world: KeepingWorld) -> None:
    memo = world.memo
    draft.repeat(memo.said)
    if memo.wake_at_s < inf:
        Draft.wake_at(draft, memo.wake_at_s)
    looks = draft.policies.ladder.migrates
    if looks and memo.view is not None:
        draft.policies = memo.view
    for name in sorted(memo.awake):
        node = world.managed[name]
        draft.begin_step()
        planner._step(draft, node)
        if not draft.acted and _may_rest(node) and node.host in world.hosts:
            looked = looks and node.phase is Phase.DISPLACED
            memo.settle(name, draft.woken_s, draft.said, looked=looked)
    draft.begin_step()  # what follows is about no node


def _may_rest(node: ManagedNode) -> bool:
    """Whether plan after plan may find nothing to do about the node, until something happens.

    Only where every look at the time is announced by `wake_at`, and every reading awaited by
    `watch`. A node whose jobs are still being proven looks at the time in between as well.
    """
    if node.phase is Phase.READY:
        return not (node.suspended_s or node.stuck_s)
    return node.phase in (Phase.DISPLACED, Phase.FAILED, Phase.GIVEN_UP)


# --- orphans -------------------------------------------------------------------------------------


def _orphans(draft: TracingDraft, world: KeepingWorld) -> None:
    suspects = world.memo.suspects
    if not suspects:
        return
    found = {(i.host, i.name): i for name in suspects for i in world.places_of(name)}
    with _only(world, found):
        planner._orphans(draft)
    suspects.intersection_update(
        name
        for (_, name), instance in found.items()
        if (node := world.managed.get(name)) is None
        or instance.tag.generation != node.generation
        or node.phase in (Phase.FAILED, Phase.GIVEN_UP)
    )


@contextmanager
def _only(world: World, found: dict[tuple[str, str], Instance]) -> Iterator[None]:
    every = world.instances
    world.instances = found
    try:
        yield
    finally:
        world.instances = every


# --- scaling -------------------------------------------------------------------------------------


def _scale(draft: TracingDraft, world: KeepingWorld) -> None:
    """The usual ends at which nothing is made or removed; anything else is the planner's."""
    memo, policies = world.memo, draft.policies
    need = _need(draft, memo)
    lacking = need.cpus - memo.supply_cpus
    grows = lacking > 0 or len(memo.idle) + len(memo.booting) < policies.scale.warm
    limit = may_create(world, policies.limits) if grows else ""
    if need.misfits or (grows and not limit and memo.open):
        scaling.plan_scale(draft)
    elif limit:
        draft.refuse("cluster", "a new instance", limit)
    elif grows:
        draft.repeat(memo.shut)
    elif not need.cpus and len(memo.idle) > policies.scale.warm:
        scaling.plan_scale(draft)


def _need(draft: Draft, memo: Memo) -> Need:
    """What the queue could use, anew only where the queue or the time may make a difference."""
    if memo.need is not None:
        return memo.need
    policies = draft.policies
    waiting = list(scaling._waiting(draft))
    need = policies.demand.need(waiting, policies.instances.flavour, draft.now_s)
    if all(job.reason != "BeginTime" for job in waiting):
        memo.need = need
    return need
