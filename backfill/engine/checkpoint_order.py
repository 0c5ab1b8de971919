"""An order to keep a checkpoint of a job: checked as a whole before anything is stopped."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.cluster import JobState
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.world import World


class OrderError(Exception):
    """The order cannot be carried out; one sentence says why."""


def checkpoint_order(world: World, job_id: str) -> tuple[str, list[ManagedNode]]:
    """The new checkpoint's id and the records of the job's nodes with the order in them."""
    job = world.jobs.get(job_id)
    if job is None or job.state is not JobState.RUNNING:
        state = "unknown to Slurm" if job is None else str(job.state).lower()
        raise OrderError(f"job {job_id or '(none)'} is {state}; only a running job has a state")
    nodes = []
    for name in job.nodes:
        node = world.managed.get(name)
        if node is None:
            raise OrderError(f"job {job_id} runs on {name}, which is no node of ours")
        if node.phase is not Phase.READY or node.checkpoint:
            why = f"checkpoint {node.checkpoint} of it is under way" if node.checkpoint else (
                f"it is {node.phase}"
            )  # fmt: skip
            raise OrderError(f"{name} cannot be stopped now: {why}; try again later")
        nodes.append(node)
    identity = f"{job_id}-{int(world.now_s)}"
    names = tuple(n.name for n in nodes)
    return identity, [
        replace(n, checkpoint=identity, checkpoint_s=world.now_s, checkpoint_of=names)
        for n in nodes
    ]
