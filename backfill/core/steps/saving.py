"""At work: order a checkpoint when by Young and Daly it pays to have one."""

from __future__ import annotations

from backfill.core.cluster import Job, JobState
from backfill.core.foresight import end_s
from backfill.core.lifecycle import CheckpointOrder, ManagedNode, Phase
from backfill.core.plan_builder import PlanBuilder
from backfill.core.queue import Topic
from backfill.core.refusals import Code, Goal, because, limit


def save_in_time(builder: PlanBuilder, node: ManagedNode) -> None:
    """Order a checkpoint of the job on this node once it is due; all its nodes are ordered at once.

    Reckoned from the last checkpoint, or from the job's start, by what the instance had lived
    through until then: so the time that is due is known beforehand, and the plan waits for it.
    """
    rules = builder.policies.saving
    jobs = [job for job in builder.world.jobs_on(node.name) if job.active]
    if not rules.automatic or not jobs:
        return
    if len(jobs) > 1:
        builder.refuse(node.name, Goal.CHECKPOINT, because(Code.SEVERAL_JOBS, count=len(jobs)))
        return
    job = jobs[0]
    if job.state is not JobState.RUNNING or node.name != min(job.nodes):
        return
    last_s = _last_s(job, node)
    cost_s = _cost_s(builder, node)
    due_s = rules.due_s(last_s, cost_s, last_s - node.created_s, node.evictions)
    over_s = end_s(job)
    if over_s is not None and over_s <= due_s + cost_s:
        return  # it ends by itself before a checkpoint is worth what it costs
    builder.wake_at(due_s)
    if builder.now_s >= due_s:
        _order(builder, job)


def _cost_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """How long one stops the job: memory is written, and read again."""
    rate = builder.world.rates.get(node.host)
    written_s = None if rate is None else rate.predict_s(builder.policies.instances.flavour.memory_mb)
    return builder.policies.saving.cost_s if written_s is None else 2.0 * written_s


def _order(builder: PlanBuilder, job: Job) -> None:
    world, at_once = builder.world, builder.policies.saving.at_once
    nodes = [world.managed.get(name) for name in job.nodes]
    members = [node for node in nodes if node is not None and node.phase is Phase.READY]
    if len(members) < len(nodes):
        builder.refuse(f"job {job.id}", Goal.CHECKPOINT, because(Code.NODES_NOT_READY))
        return
    under_way = {m.order.id for m in world.managed.values() if m.order}
    if len(under_way) >= at_once:
        builder.awaits(Topic.CHECKPOINTS)
        builder.refuse(f"job {job.id}", Goal.CHECKPOINT, limit("saving.at_once", at_once))
        return
    identity = builder.policies.saving.identity(job.id, builder.now_s)
    names = tuple(node.name for node in members)
    for node in members:
        reason = f"checkpoint {identity}: the last one is {_age(builder, job, node)} old"
        order = CheckpointOrder(identity, names)
        builder.note(node, reason, order=order, ordered_s=builder.now_s)


def _age(builder: PlanBuilder, job: Job, node: ManagedNode) -> str:
    return f"{builder.now_s - _last_s(job, node):.0f} s"


def _last_s(job: Job, node: ManagedNode) -> float:
    """Since when there is anything that is in no checkpoint."""
    return job.start_s if node.ordered_s is None else max(job.start_s, node.ordered_s)
