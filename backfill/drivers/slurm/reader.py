"""Reads Slurm's nodes, jobs and settings through squeue and scontrol."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence

from backfill.core.cluster import Job, Node, NodeBase, SlurmSettings
from backfill.core.quantities import fold_hostlist
from backfill.drivers.slurm.ahead import SHOW_RESERVATIONS, Ahead, read_reservations
from backfill.drivers.slurm.checks import JOB_ID, NODE_NAME, checked, is_dynamic
from backfill.drivers.slurm.commands import Commands
from backfill.drivers.slurm.parse import JobFormat, read_node_records, read_nodes
from backfill.drivers.slurm.settings import read_settings
from backfill.ports import ClusterObservation, DriverError, NotFoundError

# -F shows nodes that have not registered yet; they are FUTURE until they do.
_SHOW_NODES = ("scontrol", "-F", "-o", "show", "node")
# --local: never the jobs of a federation's other clusters; -r: one line per array task.
_SHOW_JOBS = ("squeue", "--noheader", "--all", "--array", "--local", "--noconvert", "-t", "all")
# Up to so many jobs it is quicker to ask for each than to read all.
_FEW = 3


class SlurmReader:
    """The reading half of the driver. Safe from several threads."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._format = JobFormat(secrets.token_hex(6))
        self._squeue_env = {"SQUEUE_FORMAT2": self._format.text}
        # The last answers by record; replaced as a whole, so that threads need no lock.
        self._known: dict[str, Job] = {}
        self._known_nodes: dict[str, Node] = {}
        self._ahead = Ahead()

    def settings(self) -> SlurmSettings:
        """Read version and configuration."""
        config = self._commands.run(["scontrol", "show", "config"])
        partitions = self._commands.run(["scontrol", "-a", "-o", "show", "partition"])
        nodes = read_nodes(self._commands.run(_SHOW_NODES)).values()
        return read_settings(config, partitions, sum(1 for node in nodes if not is_dynamic(node)))

    def observe(self) -> ClusterObservation:
        """Read all nodes and all jobs that are pending, active or ended lately."""
        seen_s = time.time()
        asked = self._commands.start(_SHOW_NODES)
        try:
            jobs = self.all_jobs()
        except DriverError:
            asked.kill()
            raise
        self._known_nodes = records = read_node_records(asked.result(), self._known_nodes)
        nodes = {node.name: node for node in records.values()}
        self._look_ahead(jobs.values(), seen_s)
        return ClusterObservation(seen_s, self._ahead.tell(nodes), jobs)

    def _look_ahead(self, jobs: Iterable[Job], now_s: float) -> None:
        ahead = Ahead(self._ahead.reservations, self._ahead.read_s)
        ahead.expect(jobs)
        if ahead.due(now_s):
            output = self._commands.run(SHOW_RESERVATIONS)
            ahead.reservations, ahead.read_s = tuple(read_reservations(output)), now_s
        self._ahead = ahead

    def observe_nodes(self, names: Sequence[str]) -> ClusterObservation:
        """Read these nodes and every job on them, fresh and fast; absent nodes are unknown."""
        seen_s = time.time()
        if not names:
            return ClusterObservation(seen_s, {}, {})
        nodes = self.read_nodes(names)
        # A FUTURE node has no jobs, and squeue does not know its name.
        listed = fold_hostlist(n for n, node in nodes.items() if node.base is not NodeBase.FUTURE)
        if not listed:
            return ClusterObservation(seen_s, nodes, {})
        try:
            jobs = self._squeue("-w", listed)
        except NotFoundError:  # one was deleted in this moment
            jobs = [j for j in self.all_jobs().values() if nodes.keys() & set(j.nodes)]
        return ClusterObservation(seen_s, nodes, {job.id: job for job in jobs})

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Read these jobs fresh; ids that Slurm no longer knows are absent from the answer."""
        wanted = set(ids)
        if len(wanted) > _FEW:
            # squeue itself reads all jobs as soon as it is asked for more than one.
            return {i: job for i, job in self.all_jobs().items() if i in wanted}
        found: dict[str, Job] = {}
        for job_id in sorted(wanted):
            with contextlib.suppress(NotFoundError):
                # Asking for one task or component may answer with its siblings as well.
                jobs = self._squeue("-j", checked(job_id, JOB_ID, "job id"))
                found.update((job.id, job) for job in jobs if job.id == job_id)
        return found

    def read_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Read these nodes fresh; names that Slurm does not know are absent from the answer."""
        if not names:
            return {}
        wanted = {checked(name, NODE_NAME, "node name") for name in names}
        try:
            output = self._commands.run([*_SHOW_NODES, fold_hostlist(wanted)])
        except NotFoundError:
            if len(wanted) == 1:
                return {}
            # One unknown name fails the call, so the others are read with all the rest.
            output = self._commands.run(_SHOW_NODES)
        found = {name: node for name, node in read_nodes(output).items() if name in wanted}
        return self._ahead.tell(found)

    def all_jobs(self) -> dict[str, Job]:
        """Every job that Slurm knows, by id."""
        output = self._commands.run(_SHOW_JOBS, env=self._squeue_env)
        self._known = jobs = self._format.read(output, self._known, time.time())
        return {job.id: job for job in jobs.values()}

    def _squeue(self, *chosen: str) -> list[Job]:
        output = self._commands.run([*_SHOW_JOBS, *chosen], env=self._squeue_env)
        return list(self._format.read(output, {}, time.time()).values())
