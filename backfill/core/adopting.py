"""Instances of which our books know less than their tags: taken over as they are, never destroyed.

The journal may be lost, or be a copy from last night: then the books are wrong and what runs is
right. A tag with a higher generation than the books have is proof of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from backfill.core.actions import PauseInstance
from backfill.core.cluster import Job, Node
from backfill.core.condemn import clear
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import HeldJob, ManagedNode, NodeStop, Phase
from backfill.core.plan import SetNode
from backfill.core.plan_builder import PlanBuilder
from backfill.core.refusals import Code, Goal, Reason, Words, because
from backfill.core.sentences import sentence

# An instance with our tag of which no record exists is left alone for so long: its record may be
# on its way, when another daemon is just being replaced by this one.
_ORPHAN_AGE_S = 10.0

# What the drain reason says of jobs that were requeued before they were frozen: generation of the
# instance, and each job with its restarts.
_MARK = re.compile(r" \[(\d+) holds ((?:\S+:\d+ ?)+)\]$")
_MOST_MARKED = 64


def mark(node: ManagedNode, jobs: Iterable[Job]) -> str:
    """What a drain reason has to say beside the reason, so that it is known without a journal.

    Of which run of a job a stopped instance holds the copy is known to us alone. A job that was
    never requeued has had no other run.
    """
    marked = [f"{job.id}:{job.restarts}" for job in jobs if job.active and job.restarts]
    if not marked or len(marked) > _MOST_MARKED:
        return ""
    return f" [{node.generation} holds {' '.join(marked)}]"


def _marked(seen: Node | None, generation: int) -> dict[str, int]:
    """Restarts by job, as they were when this generation of the instance was frozen."""
    found = _MARK.search(seen.reason) if seen is not None and seen.drained_by_us else None
    if found is None or int(found[1]) != generation:
        return {}
    pairs = (text.rpartition(":") for text in found[2].split())
    return {job_id: int(restarts) for job_id, _, restarts in pairs}


def newer(builder: PlanBuilder, node: ManagedNode) -> Instance | None:
    """An instance of this name that was made after all that the books know of it."""
    later = [
        place
        for place in builder.world.places_of(node.name)
        if place.tag.generation > node.generation and place.state is not InstanceState.MIGRATING
    ]
    return max(later, key=lambda place: (place.tag.generation, place.host), default=None)


def catch_up(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """The books are behind: what they say of this name is over, and the instance follows it."""
    found, known = instance.tag.generation, node.generation
    behind = because(Code.JOURNAL_BEHIND, host=instance.host, known=known, generation=found)
    if builder.blind or builder.unread:
        builder.refuse(node.name, Goal.ANY_STEP, behind)
        stop_where_wanted(builder, instance)
    elif instance.state is InstanceState.UNKNOWN:
        builder.refuse(node.name, Goal.TAKE_OVER, behind.plus(said=Words(instance.problem)))
    else:
        _take_over(builder, instance, f"taken over: {sentence(behind)}")


def adopt(builder: PlanBuilder, instance: Instance) -> None:
    """No record of it exists: our journal was lost, or is older than the instance's name."""
    first_s = builder.world.first_seen_s(instance.host, instance.name)
    if builder.now_s < first_s + _ORPHAN_AGE_S and not _alone_and_wanted(builder, instance):
        builder.wake_at(first_s + _ORPHAN_AGE_S)
        stop_where_wanted(builder, instance)
        return
    _take_over(builder, instance, "found with our tag and taken over")


def _alone_and_wanted(builder: PlanBuilder, instance: Instance) -> bool:
    """Return True if it is to leave its host at once, with jobs that are on no other node.

    While such another node is not taken over, it could not be closed to other jobs.
    """
    jobs = builder.world.jobs_on(instance.name)
    return bool(builder.taken(instance.host)) and all(len(job.nodes) < 2 for job in jobs)


def stop_where_wanted(builder: PlanBuilder, instance: Instance) -> None:
    """Pause what nobody can take over now if its host is wanted: that costs it nothing but time."""
    host, name = instance.host, instance.name
    if instance.state is InstanceState.RUNNING and builder.taken(host):
        reason = f"host {host} is wanted, and nothing is known yet of this instance with our tag"
        builder.do(PauseInstance(name, instance.tag.generation, reason, host))


def _take_over(builder: PlanBuilder, instance: Instance, reason: str) -> None:
    name, template = instance.name, builder.policies.instances
    address = dict(zip(template.names, template.addresses, strict=False)).get(name)
    active = [job.id for job in builder.world.jobs_on(name) if job.active]
    if address is None and active:
        builder.refuse(name, Goal.TAKE_OVER, because(Code.NOT_NAMED_BUSY, jobs=tuple(active)))
        return
    phase = Phase.EVICTING if builder.stopped(instance) else Phase.READY
    held, now_s = _frozen_in(builder, instance), float(builder.now_s)
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
    )
    unknown = because(Code.NOT_NAMED) if address is None else None
    if name not in builder.world.nodes:
        unknown = because(Code.NOT_IN_SLURM)
    if unknown:
        _let_go(builder, node, unknown)
    else:
        builder.add(SetNode(node, node.reason))


def _let_go(builder: PlanBuilder, node: ManagedNode, unknown: Reason) -> None:
    """Nobody knows its node: it goes when that has been so for long, and no job may be on it."""
    due_s = builder.world.first_seen_s(node.host, node.name) + builder.policies.limits.missing_s
    builder.wake_at(due_s)
    if builder.now_s < due_s:
        builder.refuse(node.name, Goal.TAKE_OVER, unknown)
    else:
        clear(builder, node, f"{node.reason}; {sentence(unknown)}")


def _frozen_in(builder: PlanBuilder, instance: Instance) -> tuple[HeldJob, ...]:
    """The jobs with which it stands still: as its drain tells, or as of now.

    One that is requeued later is noticed either way.
    """
    if not builder.stopped(instance):
        return ()
    world = builder.world
    marked = _marked(world.nodes.get(instance.name), instance.tag.generation)
    here = [job for job in world.jobs_on(instance.name) if job.active and job.id not in marked]
    known = [HeldJob(job_id, restarts) for job_id, restarts in marked.items()]
    return (*known, *(HeldJob(j.id, j.restarts, sure=not j.restarts) for j in here))


def unknown_runs(held: Iterable[HeldJob]) -> tuple[Reason, ...]:
    """Return of which jobs nobody knows whether the stopped copy is of their present run.

    What was held is forgotten with the journal, and Slurm may have requeued a job since.
    """
    return tuple(because(Code.RUN_UNKNOWN, job=h.id, restarts=h.restarts) for h in held if not h.sure)


def unsure(held: Sequence[HeldJob]) -> Reason | None:
    """Return why a stopped instance may neither go on nor be destroyed, if that is so."""
    unknown = unknown_runs(held)
    jobs = tuple(h.id for h in held if not h.sure)
    return because(Code.COPY_UNSURE, jobs=jobs, runs=unknown) if unknown else None
