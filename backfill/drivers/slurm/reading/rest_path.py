"""Reads jobs from slurmrestd over its local socket; nodes through scontrol.

slurmrestd lists nodes that never registered only when asked for them, and then (26.05) calls MIXED
nodes ALLOCATED; without them a node of ours that waits for its slurmd would look deleted.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Collection
from pathlib import Path

from backfill.core.model.cluster import Job, Node
from backfill.drivers.slurm.commands import CONTROLLER, SlurmTools
from backfill.drivers.slurm.reading.paths import BrokenPathError
from backfill.drivers.slurm.reading.records import TELLING, jobs_of, read_document
from backfill.drivers.slurm.reading.text_path import FEW, TextPath
from backfill.ports.errors import BadOutputError, NotFoundError, UnreachableError

SUBJECT = "slurmrestd"
# Newest first: every release speaks its own and the few before it (26.05 to 22.05). But v0.0.45 does not
# say whether a job is exclusive.
VERSIONS = (TELLING, *(f"v0.0.{minor}" for minor in (45, *range(43, 37, -1))))
_DENIED, _MISSING = (401, 403, 511), 404


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class RestPath:
    """See ReadPath. `socket` is slurmrestd's, which must admit the daemon's user."""

    name = "rest"

    def __init__(self, commands: SlurmTools, socket_path: Path) -> None:
        self._text = TextPath(commands)
        self.socket = socket_path
        self._timeout_s = commands.timeout_s
        self._version = ""

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """scontrol and slurmrestd, one after the other."""
        return self._text.all_nodes(), self.all_jobs()

    def all_jobs(self) -> dict[str, Job]:
        """See ReadPath."""
        return self._jobs("jobs/", CONTROLLER)

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        if len(ids) > FEW or not all(job_id.isdigit() for job_id in ids):
            # A task or component has a number of its own that its id does not tell.
            return {i: job for i, job in self.all_jobs().items() if i in ids}
        found: dict[str, Job] = {}
        for job_id in sorted(ids):
            with contextlib.suppress(NotFoundError):
                jobs = self._jobs(f"job/{job_id}", f"job {job_id}")
                found.update((i, job) for i, job in jobs.items() if i == job_id)
        return found

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        return {i: j for i, j in self.all_jobs().items() if not set(names).isdisjoint(j.nodes)}

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """See ReadPath."""
        return self._text.nodes(names)

    def close(self) -> None:
        """Nothing is kept open; another slurmrestd may speak another version."""
        self._version = ""

    def _jobs(self, what: str, subject: str) -> dict[str, Job]:
        deadline_s = time.monotonic() + self._timeout_s
        version = self._version or self._greet(deadline_s)
        status, body = self._get(f"/slurm/{version}/{what}", deadline_s)
        if status == _MISSING and not _is_json(body):
            self._version = ""
            raise BrokenPathError(SUBJECT, f"it has no /slurm/{version}/{what} any more")
        return jobs_of(read_document(body, SUBJECT, subject), SUBJECT, time.time())

    def _greet(self, deadline_s: float) -> str:
        """Find the newest version that both sides speak."""
        for version in VERSIONS:
            status, _ = self._get(f"/slurm/{version}/ping/", deadline_s)
            if status != _MISSING:
                self._version = version
                return version
        raise BrokenPathError(SUBJECT, f"it speaks none of the versions {min(VERSIONS)} to {max(VERSIONS)}")

    def _get(self, path: str, deadline_s: float) -> tuple[int, str]:
        left_s = max(0.01, deadline_s - time.monotonic())
        connection = _Connection(self.socket, left_s)
        try:
            connection.request("GET", path)
            sock = connection.sock  # http.client lets go of it when the answer is the last one
            response = connection.getresponse()
            body = _body(response, sock, deadline_s)
        except TimeoutError:
            raise UnreachableError(SUBJECT, f"no answer to {path} within {self._timeout_s:g} s") from None
        except http.client.HTTPException as error:
            raise BadOutputError(SUBJECT, f"its answer is no HTTP: {error!r}") from error
        except OSError as error:
            raise BrokenPathError(
                SUBJECT,
                f"cannot reach it at {self.socket} ({error.strerror or error})",
                "start slurmrestd with this socket, or correct slurm.rest_socket",
            ) from error
        finally:
            connection.close()
        if response.status in _DENIED:
            raise BrokenPathError(
                SUBJECT,
                f"it does not admit us ({response.status} {body[:60]})",
                "run slurmrestd with -a rest_auth/local as the daemon's user",
            )
        return response.status, body


def _body(response: http.client.HTTPResponse, sock: socket.socket, deadline_s: float) -> str:
    """Read the whole answer within the limit, however slowly it trickles."""
    parts = []
    while part := response.read1(1 << 20):
        parts.append(part)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if sock.fileno() >= 0:  # closed with the end of the answer
            sock.settimeout(left_s)
    return b"".join(parts).decode("utf-8", "replace")


def _is_json(body: str) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True
