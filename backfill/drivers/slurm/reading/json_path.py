"""Reads nodes and jobs from the JSON that squeue and scontrol print."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection

from backfill.core.model.cluster import Job, Node
from backfill.core.model.quantities import fold_hostlist
from backfill.drivers.slurm.commands import CONTROLLER, SlurmTools
from backfill.drivers.slurm.reading.records import TELLING, jobs_of, nodes_of, read_document
from backfill.drivers.slurm.reading.text_path import FEW, TextPath
from backfill.ports.errors import DriverError, NotFoundError

_SHOW_JOBS = ("--all", "--local", "-t", "all")
_SHOW_NODES = ("scontrol", "-F", "--json", "show", "node")
# How an array's waiting tasks are listed must not be cut short.
_ENV = {"SLURM_BITSTR_LEN": "0"}
# Older tools have no JSON for nodes that never registered.
_OLDEST_NODES = (23, 2)
# Releases whose usual version does not tell all that we ask for, and that still have the one that does.
_TELLS_LESS = ((26, 5), (26, 11))


class JsonPath:
    """See ReadPath. Slower than text by far; the last resort where its columns have changed."""

    name = "json"

    def __init__(self, commands: SlurmTools) -> None:
        self._commands = commands
        self._text = TextPath(commands)

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """Both tools at once."""
        if not self._has_nodes:
            return self._text.all_nodes(), self.all_jobs()
        asked = self._commands.start(_SHOW_NODES)
        try:
            jobs = self.all_jobs()
        except DriverError:
            asked.kill()
            raise
        return nodes_of(read_document(asked.result(), "scontrol", CONTROLLER), "scontrol"), jobs

    def all_jobs(self) -> dict[str, Job]:
        """See ReadPath."""
        return self._squeue(CONTROLLER)

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        if len(ids) > FEW:
            return {i: job for i, job in self.all_jobs().items() if i in ids}
        found: dict[str, Job] = {}
        for job_id in sorted(ids):
            with contextlib.suppress(NotFoundError):
                # 22.05 answers with all jobs whatever it is asked for.
                jobs = self._squeue(f"job {job_id}", "-j", job_id)
                found.update((i, job) for i, job in jobs.items() if i == job_id)
        return found

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        jobs = self._squeue(CONTROLLER, "-w", fold_hostlist(names))
        return {i: job for i, job in jobs.items() if not set(names).isdisjoint(job.nodes)}

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """See ReadPath."""
        if not self._has_nodes:
            return self._text.nodes(names)
        output = self._commands.run([*_SHOW_NODES, fold_hostlist(names)])
        nodes = nodes_of(read_document(output, "scontrol", CONTROLLER), "scontrol")
        return {name: node for name, node in nodes.items() if name in names}

    def close(self) -> None:
        """Nothing is kept open."""

    def _squeue(self, subject: str, *chosen: str) -> dict[str, Job]:
        oldest, newest = _TELLS_LESS
        way = f"--json={TELLING}" if oldest <= self._release <= newest else "--json"
        output = self._commands.run(["squeue", way, *_SHOW_JOBS, *chosen], subject, env=_ENV)
        return jobs_of(read_document(output, "squeue", subject), "squeue", time.time())

    @property
    def _has_nodes(self) -> bool:
        """Return True if scontrol can print JSON of nodes."""
        return self._release >= _OLDEST_NODES

    @property
    def _release(self) -> tuple[int, int]:
        """Return the tools' own release, which is not the controller's; one that is not known is new.

        It is asked for anew each time: tools are upgraded under a daemon that runs.
        """
        release = re.search(r"(\d+)\.(\d+)", self._commands.run(["scontrol", "--version"]))
        return (99, 0) if release is None else (int(release[1]), int(release[2]))
