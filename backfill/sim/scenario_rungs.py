"""Which rungs of the ladder stopped each job of a play, read from its journal."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core import changes as ch
from backfill.core.cluster import Job, JobState
from backfill.core.fleet import Instance, InstanceState
from backfill.core.lifecycle import ManagedNode, Phase, Rung
from backfill.core.records import decode
from backfill.ports.storage import Record

_READ = frozenset(kind.__name__ for kind in (ch.NodeManaged, ch.JobSeen, ch.InstanceSeen, ch.InstanceStopped))
_GIVING_WAY = frozenset({Phase.EVICTING, Phase.PARKED, Phase.MOVING})
_STATES = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}


def rungs_of_jobs(records: Iterable[Record]) -> dict[str, set[Rung]]:
    """By job id, the rungs that had their effect while the job was on the node.

    What counts is what was seen, not what was ordered: an instance that stood still or was on
    disk, a node that went to another host, a job that was started anew.
    """
    reader = _Reader()
    for record in records:
        if record.kind == "change" and record.body.get("t") in _READ:
            reader.take(decode(record.body))
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, set[Rung]] = {}
        self._nodes: dict[str, ManagedNode] = {}
        self._jobs: dict[str, Job] = {}

    def take(self, change: ch.Change) -> None:
        match change:
            case ch.NodeManaged(node=node):
                self._node(node)
            case ch.JobSeen(job=job):
                self._job(job)
            case ch.InstanceSeen(instance=instance):
                self._instance(instance)
            case ch.InstanceStopped(name=name):
                self._stands(name, Rung.PAUSE)
            case _:
                pass

    def _node(self, node: ManagedNode) -> None:
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if node.phase is Phase.THROTTLED:
            self._book(node, Rung.THROTTLE)
        if before is not None and before.phase is Phase.MOVING and node.host != before.host:
            self._book(node, Rung.MIGRATE)

    def _instance(self, instance: Instance) -> None:
        rung = _STATES.get(instance.state)
        if rung is not None:
            self._stands(instance.name, rung)

    def _stands(self, name: str, rung: Rung) -> None:
        """On its way back a restored instance stands still as well: then no rung did it."""
        node = self._nodes.get(name)
        if node is not None and node.phase in _GIVING_WAY and node.rung_kind is rung:
            self._book(node, rung)

    def _job(self, job: Job) -> None:
        before = self._jobs.get(job.id)
        self._jobs[job.id] = job
        if before is not None and job.restarts > before.restarts:
            self.found.setdefault(job.id, set()).add(Rung.REQUEUE)
        if job.state is JobState.CANCELLED:
            self.found.setdefault(job.id, set()).add(Rung.CANCEL)

    def _book(self, node: ManagedNode, rung: Rung) -> None:
        for job in self._jobs.values():
            if job.active and node.name in job.nodes:
                self.found.setdefault(job.id, set()).add(rung)
