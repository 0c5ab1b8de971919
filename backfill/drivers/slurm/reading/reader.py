"""The reading half of the driver: the port's questions, put to one of the ways of reading."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from backfill.core.model.cluster import Job, Node, NodeBase, SlurmSettings
from backfill.drivers.slurm.checks import JOB_ID, NODE_NAME, checked, is_dynamic
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.ahead import SHOW_RESERVATIONS, Ahead, read_reservations
from backfill.drivers.slurm.reading.parse import read_nodes
from backfill.drivers.slurm.reading.paths import ReadPath
from backfill.drivers.slurm.reading.text_path import SHOW_NODES, TextPath
from backfill.drivers.slurm.settings import read_settings, slurm_users
from backfill.ports.errors import NotFoundError
from backfill.ports.workload import ClusterObservation


class SlurmReader:
    """The reading half of the driver. Safe from several threads."""

    def __init__(self, commands: SlurmTools, path: ReadPath | None = None) -> None:
        self._commands = commands
        self._path: ReadPath = path or TextPath(commands)
        self._ahead = Ahead()
        self._slurm_users: frozenset[str] | None = None  # how SlurmUser signs; None: not read yet

    def settings(self) -> SlurmSettings:
        """Read version and configuration."""
        config = self._commands.run(["scontrol", "show", "config"])
        partitions = self._commands.run(["scontrol", "-a", "-o", "show", "partition"])
        nodes = read_nodes(self._commands.run(SHOW_NODES)).values()
        return read_settings(config, partitions, sum(1 for node in nodes if not is_dynamic(node)))

    def observe(self) -> ClusterObservation:
        """Read all nodes and all jobs that are pending, active or ended lately."""
        seen_s = time.time()
        nodes, jobs = self._path.everything()
        self._look_ahead(jobs, seen_s)
        return ClusterObservation(seen_s, self._ahead.tell(self._signed(nodes)), jobs)

    def _signed(self, nodes: dict[str, Node]) -> dict[str, Node]:
        """Clear who has drained a node where that is slurmctld, which signs as SlurmUser.

        Where SlurmUser is root nobody can tell the two apart: each counts as an admin.
        """
        drained = [node for node in nodes.values() if node.reason_by and node.drained_by_others]
        if not drained:
            return nodes
        if self._slurm_users is None:  # slurmctld keeps its user as long as it runs, and as a rule longer
            self._slurm_users = slurm_users(self._commands.run(["scontrol", "show", "config"]))
        own = [node for node in drained if node.reason_by in self._slurm_users]
        return {**nodes, **{node.name: replace(node, reason_by="") for node in own}} if own else nodes

    def _look_ahead(self, jobs: dict[str, Job], now_s: float) -> None:
        ahead = replace(self._ahead)
        if jobs is not ahead.of:  # what has not changed is the very same answer
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
        listed = [n for n, node in nodes.items() if node.base is not NodeBase.FUTURE]
        if not listed:
            return ClusterObservation(seen_s, nodes, {})
        try:
            jobs = self._path.jobs_on(listed)
        except NotFoundError:  # one was deleted in this moment
            jobs = {i: j for i, j in self.all_jobs().items() if nodes.keys() & set(j.nodes)}
        return ClusterObservation(seen_s, nodes, jobs)

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Read these jobs fresh; ids that Slurm no longer knows are absent from the answer."""
        wanted = {checked(job_id, JOB_ID, "job id") for job_id in ids}
        return self._path.jobs(wanted) if wanted else {}

    def read_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Read these nodes fresh; names that Slurm does not know are absent from the answer."""
        wanted = {checked(name, NODE_NAME, "node name") for name in names}
        return self._ahead.tell(self._signed(self._path.nodes(wanted))) if wanted else {}

    def all_jobs(self) -> dict[str, Job]:
        """Every job that Slurm knows, by id."""
        return self._path.all_jobs()

    def close(self) -> None:
        """Give back what the way of reading holds open."""
        self._path.close()
