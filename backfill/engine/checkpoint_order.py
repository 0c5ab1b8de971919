"""An order to keep a checkpoint of a job: checked as a whole before anything is stopped."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import CheckpointOrder, ManagedNode, Phase
from backfill.core.world import World


class CommandError(Exception):
    """The order cannot be carried out; one sentence says why."""


def checkpoint_order(world: World, job_id: str) -> tuple[str, list[ManagedNode]]:
    """Return the new checkpoint's id and the records of the job's nodes with the order in them."""
    job = world.jobs.get(job_id)
    if job is None or job.state is not JobState.RUNNING:
        state = "unknown to Slurm" if job is None else str(job.state).lower()
        raise CommandError(f"job {job_id or '(none)'} is {state}; only a running job has a state")
    if "+" in job_id:
        raise CommandError(
            f"job {job_id} is a component of a heterogeneous job, and Slurm suspends none of these; "
            "only a job that is submitted as one can be kept"
        )
    nodes = []
    for name in job.nodes:
        node = world.managed.get(name)
        if node is None:
            raise CommandError(f"job {job_id} runs on {name}, which is no node of ours")
        if node.phase is not Phase.READY or node.order is not None:
            why = (
                f"it is {node.phase}"
                if node.order is None
                else f"checkpoint {node.order.id} of it is under way"
            )
            raise CommandError(f"{name} cannot be stopped now: {why}; try again later")
        _check_member(world, job, node)
        nodes.append(node)
    identity = f"{job_id}-{int(world.now_s)}"
    names = tuple(n.name for n in nodes)
    order = CheckpointOrder(identity, names)
    return identity, [replace(n, order=order, ordered_s=world.now_s) for n in nodes]


def _check_member(world: World, job: Job, node: ManagedNode) -> None:
    """Raise CommandError where one node of the job can be no part of a checkpoint of it."""
    host = world.hosts.get(node.host)
    if host is not None and not host.keeps:
        raise CommandError(f"{node.host} keeps no checkpoints, and {node.name} of job {job.id} is there")
    _need_alone(world, job, node)


def _need_alone(world: World, job: Job, node: ManagedNode) -> None:
    """Raise CommandError where other jobs have a part in the node's state."""
    others = [other.id for other in world.jobs_on(node.name) if other.active and other.id != job.id]
    if others:
        raise CommandError(
            f"{node.name} has job {', '.join(others)}, too, whose state would go back with that of job "
            f"{job.id}; try again once job {job.id} is alone there"
        )


def put_back_order(
    world: World, identity: str, job_id: str, restarts: int, parts: dict[str, int]
) -> list[ManagedNode]:
    """Return the records of the nodes with the order to go on from a checkpoint in them.

    `parts`: the checkpoint's instances with their generations. The job must still be the one that
    was kept: same nodes, same restart count.
    """
    job = world.jobs.get(job_id)
    if job is None or job.state not in (JobState.RUNNING, JobState.SUSPENDED):
        raise CommandError(f"job {job_id} is not running any more; a checkpoint cannot bring it back")
    if job.restarts != restarts:
        raise CommandError(
            f"job {job_id} was restarted since: the checkpoint is of restart {restarts}, "
            f"it is at {job.restarts}"
        )
    if set(job.nodes) != parts.keys():
        raise CommandError(f"job {job_id} runs on {', '.join(job.nodes)}, not where it was kept")
    nodes = []
    for name, generation in parts.items():
        node = world.managed.get(name)
        if node is None or node.generation != generation:
            raise CommandError(f"{name} is not the instance that was kept")
        if node.phase not in (Phase.READY, Phase.PARKED) or node.order is not None:
            raise CommandError(f"{name} is {node.phase}, or another order is under way; wait for it")
        _need_alone(world, job, node)
        nodes.append(node)
    order = CheckpointOrder(identity, tuple(sorted(parts)), restoring=True)
    return [replace(n, order=order, ordered_s=world.now_s) for n in nodes]


def asked_checkpoint(world: World, body: dict[str, object]) -> tuple[str, list[ManagedNode]]:
    """Return the order that `{"ask": "checkpoint", "job": ID}` means."""
    return checkpoint_order(world, str(body.get("job", "")))


def asked_put_back(world: World, body: dict[str, object]) -> tuple[str, list[ManagedNode]]:
    """Return the order that `{"ask": "put-back", "id", "job", "restarts", "parts"}` means."""
    identity, parts = str(body.get("id", "")), body.get("parts")
    generations = {str(k): int(str(v)) for k, v in parts.items()} if isinstance(parts, dict) else {}
    job_id, restarts = str(body.get("job", "")), int(str(body.get("restarts", -1)))
    return identity, put_back_order(world, identity, job_id, restarts, generations)
