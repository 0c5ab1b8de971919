"""Makes plans: `enact` for whoever begins them, `plan` for whoever only asks. Both decide alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from backfill.core.model.cluster import NodeBase
from backfill.core.model.fleet import Instance, InstanceState
from backfill.core.model.lifecycle import OVER, ManagedNode, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.plan import AnswerClaim, EndClaim, Plan
from backfill.core.model.quantities import NOTHING
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentences
from backfill.core.picture import Picture
from backfill.core.placement import rooms_of
from backfill.core.policy import PolicySet, Proof
from backfill.core.queue import Kind, Topic, WorkQueue
from backfill.core.reconcile.booting import step_booting
from backfill.core.reconcile.builder import MOST_STEPS, PlanBuilder, budgets_change_s
from backfill.core.reconcile.devices import lacking
from backfill.core.reconcile.evicting import step_evicting, step_lost, step_throttled
from backfill.core.reconcile.fleets import makes_parents, plan_fleets, step_parents
from backfill.core.reconcile.held_jobs import patience_renewed
from backfill.core.reconcile.inside import plan_inside, step_inside
from backfill.core.reconcile.job_machines import plan_machines, step_machines
from backfill.core.reconcile.making_room import promised_rooms
from backfill.core.reconcile.moving import step_moving
from backfill.core.reconcile.names import names_of
from backfill.core.reconcile.orphans import catch_up, newer, not_known, step_left_over, step_orphans
from backfill.core.reconcile.parked import step_parked
from backfill.core.reconcile.pressure import above_budget, fits_beside, in_use, within
from backfill.core.reconcile.ready import plan_liveness, step_ready
from backfill.core.reconcile.removing import step_draining, step_removing
from backfill.core.reconcile.returning import step_returning
from backfill.core.reconcile.scaling import plan_scale
from backfill.core.reconcile.sparing import SetAside, Sparing, StepsFailedError
from backfill.core.reconcile.supplying import plan_supply

if TYPE_CHECKING:
    from backfill.core.world import World

_GIVEN = (NodeBase.ALLOCATED, NodeBase.MIXED)


_AT_WORK = (Phase.READY, Phase.DRAINING, Phase.EVICTING, Phase.THROTTLED, Phase.RETURNING)


_ASIDE = (Phase.EVICTING, Phase.THROTTLED, Phase.PARKED, Phase.MOVING, Phase.RETURNING)


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


def plan(world: World, policies: PolicySet, *, from_scratch: bool = False, spare: bool = False) -> Plan:
    """Decide all that can be begun now. Pure: the same world and policies give the same plan.

    The plan is whole: each step is tried on the world, which takes all of them back at the end, and
    the next steps start from there, until nothing more can be begun. Only what the world's queue
    has marked is looked at, unless `from_scratch`: the plan is the same, perhaps with its refusals
    in another order.

    `spare`: where the step of an entity raises, all is planned without that, and it is said; else it
    is raised.
    """
    if from_scratch:
        kept, world.queue = world.queue, WorkQueue(world)
        try:
            return _plan_anew(world, policies, keep=False, spare=spare)
        finally:
            world.queue = kept
    return _plan_anew(world, policies, keep=False, spare=spare)


def enact(world: World, policies: PolicySet, *, spare: bool = False) -> Plan:
    """Decide like `plan`, and leave the world as it is once all of that has been begun.

    For who begins all of it. What comes of a step that cannot be begun after all is a change like any other.
    """
    return _plan_anew(world, policies, keep=True, spare=spare)


# So often one plan is begun anew for steps that raised: by then it is no matter of single entities.
_MOST_TRIES = 5


def _plan_anew(world: World, policies: PolicySet, *, keep: bool, spare: bool = False) -> Plan:
    if (latest := _same_again(world, policies)) is not None:
        return latest
    world.queue.spares = spare
    aside = SetAside()
    for _ in range(_MOST_TRIES):
        try:
            return _plan(world, policies, aside, keep=keep)
        except StepsFailedError as error:
            aside.add(error.failed)
            for entity, found in error.failed.items():
                world.queue.set_aside(f"{entity.kind.name.lower()} {entity.name}".strip(), found)
        except BaseException:
            world.queue.policies = None  # nobody knows how far it came: the next one begins anew
            raise
    raise next(iter(aside.errors.values()))


def _same_again(world: World, policies: PolicySet) -> Plan | None:
    """Return the latest plan, where making it once more would bring the same."""
    queue = world.queue
    if queue.latest is None or len(queue) or policies is not queue.policies or queue.blind:
        return None
    if queue.is_awaited(Topic.TIME) or world.now_s >= queue.next_wake_s():
        return None
    if queue.stale or world.now_s > queue.all_fresh_until_s:
        return None
    if queue.rooms is not None and (world.now_s >= queue.rooms.until_s or queue.rooms.hosts.touched):
        return None
    fresh = world.fresh("slurm", policies.limits.stale_after_s) and not world.barred
    return queue.latest if fresh else None


def _plan(world: World, policies: PolicySet, aside: SetAside, *, keep: bool) -> Plan:
    builder, queue = PlanBuilder(world, policies), world.queue
    if policies is not queue.policies or builder.blind or queue.blind:
        queue.begin_anew(policies, blind=bool(builder.blind), cloning=makes_parents(policies))
    rooms_of(world, policies)  # there are such, and they go by these policies
    names_of(world, policies)
    queue.begin(world.now_s)
    _note_stale(world, policies)
    most = MOST_STEPS + len(policies.instances.names)
    sparing = Sparing(builder, _LOOKS, aside)
    with world.undo.tentatively():
        done = queue.drain(sparing.look_at if queue.spares else partial(builder.look_at, _LOOKS), most)
        found = builder.finish(queue.results(), queue.next_wake_s())
        if keep and not sparing.failed:
            world.undo.keep()
    if sparing.failed:
        queue.put_back(done)  # as of a plan that is not carried out
        raise StepsFailedError(sparing.failed)
    if not keep:
        queue.put_back(done if found.actions else ())
    queue.latest = None if found.actions else found
    return found


def _note_stale(world: World, policies: PolicySet) -> None:
    """Mark hosts whose picture is old: what is said of them tells its age, which grows all the time."""
    queue, after_s = world.queue, policies.limits.stale_after_s
    if not queue.stale and world.now_s <= queue.all_fresh_until_s:
        return
    read = [(world.source_read_s(host), host) for host in world.hosts]
    stale = frozenset(host for read_s, host in read if not world.fresh(host, after_s))
    queue.all_fresh_until_s = min((read_s for read_s, _ in read), default=world.now_s) + after_s
    for host in stale | queue.stale:
        world.concerns.host_seen(host)
    queue.take(world.concerns.marks)
    queue.stale = stale


# --- what is looked at -------------------------------------------------------------------------


def _claim(builder: PlanBuilder, job_id: str) -> None:
    claim = builder.world.claims.get(job_id)
    if claim is not None:
        _step_claim(builder, claim)


def _budget(builder: PlanBuilder) -> None:
    """Who has to leave because a budget allows fewer now; the others need not look."""
    queue = builder.world.queue
    if not builder.policies.budgets.windows:
        return
    builder.wake_at(budgets_change_s(builder.world, builder.policies))
    leaving = above_budget(builder.world, builder.policies)
    queue.mark_nodes(leaving ^ queue.above_budget)
    queue.above_budget = leaving


def _promises(builder: PlanBuilder) -> None:
    """Whose room is for stopped work next; the others need not look."""
    queue = builder.world.queue
    found = frozenset() if builder.blind else promised_rooms(builder)
    queue.mark_nodes(found ^ queue.promised)
    queue.promised = found


def _node(builder: PlanBuilder, name: str) -> None:
    """Our node of this name, instances of that name that are none of it, and what they left."""
    world = builder.world
    node = world.managed.get(name)
    if node is None:
        step_orphans(builder, name)
        step_left_over(builder, name)
        return
    places = world.fleet.places_of(name)
    # As nearly always: what there is of that name is what the books say.
    booked = all(place.tag.generation == node.generation for place in places)
    _step(builder, node, places, booked=booked)
    if not booked or node.left or node.phase in OVER:
        step_orphans(builder, name)
    if node.phase in OVER:
        step_left_over(builder, name)


def _machines(builder: PlanBuilder, job_id: str = "") -> None:
    """Look at a job's own machines; or at jobs that ask for some."""
    own = builder.world.machines.get(job_id)
    if not job_id:
        plan_machines(builder)
        plan_inside(builder)
    elif own is not None and own.inside:
        step_inside(builder, own)
    else:
        step_machines(builder, job_id)


def _parents(builder: PlanBuilder, host: str) -> None:
    queue = builder.world.queue
    if (queue.cloning or builder.world.fleets) and host in queue.hosts:
        step_parents(builder, host)


# By the entity's name, where there is more than one of its kind.
_LOOKS: dict[Kind, Callable[..., None]] = {
    Kind.CLAIM: _claim,
    Kind.BUDGET: _budget,
    Kind.PROMISES: _promises,
    Kind.NODE: _node,
    Kind.MACHINES: _machines,
    Kind.FLEETS: plan_fleets,
    Kind.SCALE: plan_scale,
    Kind.SUPPLY: plan_supply,
    Kind.PARENTS: _parents,
    Kind.LIVENESS: plan_liveness,
}


def _step(builder: PlanBuilder, node: ManagedNode, places: list[Instance], *, booked: bool) -> None:
    """Take the step of the node's phase. `places`: every host's view of its instance."""
    world = builder.world
    later = [] if booked else newer(builder, node)
    if later:
        catch_up(builder, node, later)
        return
    step = _STEPS.get(node.phase)
    if step is None:
        return
    for host in node.hosts:
        if host not in world.hosts:
            _unknown(builder, node, host)
            return  # where it is, or whether it has arrived, cannot be known
    if world.lost(node.host) and node.phase not in (Phase.MOVING, Phase.REMOVING):
        step_lost(builder, node)
        return
    aside = node.phase in _ASIDE
    if _state_unknown(builder, node, places) or (aside and patience_renewed(builder, node)):
        return
    builder.accused.discard(node.name)
    step(builder, node)
    if node.suspicion is not None and node.name not in builder.accused and not builder.blind:
        why = f"no longer suspected: {node.suspicion.cause}"
        builder.note(node, f"{node.reason} ({why})", suspicion=None)


def _state_unknown(builder: PlanBuilder, node: ManagedNode, places: list[Instance]) -> bool:
    """Return True if the state of its instance cannot be told: then nothing is done with it until it can.

    In one that has never worked no work can be lost: its boot ends, and is cleared, as any other.
    """
    if node.phase is Phase.BOOTING or (node.fail and node.proof.proven_s is None and not node.held):
        return False
    for place in places:
        if place.host not in builder.world.hosts:
            continue  # one that was never seen
        if place.state is InstanceState.UNKNOWN:
            builder.refuse(node.name, Goal.ANY_STEP, not_known(place))
            return True
        if place.problem:
            odd = because(Code.INSTANCE_ODD, said=Words(place.problem))
            builder.refuse(node.name, Goal.WORK_AS_USUAL, odd)
    return False


def _unknown(builder: PlanBuilder, node: ManagedNode, host: str) -> None:
    """Its host was not read since the start; one that the policy file lacks never will be."""
    if host not in builder.policies.hosts:
        builder.refuse(node.name, Goal.ANY_STEP, because(Code.HOST_NOT_NAMED, host=host))


# --- claims ------------------------------------------------------------------------------------


def _step_claim(builder: PlanBuilder, claim: HostAllocation) -> None:
    if not claim.hosts and not claim.waiting:
        builder.add(EndClaim(claim.job_id, "its start was let go"))
        return
    if not claim.waiting:
        if claim.hosts and _over(builder, claim):
            builder.add(EndClaim(claim.job_id, "the job has left its nodes"))
        elif left := _left(builder, claim):
            builder.add(EndClaim(claim.job_id, f"the job has left {', '.join(left)}", left))
        return
    # One reading without the job starts nothing: a hook hears only of room that is proven free. The
    # hook of a job that has left its nodes goes by itself, or costs one stop that nobody needed.
    limit_s = claim.since_s + builder.policies.answer_within_s
    builder.wake_at(limit_s)
    busy = _busy(builder, claim)
    first = next(busy, None)
    if first is None:
        builder.add(AnswerClaim(claim.job_id, True, _free(builder, claim)))
    elif builder.now_s >= limit_s:
        builder.add(AnswerClaim(claim.job_id, False, sentences([first, *busy])))


def _free(builder: PlanBuilder, claim: HostAllocation) -> str:
    """Say why the job can begin."""
    if not claim.hosts:
        return "nothing is awaited in its nodes"
    if any(in_use(builder.world, builder.policies, host) != NOTHING for host in claim.hosts):
        return "what runs on the hosts leaves it all that it got"
    return "no instance uses the hosts"


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
    """Return True if Slurm, asked after the claim was made, shows that the job is not there (any more)."""
    world = builder.world
    job = world.jobs.get(claim.job_id)
    there = job.nodes if job is not None and job.holds_nodes else ()
    if any(world.host_of_node(node) in claim.hosts for node in there):
        return False
    known = (world.hosts.get(name) for name in claim.hosts)
    node = ""
    builder.awaits(Topic.READING)
    for node in (host.node for host in known if host is not None and host.node):
        if not _shown_without(world, node, claim):
            return False
    return bool(node) or world.node_read_s("") > claim.since_s


def _left(builder: PlanBuilder, claim: HostAllocation) -> tuple[str, ...]:
    """Return the hosts that the job has left for good while it is still on others: as one that shrank,
    or of which only a part still completes."""
    known = (builder.world.hosts.get(name) for name in claim.hosts)
    nodes = {host.name: host.node for host in known if host is not None and host.node}
    others = [host for host, node in nodes.items() if not _is_on(builder.world, node, claim)]
    if not others or len(others) == len(nodes):
        return ()
    builder.awaits(Topic.READING)
    return tuple(host for host in others if _shown_without(builder.world, nodes[host], claim))


def _shown_without(world: Picture, node: str, claim: HostAllocation) -> bool:
    """Return True if Slurm, asked after the claim was made, shows that its job is not on the node."""
    if world.node_read_s(node) <= claim.since_s or _is_on(world, node, claim):
        return False
    return not _torn(world, node)


def _is_on(world: Picture, node: str, claim: HostAllocation) -> bool:
    """Return True if Slurm shows the job of the claim on the node."""
    # A hook knows an array task or a component of a heterogeneous job by its raw number only.
    return any(claim.job_id in (job.id, str(job.raw_id)) for job in world.jobs_on(node))


def _torn(world: Picture, node: str) -> bool:
    """Return True if what Slurm does not show there means nothing now: it is just not believed, it
    does not show the node either, or it shows that as given away and nobody to whom, as while it
    reads its own state."""
    slurm, seen = world.sources.get("slurm"), world.nodes.get(node)
    if (slurm is not None and slurm.odd_s) or seen is None:
        return True
    given = seen.base in _GIVEN and "COMPLETING" not in seen.flags
    return given and not world.jobs_on(node)


def occupied(builder: PlanBuilder, host: str) -> Reason | None:
    """Return why the host's room is not proven free, if it is not."""
    unsure = _unsure(builder, host)
    if unsure is None and builder.world.parents_starting(host):
        unsure = because(Code.PARENT_IN_MAKING, host=host)  # it is given up for whoever got the host
    if unsure or fits_beside(builder.world, builder.policies, host):
        return unsure
    for instance in builder.world.fleet.instances_on(host):
        if within(builder.world, instance):
            continue
        _await_word(builder, instance)
        if instance.state is InstanceState.UNKNOWN and instance.occupies_memory:
            said = Words(instance.problem)
            return because(Code.MAY_RUN, instance=instance.name, host=host, said=said)
        if instance.occupies_cpu:
            return because(Code.STILL_RUNS, instance=instance.name, host=host)
        if builder.policies.proof is Proof.MEMORY and instance.occupies_memory:
            return because(Code.STILL_IN_MEMORY, instance=instance.name, host=host)
    return None


def _await_word(builder: PlanBuilder, instance: Instance) -> None:
    """Look soon whether the job that it is part of has ended, or shares its host with the next one."""
    node = builder.world.managed.get(instance.name)
    if node is not None and builder.world.inside(node):
        builder.watch(*filter(None, (builder.world.hosts[instance.host].node,)))
        builder.awaits(Topic.READING)


def _unsure(builder: PlanBuilder, host: str) -> Reason | None:
    """Return why it cannot be known what is on the host, if it cannot."""
    if builder.world.arriving(host):
        return because(Code.ARRIVING, host=host)
    for instance in builder.world.fleet.instances_on(host):
        if instance.state is InstanceState.MIGRATING:
            # By a call of an earlier daemon.
            return because(Code.COMING, instance=instance.name, host=host)
    for node in builder.world.fleet.managed_on(host):
        at_work = node.phase in _AT_WORK and node.proof.proven_s is not None and node.host == host
        if at_work and not builder.world.places_of(node.name):
            return because(Code.NOT_SHOWN, node=node.name, host=host)
    known, read_s = builder.world.hosts.get(host), builder.world.source_read_s(host)
    if known is not None and not known.reachable and (not read_s or _may_carry(builder.world, host)):
        return because(Code.HOST_UNREACHABLE, host=host, said=Words(known.problem))
    if known is None or not read_s:  # also without any record: our journal may be lost
        return because(Code.HOST_UNSEEN, host=host)
    return None


def _may_carry(world: Picture, host: str) -> bool:
    """Return True if an instance was seen there, or is there by our books."""
    # One that is being removed may still be there; one whose removal has ended is not.
    ours = (m for m in world.fleet.managed_on(host) if m.phase not in OVER)
    return bool(world.fleet.instances_on(host)) or any(ours)
