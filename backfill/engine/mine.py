"""What one user may see without any role: their own jobs, and what instances have to do with them."""

from __future__ import annotations

from collections.abc import Generator

from backfill.core.model.cluster import Job, JobState, end_s
from backfill.core.model.lifecycle import ManagedNode, still_since_s
from backfill.core.model.refusals import Refusal
from backfill.core.model.sentences import why
from backfill.core.world import World

Body = dict[str, object]
_AT_ONCE, _MOST = 2000, 500


def jobs_of(
    world: World, user: str, low: tuple[str, ...], refusals: tuple[Refusal, ...]
) -> Generator[None, None, list[Body]]:
    """Tell of the jobs of a user that are on our nodes, held there, or wait in a partition for them.

    At most 500, in order of their ids; made in slices.
    """
    said = {refusal.subject.removeprefix("job "): why(refusal) for refusal in refusals}
    found: list[Body] = []
    for number, job in enumerate([*world.jobs.values()], 1):
        if job.user == user and len(found) < _MOST:
            ours = [node for name in job.nodes if (node := world.managed.get(name)) is not None]
            waits = job.state is JobState.PENDING and job.partition in low
            if ours or waits:
                found.append(_told(world, job, ours, said.get(job.id, "")))
        if number % _AT_ONCE == 0:
            yield
    return sorted(found, key=lambda one: str(one["id"]))


def _told(world: World, job: Job, ours: list[ManagedNode], refused: str) -> Body:
    held = [(node, one) for node in ours for one in node.held if one.id == job.id]
    stopped = [node for node, one in held if one.ours or one.refused is not None]
    since_s = [at_s for node in stopped if (at_s := still_since_s(node)) is not None]
    free = [_free_s(world, node.host) for node in stopped]
    node = next(iter(stopped or ours), None)
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "partition": job.partition,
        "nodes": list(job.nodes),
        "phase": "" if node is None else node.phase.value,
        "paused_since_s": min(since_s, default=None),
        "why": _why(job, node, refused, by_others=bool(held) and not stopped),
        "host_free_s": _latest(free),
    }


def _why(job: Job, node: ManagedNode | None, refused: str, *, by_others: bool) -> str:
    if by_others:
        return f"somebody else has suspended it, who has to resume it: scontrol resume {job.id}"
    return refused if node is None else node.reason


def _free_s(world: World, host: str) -> float | None:
    """When those that have the host end at the latest by their time limits; None: nobody knows."""
    known = world.hosts.get(host)
    own = None if known is None else known.node
    return _latest([end_s(job) for job in world.jobs_on(own) if job.holds_nodes]) if own is not None else None


def _latest(times: list[float | None]) -> float | None:
    """Return the last of them; None where there is none, or one that nobody knows."""
    known = [at_s for at_s in times if at_s is not None]
    return max(known, default=None) if len(known) == len(times) else None
