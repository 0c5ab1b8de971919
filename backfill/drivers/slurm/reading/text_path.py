"""Reads nodes and jobs from what squeue and scontrol print; works with every release."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection

from backfill.core.model.cluster import Job, Node
from backfill.core.model.quantities import fold_hostlist
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.parse import JobFormat, Records, read_node_records, read_nodes
from backfill.ports.errors import DriverError, NotFoundError

# -F shows nodes that have not registered yet; they are FUTURE until they do.
SHOW_NODES = ("scontrol", "-F", "-o", "show", "node")
# --local: never the jobs of a federation's other clusters. Not --array: of tasks with a step, such
# as 1-9:2, that leaves out the last (22.05 to 26.05); and one line for ten thousand is quicker.
_SHOW_JOBS = ("squeue", "--noheader", "--all", "--local", "--noconvert", "-t", "all")
# Up to so many jobs it is quicker to ask for each than to read all.
FEW = 3


class TextPath:
    """See ReadPath."""

    name = "text"

    def __init__(self, commands: SlurmTools) -> None:
        self._commands = commands
        self._format = JobFormat(secrets.token_hex(6))
        # Otherwise the list of an array's waiting tasks is cut after 64 characters.
        self._squeue_env = {"SQUEUE_FORMAT2": self._format.text, "SLURM_BITSTR_LEN": "0"}
        # The last answers by record; replaced as a whole, so that threads need no lock.
        self._known: Records = {}
        self._printed: tuple[str, dict[str, Job]] = ("", {})
        self._known_nodes: dict[str, Node] = {}

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """Both tools at once."""
        asked = self._commands.start(SHOW_NODES)
        try:
            jobs = self.all_jobs()
        except DriverError:
            asked.kill()
            raise
        return self._changed(asked.result()), jobs

    def all_nodes(self) -> dict[str, Node]:
        """Every node, those that never registered included, by name."""
        return self._changed(self._commands.run(SHOW_NODES))

    def _changed(self, output: str) -> dict[str, Node]:
        self._known_nodes = records = read_node_records(output, self._known_nodes)
        return {node.name: node for node in records.values()}

    def all_jobs(self) -> dict[str, Job]:
        """See ReadPath."""
        output = self._commands.run(_SHOW_JOBS, env=self._squeue_env)
        printed, same = self._printed
        if output == printed:
            return same  # a quiet cluster prints the same text as a whole
        self._known = records = self._format.read(output, self._known, time.time())
        found = {job.id: job for jobs in records.values() for job in jobs}
        self._printed = (output, found)
        return found

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        if len(ids) > FEW:
            # squeue itself reads all jobs as soon as it is asked for more than one.
            return {i: job for i, job in self.all_jobs().items() if i in ids}
        found: dict[str, Job] = {}
        for job_id in sorted(ids):
            with contextlib.suppress(NotFoundError):
                # Asking for one task or component may answer with its siblings as well.
                jobs = self._squeue("-j", job_id)
                found.update((job.id, job) for job in jobs if job.id == job_id)
        return found

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        return {job.id: job for job in self._squeue("-w", fold_hostlist(names))}

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """See ReadPath."""
        try:
            output = self._commands.run([*SHOW_NODES, fold_hostlist(names)])
        except NotFoundError:
            if len(names) == 1:
                return {}
            # One unknown name fails the call, so the others are read with all the rest.
            output = self._commands.run(SHOW_NODES)
        return {name: node for name, node in read_nodes(output).items() if name in names}

    def close(self) -> None:
        """Nothing is kept open."""

    def _squeue(self, *chosen: str) -> list[Job]:
        output = self._commands.run([*_SHOW_JOBS, *chosen], env=self._squeue_env)
        records = self._format.read(output, {}, time.time())
        return [job for jobs in records.values() for job in jobs]
