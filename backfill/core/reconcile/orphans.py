"""Instances of which our books know less than their tags: taken over as they are, never destroyed.

The journal may be lost, or be a copy from last night: then the books are wrong and what runs is
right. A tag with a higher generation than the books have is proof of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backfill.core.model.actions import DeleteInstance, DeleteNode, DownNode, PauseInstance
from backfill.core.model.cluster import OUR_REASON, JobState, Node, NodeBase
from backfill.core.model.fence import unknown_runs
from backfill.core.model.fleet import STILL, Flavour, Instance, InstanceState
from backfill.core.model.lifecycle import OVER, Cause, ManagedNode, NodeStop, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.refusals import Code, Goal, Reason, Words, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import named
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import left_over
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.condemn import clear, old_copy
from backfill.core.reconcile.held_jobs import frozen_in
from backfill.core.reconcile.own_machines import order_of
from backfill.core.reconcile.pressure import stop_where_wanted


def not_known(place: Instance) -> Reason:
    return because(Code.INSTANCE_UNKNOWN, host=place.host, said=Words(place.problem))


# --- orphans -----------------------------------------------------------------------------------


def step_orphans(builder: PlanBuilder, name: str) -> None:
    """Instances with our tag that no record explains: adopt the present, destroy the stale.

    Stale is what is older than the record, or of a life that is over; what is newer than the record
    was taken over in the step of its node.
    """
    node = builder.world.managed.get(name)
    latest = [] if node is not None or builder.blind else _latest(builder, name)
    if len(latest) > 1:
        _several(builder, latest)
        latest = []
    for instance in builder.world.fleet.places_of(name):
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
            (adopt if instance in latest else stop_where_wanted)(builder, instance)
        elif node is None or _is_old(node, instance):
            _destroy_old(builder, instance)


def _latest(builder: PlanBuilder, name: str, above: int | None = None) -> list[Instance]:
    """Return the instance of this name that was made last, and where else a host shows the same.

    `above`: only what was made after that generation; None: after all that were removed.
    """
    known = builder.world.removed.get(name, 0) if above is None else above
    places = builder.world.places_of(name)
    later = [p for p in places if p.tag.generation > known and p.state is not InstanceState.MIGRATING]
    last = max((place.tag.generation for place in later), default=0)
    return sorted((p for p in later if p.tag.generation == last), key=lambda place: place.host)


def _several(builder: PlanBuilder, places: Sequence[Instance]) -> None:
    """Say that nothing is taken over while several hosts show it: which one is right, nobody knows."""
    for place in places:
        stop_where_wanted(builder, place)
    hosts = tuple(place.host for place in places)
    builder.refuse(places[0].name, Goal.TAKE_OVER, because(Code.SEVERAL_COPIES, hosts=hosts))


def _is_old(node: ManagedNode, instance: Instance) -> bool:
    """Return True if it is of an earlier life, or on a host that was off for good when its job went on."""
    left_behind = instance.host == node.left and node.left not in node.hosts
    return instance.tag.generation < node.generation + (left_behind or node.phase in OVER)


def _stop_orphan(builder: PlanBuilder, node: ManagedNode | None, instance: Instance) -> None:
    """Nothing is decided about it now, but a host that is wanted is given back all the same."""
    generation = -1 if node is None or node.phase in OVER else node.generation
    if instance.tag.generation != generation:
        stop_where_wanted(builder, instance)


def _destroy_old(builder: PlanBuilder, instance: Instance) -> None:
    """Stop a copy of a node that was removed at once; destroy it when it was seen for long."""
    name, host, generation = instance.name, instance.host, instance.tag.generation
    reason = f"a stale copy (generation {generation})"
    if instance.state is InstanceState.RUNNING:
        builder.do(PauseInstance(subject=name, generation=generation, reason=reason, host=host))
    problem = old_copy(builder, instance)
    if problem:
        builder.refuse(name, Goal.REMOVAL, problem.after(reason))
        return
    builder.do(DeleteInstance(subject=name, generation=generation, reason=reason, host=host, cause=Cause.OLD))


def _unknown_orphan(builder: PlanBuilder, name: str) -> None:
    """Say that it is neither taken over nor destroyed until it is known what it is."""
    for place in builder.world.places_of(name):
        if place.state is InstanceState.UNKNOWN and name not in builder.world.managed:
            builder.refuse(name, Goal.TAKE_OVER, not_known(place))


# An instance with our tag of which no record exists is left alone for so long: its record may be
# on its way, when another daemon is just being replaced by this one.
_ORPHAN_AGE_S = 10.0


def newer(builder: PlanBuilder, node: ManagedNode) -> list[Instance]:
    """Return the instance of this name that was made after all that the books know of it, wherever it is."""
    return _latest(builder, node.name, node.generation)


def catch_up(builder: PlanBuilder, node: ManagedNode, places: Sequence[Instance]) -> None:
    """Bring the books up to date: what they say of this name is over, and the instance follows it."""
    instance = places[0]
    found, known = instance.tag.generation, node.generation
    behind = because(Code.JOURNAL_BEHIND, host=instance.host, known=known, generation=found)
    if builder.blind or builder.unread:
        builder.refuse(node.name, Goal.ANY_STEP, behind)
        for place in places:
            stop_where_wanted(builder, place)
    elif len(places) > 1:
        _several(builder, places)
    elif instance.state is InstanceState.UNKNOWN:
        builder.refuse(node.name, Goal.TAKE_OVER, behind.plus(said=Words(instance.problem)))
    else:
        _take_over(builder, instance, f"taken over: {sentence(behind)}")


def adopt(builder: PlanBuilder, instance: Instance) -> None:
    """No record of it exists: our journal was lost, or is older than the instance's name."""
    first_s = builder.world.fleet.first_seen_s(instance.host, instance.name)
    if _job_of(builder, instance):
        _take_over(builder, instance, "found with our tag and taken over")
        return
    if builder.now_s < first_s + _ORPHAN_AGE_S and not _alone_and_wanted(builder, instance):
        builder.wake_at(first_s + _ORPHAN_AGE_S)
        stop_where_wanted(builder, instance)
        return
    _take_over(builder, instance, "found with our tag and taken over")


def _job_of(builder: PlanBuilder, instance: Instance) -> str:
    """Return the job that has the host and was told that this machine is within it; empty: none."""
    known = builder.world.hosts.get(instance.host)
    jobs = builder.world.jobs_on(known.node) if known is not None and known.node else []
    return next((job.id for job in jobs if job.active and named(job, instance.name)), "")


def _alone_and_wanted(builder: PlanBuilder, instance: Instance) -> bool:
    """Return True if it is to leave its host at once, with jobs that are on no other node.

    While such another node is not taken over, it could not be closed to other jobs.
    """
    jobs = builder.world.jobs_on(instance.name)
    return builder.taken(instance.host) and all(len(job.nodes) < 2 for job in jobs)


def _take_over(builder: PlanBuilder, instance: Instance, reason: str) -> None:
    name, template = instance.name, builder.policies.instances
    address = dict(zip(template.names, template.addresses, strict=False)).get(name)
    active = [job.id for job in builder.world.jobs_on(name) if job.active]
    if address is None and active:
        builder.refuse(name, Goal.TAKE_OVER, because(Code.NOT_NAMED_BUSY, jobs=tuple(active)))
        return
    phase = _phase_of(builder, instance)
    held, now_s, job = frozen_in(builder, instance), float(builder.now_s), _job_of(builder, instance)
    node = ManagedNode(
        name,
        address or "",
        instance.host,
        instance.tag.generation,
        phase,
        now_s,
        now_s,
        reason="; ".join([reason, *map(sentence, unknown_runs(held))]),
        held=held,
        stop=NodeStop(now_s) if phase is Phase.EVICTING else None,
        flavour=_shape(builder, instance),
        fleet=order_of(job, 1) if job else "",
        job=job,
        inside=bool(job),
        found=not job,
    )
    unknown = because(Code.NOT_NAMED) if address is None else None
    if name not in builder.world.nodes:
        unknown = because(Code.NOT_IN_SLURM)
    if unknown:
        stop_where_wanted(builder, instance)
        _let_go(builder, node, unknown)
    else:
        builder.add(SetNode(node, node.reason))


def _phase_of(builder: PlanBuilder, instance: Instance) -> Phase:
    """Return where it has got to: without a job, and never heard by Slurm, it has still to prove itself."""
    if instance.state in STILL:
        return Phase.EVICTING
    seen = builder.world.nodes.get(instance.name)
    unheard = seen is not None and seen.slurmd_start_s <= 0.0
    return Phase.BOOTING if unheard and not builder.world.job_index.any_on(instance.name) else Phase.READY


def _shape(builder: PlanBuilder, instance: Instance) -> Flavour:
    """Return its shape: a job's own machine may have another, and the policy file may have had one."""
    usual, found = builder.policies.instances.flavour, instance.resources
    return replace(usual, cpus=found.cpus, memory_mb=found.memory_mb)


def _let_go(builder: PlanBuilder, node: ManagedNode, unknown: Reason) -> None:
    """Nobody knows its node: it goes when that has been so for long, and no job may be on it."""
    due_s = builder.world.fleet.first_seen_s(node.host, node.name) + builder.policies.limits.missing_s
    builder.wake_at(due_s)
    if builder.now_s < due_s:
        builder.refuse(node.name, Goal.TAKE_OVER, unknown)
    else:
        clear(builder, node, f"{node.reason}; {sentence(unknown)}")


def step_left_over(builder: PlanBuilder, name: str) -> None:
    """Take it out of Slurm when it has been silent for long, and no host shows it.

    Its name could not be used again, Slurm would show it for ever, and jobs on it would never end.
    """
    world = builder.world
    seen = world.nodes.get(name)
    if seen is None or builder.blind or not left_over(builder, seen) or seen.responding:
        return
    needed_s = builder.policies.limits.missing_s
    due_s = max(world.node_since_s(name), world.sighted_since_s) + needed_s
    if builder.now_s < due_s:
        builder.wake_at(due_s)
        builder.refuse(name, Goal.REMOVAL, because(Code.LEFT_OVER, needed_s=needed_s))
        return
    builder.awaits(Topic.READING)
    unread = [host for host in builder.policies.hosts if world.source_read_s(host) < due_s]
    if unread:
        builder.refuse(name, Goal.REMOVAL, because(Code.MAY_BE_ON, hosts=tuple(sorted(unread))))
        return
    generation, reason = world.generations.get(name, 0), "no host shows its instance, and no record has it"
    if not world.jobs_on(name) and "COMPLETING" not in seen.flags:
        builder.insist(DeleteNode(subject=name, generation=generation, reason=reason), Goal.REMOVAL)
        return
    unsure = _may_stand_still(builder, seen) or _many_silent(builder)
    if unsure:
        builder.refuse(name, Goal.REMOVAL, unsure)
    elif seen.base is not NodeBase.DOWN:
        down = DownNode(subject=name, generation=generation, reason=f"{OUR_REASON} {reason}")
        builder.insist(down, Goal.SET_DOWN)


def _may_stand_still(builder: PlanBuilder, seen: Node) -> Reason | None:
    """Return which jobs of it may only be paused, on a host that the policy file names no longer.

    Such a node is silent for good reason, so that silence says nothing.
    """
    jobs = [job for job in builder.world.jobs_on(seen.name) if job.active]
    if not jobs or not (seen.hidden or any(job.state is JobState.SUSPENDED for job in jobs)):
        return None
    again, fixed = (" ".join(job.id for job in jobs if job.requeue is may) for may in (True, False))
    return because(Code.LEFT_OVER_STILL, jobs=tuple(job.id for job in jobs), again=again, fixed=fixed)


def _many_silent(builder: PlanBuilder) -> Reason | None:
    """Return that so many nodes are silent at once that the network may be broken, if that is so."""
    builder.awaits(Topic.SILENCE)
    every, count = len(builder.world.nodes), len(builder.world.silent)
    most = builder.policies.liveness.most(every)
    return because(Code.BROKEN_NETWORK, count=count, every=every, most=most) if count > most else None
