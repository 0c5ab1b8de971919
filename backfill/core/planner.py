"""plan(world, policies) -> Plan: the one function that decides, live and in replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backfill.core.actions import DeleteInstance, PauseInstance
from backfill.core.adopting import adopt, catch_up, newer, stop_where_wanted
from backfill.core.cluster import NodeBase
from backfill.core.condemn import condemn, old_copy
from backfill.core.fleet import Instance, InstanceState
from backfill.core.ledger import HostAllocation
from backfill.core.lifecycle import Cause, ManagedNode, Phase
from backfill.core.liveness import plan_liveness
from backfill.core.plan import AnswerClaim, EndClaim, Plan
from backfill.core.plan_builder import PlanBuilder
from backfill.core.policy import PolicySet, Proof
from backfill.core.pressure import fits_beside
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
    """Decide what to do now. Pure: the same world and policies give the same plan.

    What earlier plans found out about this world, and what still holds, is not found out again,
    unless `from_scratch`: the plan is the same, perhaps with its refusals in another order.
    """
    if not from_scratch and (latest := _same_again(world, policies)) is not None:
        return latest
    builder = PlanBuilder(world, policies)
    if from_scratch or builder.blind:
        for claim in list(world.claims.values()):
            _step_claim(builder, claim)
        for name in tuple(world.names):
            _step(builder, world.managed[name])
        _orphans(builder, {name for _, name in world.instances})
        plan_fleets(builder)
        plan_scale(builder)
        for host in hosts_with_parents(builder):
            step_parents(builder, host)
        plan_liveness(builder)
    else:
        try:
            _go_on(builder, world)
        except BaseException:
            world.findings.doubt()
            raise
    found = builder.finish()
    if not from_scratch:
        world.findings.latest = None if world.fleets or builder.blind else found
    return found


def _same_again(world: World, policies: PolicySet) -> Plan | None:
    """The latest plan, where making it once more would bring the same."""
    calm = world.findings.calm(world.now_s, policies) and not world.fleets
    fresh = calm and not world.barred and world.fresh("slurm", policies.limits.stale_after_s)
    return world.findings.latest if fresh else None


def _go_on(builder: PlanBuilder, world: World) -> None:
    """The same, of what may lead to something now."""
    findings = world.findings
    builder.go_on_from(findings)
    for claim in _in_order(world, findings.take_claims()):
        builder.step(f"claim {claim.job_id}", _step_claim, claim)
        findings.stay_awake(f"claim {claim.job_id}")
    for name in sorted(findings.take_nodes()):
        if name in world.managed:
            builder.step(f"node {name}", _step, world.managed[name])
            findings.stay_awake(f"node {name}")
    _orphans(builder, findings.suspects)
    findings.suspects = {name for name in findings.suspects if _suspect(world, name)}
    plan_fleets(builder)
    if "scale" not in findings:
        builder.step("scale", _scale, None)
    for host in hosts_with_parents(builder):
        if f"parents {host}" not in findings:
            builder.step(f"parents {host}", step_parents, host)
    if "liveness" not in findings:
        builder.step("liveness", _liveness, None)


def _in_order(world: World, awake: set[str]) -> list[HostAllocation]:
    """These claims in the order in which the world has them."""
    if len(awake) < 2:
        return [world.claims[job_id] for job_id in awake if job_id in world.claims]
    return [claim for job_id, claim in world.claims.items() if job_id in awake]


def _scale(builder: PlanBuilder, _: None) -> None:
    plan_scale(builder)


def _liveness(builder: PlanBuilder, _: None) -> None:
    plan_liveness(builder)


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
    alone = builder.world.alone(claim.hosts)  # as nearly all are on a busy cluster
    busy = [] if alone else [why for h in claim.hosts if (why := occupied(builder, h))]
    busy += [why for n in claim.nodes if (why := lacking(builder, n, claim))]
    limit_s = claim.since_s + builder.policies.answer_within_s
    builder.wake_at(limit_s)
    if not busy:
        free = "no instance uses the hosts" if claim.hosts else "nothing is awaited in its nodes"
        builder.add(AnswerClaim(claim.job_id, True, free))
    elif builder.now_s >= limit_s:
        builder.add(AnswerClaim(claim.job_id, False, sentences(busy)))


def _over(builder: PlanBuilder, claim: HostAllocation) -> bool:
    """Whether Slurm, asked after the claim was made, shows that the job is not there (any more)."""
    world = builder.world
    job = world.jobs.get(claim.job_id)
    there = job.nodes if job is not None and job.holds_nodes else ()
    if any(world.host_of_node(node) in claim.hosts for node in there):
        return False
    known = (world.hosts.get(name) for name in claim.hosts)
    node = ""
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


def _suspect(world: World, name: str) -> bool:
    """Whether an instance of this name is one that its record, if there is one, does not want."""
    node = world.managed.get(name)
    generation = -1 if node is None or node.phase in _OVER else node.generation
    return any(i.tag.generation != generation for i in world.instances_called(name))


def _orphans(builder: PlanBuilder, names: Iterable[str]) -> None:
    """Instances with our tag that no record explains: adopt the present, destroy the stale.

    Stale is what is older than the record, or of a life that is over; what is newer than the record
    was taken over in the step of its node.
    """
    found = {(i.host, i.name): i for name in names for i in builder.world.instances_called(name)}
    if builder.blind:
        _stop_orphans(builder, found.values())
        return
    for (_, name), instance in sorted(found.items()):
        if instance.state is InstanceState.MIGRATING:
            continue
        node = builder.world.managed.get(name)
        if instance.state is InstanceState.UNKNOWN:
            builder.step(f"orphan {name}", _unknown_orphan, name)
            continue
        removed = instance.tag.generation <= builder.world.removed.get(name, 0)
        if node is None and not removed:
            builder.step(f"orphan {name}", adopt, instance)
        elif node is None or instance.tag.generation < node.generation + (node.phase in _OVER):
            builder.step(f"orphan {name}", _destroy_old, instance)


def _stop_orphans(builder: PlanBuilder, instances: Iterable[Instance]) -> None:
    """Nothing is decided about them now, but a host that is wanted is given back all the same."""
    for instance in sorted(instances, key=lambda i: (i.host, i.name)):
        if _suspect(builder.world, instance.name):
            builder.step(f"orphan {instance.name}", stop_where_wanted, instance)


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
