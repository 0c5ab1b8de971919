"""Back to work: restore, fence, thaw, clock, registration, resume, undrain, in this order."""

from __future__ import annotations

from backfill.core.actions import (
    RestoreInstance,
    ResumeJob,
    ThawInstance,
    UndrainNode,
)
from backfill.core.cluster import JobState, Node, NodeBase
from backfill.core.draft import Draft, Progress
from backfill.core.fence import judge
from backfill.core.fleet import InstanceState
from backfill.core.hiding import show
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.notice import tell
from backfill.core.steps.devices import plugged_again
from backfill.core.steps.evict import begin_eviction
from backfill.core.steps.prove import proven
from backfill.core.steps.throttle import give_cpus


def step_returning(draft: Draft, node: ManagedNode) -> None:
    """Drive one returning node a step further."""
    if draft.taken(node.host):
        begin_eviction(draft, node)
        return
    if draft.blind:
        return
    limit_s = draft.since(node) + draft.policies.comeback.within_s
    draft.wake_at(limit_s)
    if draft.now_s >= limit_s:
        _give_up(draft, node, f"its return took longer than {limit_s - draft.since(node):.0f} s")
        return
    verdict = judge(node.name, node.held, draft.world.jobs)
    if verdict.stale:
        draft.become(node, Phase.REMOVING, f"{verdict.stale}: the copy here is destroyed")
        return
    _by_state(draft, node)


def _by_state(draft: Draft, node: ManagedNode) -> None:
    instance = draft.instance(node)
    if draft.busy_with(node):
        return  # one step at a time
    problem = draft.broken(node, instance)
    if problem:
        draft.become(node, Phase.REMOVING, problem, fail=True)
        return
    if draft.stopped(instance) and not node.held:
        # A stop that was asked for earlier has come late: without knowing what stood still there
        # is no fence, so first Slurm is told, as of any instance that stands still.
        begin_eviction(draft, node)
        return
    match instance.state if instance is not None else None:
        case InstanceState.SUSPENDED:
            _try(draft, node, RestoreInstance(node.name, node.generation, node.host, node.reason))
        case InstanceState.PAUSED:
            show(draft, node)  # at the same time: nothing that was meant for it is on its way now
            _try(
                draft,
                node,
                ThawInstance(node.name, node.generation, node.host, node.held, node.reason),
            )
        case InstanceState.RUNNING if instance is not None and give_cpus(draft, node, instance):
            _running(draft, node)
        case _:
            pass  # coming or being built: a later observation will tell


def _try(draft: Draft, node: ManagedNode, action: RestoreInstance | ThawInstance) -> None:
    """Ask for one step; where it can never succeed, the copy is given up."""
    if draft.do(action) is Progress.FINAL:
        operation = draft.operation(action)
        _give_up(draft, node, operation.problem if operation else "it cannot be brought back")


def _running(draft: Draft, node: ManagedNode) -> None:
    """It has CPUs again: set its clock, wait until Slurm hears it, then let its jobs go on."""
    if not show(draft, node):
        return
    holds, problem = proven(draft, node, "its clock stood still")
    if problem:
        _give_up(draft, node, problem)
    if not holds:
        return
    seen = draft.world.nodes.get(node.name)
    draft.watch(node.name)
    if seen is None:
        draft.become(node, Phase.REMOVING, "Slurm does not know the node any more", fail=True)
        return
    heard = draft.world.node_read_s(node.name) >= node.woken_s and seen.responding
    if heard and plugged_again(draft, node):
        _let_go_on(draft, node, seen)


def _let_go_on(draft: Draft, node: ManagedNode, seen: Node) -> None:
    """Slurm hears the node: resume its jobs, release it, and it is at work again."""
    stopped = [
        j
        for j in draft.world.jobs_on(node.name)
        if j.state is JobState.SUSPENDED and any(h.id == j.id for h in node.held)
    ]
    for job in stopped:
        draft.do(ResumeJob(node.name, node.generation, job.id, "its instance runs again"))
    if stopped:
        return
    if seen.drained_by_us:
        draft.do(UndrainNode(node.name, node.generation, "it has proven itself again", node.host))
        return
    if seen.base is not NodeBase.DOWN:
        if node.held:
            jobs = draft.world.jobs
            pause_s = draft.now_s - node.suspended_s
            text = f"went on after a pause of {pause_s:.0f} s; its time limit did not run meanwhile"
            tell(draft, node, (h.id for h in judge(node.name, node.held, jobs).keep), text)
        draft.become(
            node,
            Phase.READY,
            "back at work",
            held=(),
            proven_s=draft.now_s,
            idle_since_s=0.0,
        )


def _give_up(draft: Draft, node: ManagedNode, problem: str) -> None:
    draft.become(node, Phase.REMOVING, problem, fail=True)
