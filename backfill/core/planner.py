"""plan(world, policies) -> Plan: the one function that decides, live and in replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from backfill.core.actions import DeleteInstance, PauseInstance
from backfill.core.adopting import adopt, catch_up, newer, stop_where_wanted
from backfill.core.cluster import NodeBase
from backfill.core.condemn import condemn, old_copy
from backfill.core.fleet import Instance, InstanceState
from backfill.core.ledger import HostAllocation
from backfill.core.lifecycle import Cause, ManagedNode, Phase
from backfill.core.liveness import plan_liveness
from backfill.core.placement import Rooms
from backfill.core.plan import AnswerClaim, EndClaim, Plan
from backfill.core.plan_builder import PlanBuilder
from backfill.core.policy import PolicySet, Proof
from backfill.core.pressure import above_budget, budgets_change_s, fits_beside
from backfill.core.queue import Entity, Kind, Topic, WorkQueue
from backfill.core.refusals import Code, Goal, Reason, Words, because
from backfill.core.scaling import plan_scale
from backfill.core.sentences import sentences
from backfill.core.steps.boot import step_booting
from backfill.core.steps.comeback import step_returning
from backfill.core.steps.devices import lacking
from backfill.core.steps.evict import step_evicting
from backfill.core.steps.fleets import plan_fleets
from backfill.core.steps.parents import hosts_with_parents, step_parents
from backfill.core.steps.parked import step_moving, step_parked
from backfill.core.steps.ready import step_ready
from backfill.core.steps.remove import lost_with, step_draining, step_removing
from backfill.core.steps.throttle import step_throttled
from backfill.core.world import World

# So often one entity is looked at for one plan; more often means that its steps undo one another.
_MOST_STEPS = 100
_AGAIN_S = 1.0

_OVER = (Phase.FAILED, Phase.GIVEN_UP)
_GIVEN = (NodeBase.ALLOCATED, NodeBase.MIXED)
_AT_WORK = (Phase.READY, Phase.DRAINING, Phase.EVICTING, Phase.THROTTLED, Phase.RETURNING)

# FAILED and GIVEN_UP have no step: nothing of them is left outside.
_STEPS: dict[Phase, Callable[[PlanBuilder, ManagedNode], None]] = {
    Phase.BOOTING: step_booting,
    Phase.READY: step_ready,
    Phase.DRAINING: step_draining,
    Phase.EVICTING: step_evicting,
    Phase.THROTTLED: step_throttled,
    Phase.PARKED: step_parked,
    Phase.MOVING: step_moving,
    Phase.RETURNING: step_returning,
    Phase.REMOVING: step_removing,
}


def plan(world: World, policies: PolicySet, *, from_scratch: bool = False) -> Plan:
    """Decide all that can be begun now. Pure: the same world and policies give the same plan.

    The plan is whole: each step is tried on the world, which takes all of them back at the end, and
    the next steps start from there, until nothing more can be begun. Only what the world's queue
    has marked is looked at, unless `from_scratch`: the plan is the same, perhaps with its refusals
    in another order.
    """
    if from_scratch:
        kept, world.queue = world.queue, WorkQueue(world)
        try:
            return _plan(PlanBuilder(world, policies))
        finally:
            world.queue = kept
    if (latest := _same_again(world, policies)) is not None:
        return latest
    try:
        return _plan(PlanBuilder(world, policies))
    except BaseException:
        world.queue.policies = None  # nobody knows how far it came: the next one begins anew
        raise


def _same_again(world: World, policies: PolicySet) -> Plan | None:
    """The latest plan, where making it once more would bring the same."""
    queue = world.queue
    if queue.latest is None or len(queue) or policies is not queue.policies or queue.blind:
        return None
    if queue.is_awaited(Topic.TIME) or world.now_s >= queue.next_wake_s():
        return None
    if queue.stale or world.now_s > queue.all_fresh_until_s:
        return None
    if queue.rooms is not None and world.now_s >= queue.rooms.until_s:
        return None
    fresh = world.fresh("slurm", policies.limits.stale_after_s) and not world.barred
    return queue.latest if fresh else None


def _plan(builder: PlanBuilder) -> Plan:
    world, queue, policies = builder.world, builder.world.queue, builder.policies
    if policies is not queue.policies or builder.blind or queue.blind:
        queue.policies, queue.blind, queue.rooms = policies, bool(builder.blind), Rooms(policies)
        queue.everything()
    assert queue.rooms is not None
    queue.wake(world.now_s)
    _note_stale(world, policies)
    done: dict[Entity, int] = {}
    with world.undo.tentatively():
        _drain(builder, queue, done)
        touched = queue.rooms.touched
    found = builder.finish(queue.results(), queue.next_wake_s())
    queue.rooms.touch_again(touched)
    if found.actions:
        # Whether it is carried out is not known here: WorkQueue.carried_out.
        for entity in done:
            queue.mark(entity)
    queue.latest = None if found.actions else found
    return found


def _drain(builder: PlanBuilder, queue: WorkQueue, done: dict[Entity, int]) -> None:
    """Look at what is marked until nothing is; whoever acts is looked at once more."""
    rooms = queue.rooms
    assert rooms is not None
    while True:
        if rooms.refresh(builder.world):
            queue.happened(Topic.ROOM)
        entity = queue.pop()
        if entity is None:
            return
        done[entity] = done.get(entity, 0) + 1
        step = partial(_LOOKS[entity.kind], name=entity.name)
        if done[entity] > _MOST_STEPS + len(builder.policies.instances.names):
            step = partial(_unsettled, entity)
            queue.unsettled += 1
        result, acted = builder.take(step)
        different = queue.settle(entity, result)
        queue.found(entity, different=different or acted)
        if acted:
            queue.mark(entity)


def _note_stale(world: World, policies: PolicySet) -> None:
    """What is said of a host whose picture is old says how old it is: it changes all the time."""
    queue, after_s = world.queue, policies.limits.stale_after_s
    if not queue.stale and world.now_s <= queue.all_fresh_until_s:
        return
    read = [(world.source_read_s(host), host) for host in world.hosts]
    stale = frozenset(host for read_s, host in read if not world.fresh(host, after_s))
    queue.all_fresh_until_s = min((read_s for read_s, _ in read), default=world.now_s) + after_s
    for host in stale | queue.stale:
        queue.host_seen(host)
    queue.stale = stale


def _unsettled(entity: Entity, builder: PlanBuilder) -> None:
    """Its steps undo one another: what they would do next is not done now, but by the next plan."""
    subject = entity.name or "cluster"
    builder.refuse(subject, Goal.ANY_STEP, because(Code.UNSETTLED, count=_MOST_STEPS))
    builder.wake_at(builder.now_s + _AGAIN_S)


# --- what is looked at -------------------------------------------------------------------------


def _claim(builder: PlanBuilder, name: str) -> None:
    claim = builder.world.claims.get(name)
    if claim is not None:
        _step_claim(builder, claim)


def _budget(builder: PlanBuilder, name: str) -> None:
    """Who has to leave because a budget allows fewer now; the others need not look."""
    queue = builder.world.queue
    if not builder.policies.budgets.windows:
        return
    builder.wake_at(budgets_change_s(builder.world, builder.policies))
    leaving = above_budget(builder.world, builder.policies)
    queue.mark_nodes(leaving ^ queue.above_budget)
    queue.above_budget = leaving


def _node(builder: PlanBuilder, name: str) -> None:
    """Our node of this name, and instances of that name that are none of it."""
    node = builder.world.managed.get(name)
    if node is not None:
        _step(builder, node)
    _orphans(builder, name)


def _fleets(builder: PlanBuilder, name: str) -> None:
    plan_fleets(builder)


def _scale(builder: PlanBuilder, name: str) -> None:
    plan_scale(builder)


def _parents(builder: PlanBuilder, name: str) -> None:
    if name in hosts_with_parents(builder):
        step_parents(builder, name)


def _liveness(builder: PlanBuilder, name: str) -> None:
    plan_liveness(builder)


_LOOKS: dict[Kind, Callable[..., None]] = {
    Kind.CLAIM: _claim,
    Kind.BUDGET: _budget,
    Kind.NODE: _node,
    Kind.FLEETS: _fleets,
    Kind.SCALE: _scale,
    Kind.PARENTS: _parents,
    Kind.LIVENESS: _liveness,
}


def _step(builder: PlanBuilder, node: ManagedNode) -> None:
    later = newer(builder, node)
    if later is not None:
        catch_up(builder, node, later)
        return
    step = _STEPS.get(node.phase)
    if step is None:
        return
    for host in node.hosts:
        if host not in builder.world.hosts:
            _unknown(builder, node, host)
            return  # where it is, or whether it has arrived, cannot be known
    if lost_with(builder, node.host) and node.phase not in (Phase.MOVING, Phase.REMOVING):
        condemn(builder, node, Cause.HOST_OFF, f"its host {node.host} is off for good")
        return
    if _state_unknown(builder, node):
        return
    builder.accused.discard(node.name)
    step(builder, node)
    if node.suspicion is not None and node.name not in builder.accused and not builder.blind:
        why = f"no longer suspected: {node.suspicion.cause}"
        builder.note(node, f"{node.reason} ({why})", suspicion=None)


def _state_unknown(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether the state of its instance cannot be told: then nothing is done with it until it can.

    In one that has never worked no work can be lost: its boot ends, and is cleared, as any other.
    """
    if node.phase is Phase.BOOTING or (node.fail and node.proof.proven_s is None and not node.held):
        return False
    for place in builder.world.places_of(node.name):
        if place.state is InstanceState.UNKNOWN:
            builder.refuse(node.name, Goal.ANY_STEP, _not_known(place))
            return True
        if place.problem:
            odd = because(Code.INSTANCE_ODD, said=Words(place.problem))
            builder.refuse(node.name, Goal.WORK_AS_USUAL, odd)
    return False


def _not_known(place: Instance) -> Reason:
    return because(Code.INSTANCE_UNKNOWN, host=place.host, said=Words(place.problem))


def _unknown(builder: PlanBuilder, node: ManagedNode, host: str) -> None:
    """Its host was not read since the start; one that the policy file lacks never will be."""
    if host not in builder.policies.hosts:
        builder.refuse(node.name, Goal.ANY_STEP, because(Code.HOST_NOT_NAMED, host=host))


# --- claims ------------------------------------------------------------------------------------


def _step_claim(builder: PlanBuilder, claim: HostAllocation) -> None:
    if not claim.hosts and not claim.waiting:
        builder.add(EndClaim(claim.job_id, "its start was let go"))
        return
    if claim.hosts and _over(builder, claim):
        builder.add(EndClaim(claim.job_id, "the job has left its nodes"))
        if claim.waiting:
            builder.add(AnswerClaim(claim.job_id, True, "the job has left its nodes"))
        return
    if not claim.waiting:
        return
    limit_s = claim.since_s + builder.policies.answer_within_s
    builder.wake_at(limit_s)
    busy = _busy(builder, claim)
    first = next(busy, None)
    if first is None:
        free = "no instance uses the hosts" if claim.hosts else "nothing is awaited in its nodes"
        builder.add(AnswerClaim(claim.job_id, True, free))
    elif builder.now_s >= limit_s:
        builder.add(AnswerClaim(claim.job_id, False, sentences([first, *busy])))


def _busy(builder: PlanBuilder, claim: HostAllocation) -> Iterator[Reason]:
    """Yield what keeps the job from beginning: on its hosts, and in nodes of ours."""
    if not builder.world.alone(claim.hosts):  # as nearly all are on a busy cluster
        for host in claim.hosts:
            if (why := occupied(builder, host)) is not None:
                yield why
    for name in claim.nodes:
        if (why := lacking(builder, name, claim)) is not None:
            yield why


def _over(builder: PlanBuilder, claim: HostAllocation) -> bool:
    """Whether Slurm, asked after the claim was made, shows that the job is not there (any more)."""
    world = builder.world
    job = world.jobs.get(claim.job_id)
    there = job.nodes if job is not None and job.holds_nodes else ()
    if any(world.host_of_node(node) in claim.hosts for node in there):
        return False
    known = (world.hosts.get(name) for name in claim.hosts)
    node = ""
    builder.awaits(Topic.READING)
    for node in (host.node for host in known if host is not None and host.node):
        if world.node_read_s(node) <= claim.since_s:
            return False
        # A hook knows an array task or a component of a heterogeneous job by its raw number only.
        if any(claim.job_id in (other.id, str(other.raw_id)) for other in world.jobs_on(node)):
            return False
        if _torn(world, node):
            return False
    return bool(node) or world.node_read_s("") > claim.since_s


def _torn(world: World, node: str) -> bool:
    """Return True if what Slurm does not show there means nothing now: it is just not believed, or
    shows the node as given away and nobody to whom, as while it reads its own state."""
    slurm, seen = world.sources.get("slurm"), world.nodes.get(node)
    if slurm is not None and slurm.odd_s:
        return True
    given = seen is not None and seen.base in _GIVEN and "COMPLETING" not in seen.flags
    return given and not world.jobs_on(node)


def occupied(builder: PlanBuilder, host: str) -> Reason | None:
    """Return why the host's room is not proven free, if it is not."""
    unsure = _unsure(builder, host)
    if unsure or fits_beside(builder.world, builder.policies, host):
        return unsure
    if builder.world.parents_starting(host):
        return because(Code.PARENT_IN_MAKING, host=host)
    for instance in builder.world.instances_on(host):
        if instance.state is InstanceState.UNKNOWN and instance.occupies_memory:
            said = Words(instance.problem)
            return because(Code.MAY_RUN, instance=instance.name, host=host, said=said)
        if instance.occupies_cpu:
            return because(Code.STILL_RUNS, instance=instance.name, host=host)
        if builder.policies.proof is Proof.MEMORY and instance.occupies_memory:
            return because(Code.STILL_IN_MEMORY, instance=instance.name, host=host)
    return None


def _unsure(builder: PlanBuilder, host: str) -> Reason | None:
    """Return why it cannot be known what is on the host, if it cannot."""
    if builder.world.arriving(host):
        return because(Code.ARRIVING, host=host)
    for instance in builder.world.instances_on(host):
        if instance.state is InstanceState.MIGRATING:
            # By a call of an earlier daemon.
            return because(Code.COMING, instance=instance.name, host=host)
    for node in builder.world.managed_on(host):
        at_work = node.phase in _AT_WORK and node.proof.proven_s is not None and node.host == host
        if at_work and not builder.world.places_of(node.name):
            return because(Code.NOT_SHOWN, node=node.name, host=host)
    known = builder.world.hosts.get(host)
    if known is not None and not known.reachable and _may_carry(builder.world, host):
        return because(Code.HOST_UNREACHABLE, host=host, said=Words(known.problem))
    return None


def _may_carry(world: World, host: str) -> bool:
    """Whether an instance was seen there, or is there by our books."""
    # One that is being removed may still be there; one whose removal has ended is not.
    ours = (m for m in world.managed_on(host) if m.phase not in _OVER)
    return bool(world.instances_on(host)) or any(ours)


# --- orphans -----------------------------------------------------------------------------------


def _orphans(builder: PlanBuilder, name: str) -> None:
    """Instances with our tag that no record explains: adopt the present, destroy the stale.

    Stale is what is older than the record, or of a life that is over; what is newer than the record
    was taken over in the step of its node.
    """
    node = builder.world.managed.get(name)
    for instance in builder.world.instances_called(name):
        if builder.blind:
            _stop_orphan(builder, node, instance)
            continue
        if instance.state is InstanceState.MIGRATING:
            continue
        if instance.state is InstanceState.UNKNOWN:
            _unknown_orphan(builder, name)
            continue
        removed = instance.tag.generation <= builder.world.removed.get(name, 0)
        if node is None and not removed:
            adopt(builder, instance)
        elif node is None or instance.tag.generation < node.generation + (node.phase in _OVER):
            _destroy_old(builder, instance)


def _stop_orphan(builder: PlanBuilder, node: ManagedNode | None, instance: Instance) -> None:
    """Nothing is decided about it now, but a host that is wanted is given back all the same."""
    generation = -1 if node is None or node.phase in _OVER else node.generation
    if instance.tag.generation != generation:
        stop_where_wanted(builder, instance)


def _destroy_old(builder: PlanBuilder, instance: Instance) -> None:
    """A copy of a node that was removed: stopped at once, destroyed when it was seen for long."""
    name, host, generation = instance.name, instance.host, instance.tag.generation
    reason = f"a stale copy (generation {generation})"
    if instance.state is InstanceState.RUNNING:
        builder.do(PauseInstance(name, generation, reason, host))
    problem = old_copy(builder, instance)
    if problem:
        builder.refuse(name, Goal.REMOVAL, problem.after(reason))
        return
    builder.do(DeleteInstance(name, generation, reason, host, cause=Cause.OLD))


def _unknown_orphan(builder: PlanBuilder, name: str) -> None:
    """Say that it is neither taken over nor destroyed until it is known what it is."""
    for place in builder.world.places_of(name):
        if place.state is InstanceState.UNKNOWN and name not in builder.world.managed:
            builder.refuse(name, Goal.TAKE_OVER, _not_known(place))
