"""From nothing to READY: make node and instance, wait for registration, prove, release."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.actions import CreateInstance, CreateNode, DrainNode, MakeParent, UndrainNode
from backfill.core.model.cluster import NodeBase
from backfill.core.model.fence import unknown_runs
from backfill.core.model.fleet import STILL, CloneMethod, Instance, InstanceSpec, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.readiness import OF_THE_SITE, judge_registration, kind_of
from backfill.core.model.sentences import sentence
from backfill.core.picture import awaits_pin, met
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import clone_method, image_of
from backfill.core.reconcile.builder import PlanBuilder, Progress
from backfill.core.reconcile.condemn import broken, clear, elsewhere, lost, work_on
from backfill.core.reconcile.course import NOT_PROVEN, begin_eviction, first_rung, stop_forgotten
from backfill.core.reconcile.held_jobs import frozen_in
from backfill.core.reconcile.pressure import give_cpus
from backfill.core.reconcile.proof import checks_of, not_proven, proven, read_since_woken
from backfill.core.room import own_loan, own_network, room

# A slurmd that registered so lately is there; one whose proof took longer has to be heard again.
_JUST_HEARD_S = 30.0


_TRIES = 3  # attempts at one call before the boot has failed


def step_booting(builder: PlanBuilder, node: ManagedNode) -> None:
    """Drive one booting node a step further."""
    if _stops(builder, node):
        return
    if builder.blind or _found_no_room(builder, node):
        return
    instance = builder.instance(node)
    if instance is not None:
        give_cpus(builder, node, instance)  # by an old journal it boots, and it was held back at work since
    if _overdue(builder, node) or _fails_to_make(builder, node):
        return
    seen = builder.world.nodes.get(node.name)
    builder.watch(node.name)
    if seen is not None and not seen.drained and not node.woken_since:
        # A crash came between making the node and draining it: it has not proven itself yet.
        builder.do(DrainNode(subject=node.name, generation=node.generation, reason=NOT_PROVEN))
    if seen is None or seen.slurmd_start_s <= 0 or not seen.responding:
        return
    flavour = builder.policies.instances.promised_by(node, instance)
    registered = judge_registration(seen, flavour.cpus, flavour.node_memory_mb)
    if not registered.ok:
        _fail(builder, node, sentence(not_proven(registered)))
        return
    prove(builder, node)


def _overdue(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its boot takes too long: it has failed."""
    overdue = builder.overdue(node.since_s, builder.policies.scale.boot_within_s)
    # A job's own machine registers, and waits: for its fellows, then for what opens it.
    if not overdue or (node.job and node.woken_since and met(builder.world, node)):
        return False
    _fail(builder, node, _why_late(builder, node))
    return True


def _stops(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it goes no further: it has worked before, its host is wanted, or a budget is full."""
    if _worked_before(builder, node) or _lost_at_work(builder, node):
        return True
    if builder.instance(node) is None and (found := elsewhere(builder, node)) is not None:
        builder.note(node, f"found on {found.host}: the journal is behind", host=found.host)
        return True
    if builder.taken_from(node) or node.name in builder.world.queue.above_budget:
        begin_eviction(builder, node, doomed=True)
        return True
    return False


def _worked_before(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it has stood still with jobs of its own: the journal is from before it had any."""
    instance, seen = builder.instance(node), builder.world.nodes.get(node.name)
    if builder.blind or builder.unread or instance is None:
        return False
    if instance.state not in STILL:
        return seen is not None and stop_forgotten(builder, node, seen)
    held = frozen_in(builder, instance)
    if held:
        reason = "; ".join(["it stands still with jobs", *map(sentence, unknown_runs(held))])
        builder.become(node, Phase.EVICTING, reason, held=held, stop=first_rung(builder, node))
    return bool(held)


def _lost_at_work(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if it was lost together with jobs: the journal is from before it had any."""
    if builder.blind or builder.unread or builder.world.busy(node.name) or not work_on(builder, node):
        return False
    return lost(builder, node, builder.instance(node))


def _found_no_room(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its host has no room for it, as we see or as it says: it is begun anew at once.

    That is no failure of node, image or host: what the host has learnt by it is its business.
    """
    instance = builder.instance(node)
    if builder.world.busy(node.name):
        return False
    if instance is None:
        left = room(builder.world, node.host, builder.policies, kept=False)
        if left.cpus >= 0 and left.memory_mb >= 0:
            return False
        # As after the return of an old journal: what it promised has long been given to others.
        return clear(builder, node, f"{node.host} has no room for it any more")
    if not instance.no_room:
        return False
    return clear(builder, node, f"{node.host} has no room for it: {instance.no_room}")


def _fails_to_make(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Ask for node and instance where they are missing; true when that cannot work any more."""
    instance = builder.instance(node)
    problem = broken(builder, node, instance) if instance is not None else None
    if problem:
        _fail(builder, node, f"{sentence(problem)}, while booting")
        return True
    return any(_fails(builder, node, action) for action in _missing(builder, node, instance))


def _missing(
    builder: PlanBuilder, node: ManagedNode, instance: Instance | None
) -> list[CreateNode | CreateInstance | MakeParent]:
    wanted: list[CreateNode | CreateInstance | MakeParent] = []
    if node.name not in builder.world.nodes:
        wanted.append(create_node(builder, node))
    if instance is None and not _may_be_unseen(builder):
        create = create_instance(builder, node)
        wanted.append(_parent_first(builder, create.spec) or create)
    return wanted


def _may_be_unseen(builder: PlanBuilder) -> bool:
    """Return True while a host has not been asked yet: by an old journal the instance may be there.

    Only soon after we began to see: a host that never answers must not keep all others idle.
    """
    over_s = builder.world.sighted_since_s + builder.policies.limits.sure_after_s
    if builder.now_s >= over_s:
        return False
    builder.wake_at(over_s)
    builder.awaits(Topic.READING)
    return not builder.all_asked


def _fails(builder: PlanBuilder, node: ManagedNode, action: CreateNode | CreateInstance | MakeParent) -> bool:
    """Ask for it; return True if it was refused for good, or has failed too often."""
    progress = builder.do(action)
    operation = builder.operation(action)
    if operation is None or (progress is not Progress.FINAL and operation.attempts < _TRIES):
        return False
    _fail(builder, node, operation.problem, will_pass=progress is not Progress.FINAL)
    return True


def _parent_first(builder: PlanBuilder, spec: InstanceSpec) -> MakeParent | None:
    """Return what has to be there before an instant clone, unless it is."""
    host = builder.world.hosts[spec.host]
    instant = spec.method is CloneMethod.INSTANT
    if not instant or host.parents is None or host.has_parent(spec.image, spec.flavour):
        return None
    return MakeParent(
        subject=host.name,
        generation=0,
        reason=f"{spec.name} shall go on from it",
        image=spec.image,
        flavour=spec.flavour,
    )


def create_node(builder: PlanBuilder, node: ManagedNode) -> CreateNode:
    """Return the action that makes the node known to Slurm."""
    flavour = builder.policies.instances.flavour_of(node)
    return CreateNode(
        subject=node.name,
        generation=node.generation,
        reason=node.reason,
        address=node.address.split("/")[0],
        cpus=flavour.cpus,
        memory_mb=flavour.node_memory_mb,
        features=_features(builder, node),
    )


def create_instance(builder: PlanBuilder, node: ManagedNode) -> CreateInstance:
    """Return the action that makes and starts the instance."""
    template = builder.policies.instances
    tag = Tag(builder.policies.cluster, node.name, node.generation)
    fleet = builder.world.fleets.get(node.fleet) if node.fleet else None
    image = (fleet.image if fleet else "") or image_of(builder.policies, node)
    method = (fleet.method if fleet else None) or clone_method(builder, image)
    if node.job and method is CloneMethod.INSTANT and not _has_parent(builder, node, image):
        method = CloneMethod.LINKED  # there is none of its size or larger, and to boot one takes longer
    own = builder.world.machines.get(node.job) if node.job else None
    loan = own_loan(builder.world, node.job) if node.job else None
    slots = 0 if loan is None else loan.functions + len(loan.regions)
    if slots and method is CloneMethod.INSTANT:
        method = CloneMethod.LINKED  # it would have the slots of its parent
    spec = InstanceSpec(
        node.name,
        node.host,
        tag,
        template.flavour_of(node),
        image,
        node.address,
        _features(builder, node),
        method,
        node.job if node.inside else "",
        slots,
        0 if loan is None else max(loan.regions, default=0),
        own_network(builder.world, node.job) if node.job else "",
        node.job,
        "" if own is None else own.user,
    )
    return CreateInstance(subject=node.name, generation=node.generation, reason=node.reason, spec=spec)


def _has_parent(builder: PlanBuilder, node: ManagedNode, image: str) -> bool:
    flavour = builder.policies.instances.flavour_of(node)
    return builder.world.hosts[node.host].has_parent(image, flavour)


def _features(builder: PlanBuilder, node: ManagedNode) -> tuple[str, ...]:
    """Return those of all our nodes, and those by which jobs ask for the node's image."""
    policies = builder.policies
    own = policies.environments.features_of(image_of(policies, node))
    offered = policies.devices.offered(node.devices)
    asked = policies.own_machines.features if node.job else ()
    return tuple(dict.fromkeys([*policies.instances.features, *own, *offered, *asked]))


def prove(builder: PlanBuilder, node: ManagedNode) -> None:
    """Take the last steps before READY: clock set and everything proven, then undrained.

    Its slurmd has just registered; only after a long proof it has to report once more.
    """
    holds, problem = proven(builder, node, "let it prove itself", register=False)
    if problem:
        _fail(builder, node, sentence(problem), will_pass=_of_the_site(builder, node))
    if not holds:
        return
    seen = builder.world.nodes[node.name]
    if not read_since_woken(builder, node):
        builder.awaits(Topic.READING)
        return  # what we know of the node is from before the proof
    if awaits_pin(builder.world, node):
        return  # nobody but its job is to get in
    if seen.drained_by_us:
        heard = seen.responding and 0 <= builder.now_s - seen.slurmd_start_s < _JUST_HEARD_S
        reason = "it has proven itself"
        builder.do(
            UndrainNode(
                subject=node.name, generation=node.generation, reason=reason, host=node.host, heard=heard
            )
        )
        return
    if seen.base is not NodeBase.DOWN:
        builder.become(
            node,
            Phase.READY,
            "registered and proven",
            proof=replace(node.proof, proven_s=float(builder.now_s)),
            retry=replace(node.retry, failures=0, cleared=False, blamed=0),
            idle_since_s=builder.now_s,
        )


def _of_the_site(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if all that its guest could not prove rests on what others serve: the image may be well."""
    failing = [check for check in checks_of(builder, node) if not check.ok]
    return bool(failing) and all(kind_of(check.name) in OF_THE_SITE for check in failing)


def _why_late(builder: PlanBuilder, node: ManagedNode) -> str:
    within_s = builder.policies.scale.boot_within_s
    instance = builder.instance(node)
    state = instance.state.value if instance is not None else "missing"
    problems = [o.problem for o in builder.world.calls.all_of(node.name) if o.problem]
    why = f": {problems[-1]}" if problems else ""
    tells = f"; `backfill explain {node.name}` tells how its console ended" if instance else ""
    late = f"it did not register with Slurm within {within_s:.0f} s"
    return f"{late} (its guest is {state}){why}{tells}"


def _fail(builder: PlanBuilder, node: ManagedNode, problem: str, *, will_pass: bool = False) -> None:
    """`will_pass`: others may mend it at any time, so no person has to say that they have."""
    most = builder.policies.scale.give_up_after - 2
    failures = min(node.retry.failures, most) if will_pass else node.retry.failures
    clear(builder, node, problem, fail=True, failures=failures)
