"""Checks that slurmctld, its nodes and its jobs are still there after a change of its configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backfill.core.model.cluster import JobState, NodeBase
from backfill.ports.errors import DriverError, UnreachableError
from backfill.ports.workload import ClusterObservation

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SlurmHealth:
    """Everything that must not get lost: nodes that are not DOWN, active jobs with their restarts."""

    nodes: frozenset[str]
    jobs: Mapping[str, int]

    @classmethod
    def of(cls, seen: ClusterObservation, leaving: Iterable[str] = ()) -> SlurmHealth:
        """From one observation; nodes that are to go on purpose are left out."""
        nodes = {n.name for n in seen.nodes.values() if n.base is not NodeBase.DOWN}
        jobs = {j.id: j.restarts for j in seen.jobs.values() if j.active}
        return cls(frozenset(nodes.difference(leaving)), jobs)

    def to_json(self) -> dict[str, object]:
        """Plain values; `from_json` is the inverse."""
        return {"nodes": sorted(self.nodes), "jobs": dict(self.jobs)}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> SlurmHealth:
        """Read what `to_json` gave. KeyError, TypeError: it did not give that."""
        nodes, jobs = body["nodes"], body["jobs"]
        if not isinstance(nodes, list) or not isinstance(jobs, dict):
            raise TypeError("no list of nodes, or no counts of jobs")
        if not all(isinstance(name, str) for name in nodes):
            raise TypeError("a node is no name")
        if not all(isinstance(restarts, int) for restarts in jobs.values()):
            raise TypeError("a count of restarts is no number")
        return cls(frozenset(nodes), jobs)


@dataclass(frozen=True, slots=True)
class Illness:
    """What is not well, in one sentence. `silent`: slurmctld has not answered for as long as was waited."""

    what: str
    silent: bool = False


def lost(before: SlurmHealth, now: ClusterObservation) -> str | None:
    """Say what is missing now, in one sentence; None: nothing is."""
    for name in sorted(before.nodes):
        node = now.nodes.get(name)
        if node is None:
            return f"node {name} is gone"
        if node.base is NodeBase.DOWN:
            return f"node {name} went DOWN ({node.reason or 'without a reason'})"
    for job_id, restarts in before.jobs.items():
        job = now.jobs.get(job_id)
        if job is None:
            return f"job {job_id} is gone"
        if job.state is JobState.NODE_FAIL or job.restarts > restarts:
            return f"job {job_id} lost its node"
    return None


def await_health(
    look: Callable[[], ClusterObservation],
    before: SlurmHealth,
    expected: Iterable[str],
    within_s: float,
    effective: Callable[[], str | None] = lambda: None,
) -> Illness | None:
    """Look until all is well (None); after `within_s`, say what is not.

    `expected` are nodes that must be known now; `effective` says which setting is not in force.
    """
    deadline_s = time.monotonic() + within_s
    silent = True
    while True:
        found = _look(look, before, frozenset(expected), effective)
        if found is None:
            return None
        silent = silent and found.silent
        if time.monotonic() > deadline_s:
            return Illness(found.what, silent)
        time.sleep(_POLL_S)


def _look(
    look: Callable[[], ClusterObservation],
    before: SlurmHealth,
    expected: frozenset[str],
    effective: Callable[[], str | None],
) -> Illness | None:
    try:
        seen = look()
        absent = sorted(expected - seen.nodes.keys())
        what = f"Slurm does not know {absent[0]}" if absent else lost(before, seen) or effective()
    except DriverError as error:
        return Illness(str(error), isinstance(error, UnreachableError))
    return Illness(what) if what else None
