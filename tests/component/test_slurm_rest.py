"""slurmrestd's answers and silences, from a socket that says what the test wants."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.paths import BrokenPathError
from backfill.drivers.slurm.reading.rest_path import RestPath
from backfill.ports.errors import BadOutputError, UnreachableError
from tests.unit.test_slurm_records import OLD, new

ERROR_404 = {"errors": [{"error": "Invalid job id specified", "error_number": 2017}], "jobs": []}


def http(status: int, body: str) -> bytes:
    """A whole answer that ends with its connection, as slurmrestd's."""
    data = body.encode()
    head = f"HTTP/1.1 {status} X\r\nConnection: Close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@dataclass
class Server:
    """Answers by the path's end; silent where it has nothing to say."""

    path: Path
    answers: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            wanted = client.recv(4096).split(b" ")[1].decode()
            self.asked.append(wanted)
            answer = next((a for end, a in self.answers.items() if wanted.endswith(end)), None)
            if answer is None:
                self.held.append(client)
                continue
            client.sendall(answer)
            client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "rest.sock")
    made.answers = {"/slurm/v0.0.42/ping/": http(200, "{}"), "/ping/": http(404, "no such version")}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(made.path))
    listener.listen()
    thread = threading.Thread(target=made.serve, args=(listener,))
    thread.start()
    yield made
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for client in made.held:
        client.close()


def path_of(server: Server, timeout_s: float = 5.0) -> RestPath:
    return RestPath(SlurmTools(timeout_s=timeout_s), server.path)


def listing(*entries: dict[str, Any]) -> bytes:
    return http(200, json.dumps({"jobs": list(entries), "errors": []}))


def test_the_best_common_version_is_found_once(server: Server) -> None:
    """The last that tells exclusive jobs, then from the newest on; later questions go straight to it."""
    server.answers["/jobs/"] = listing(new(OLD))
    path = path_of(server)
    assert path.all_jobs().keys() == {"7"}
    assert path.jobs_on(["vn2"]).keys() == {"7"}
    assert [wanted.split("/")[2] for wanted in server.asked] == [
        "v0.0.44",
        "v0.0.45",
        "v0.0.43",
        "v0.0.42",
        "v0.0.42",
        "v0.0.42",
    ]


def test_single_jobs(server: Server) -> None:
    """One question each; unknown ones are absent; tasks of arrays come from the whole."""
    server.answers |= {
        "/job/7": listing(new(OLD)),
        "/job/99": http(404, json.dumps(ERROR_404)),
        "/jobs/": listing(new({**OLD, "array_job_id": 7, "array_task_string": "1-2"})),
    }
    path = path_of(server)
    assert path.jobs(["7", "99"]).keys() == {"7"}
    assert path.jobs(["7_2"]).keys() == {"7_2"}


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (http(200, "gar\x00bage"), BadOutputError, "no JSON"),
        (http(200, '{"jobs": 3}'), BadOutputError, "no list of jobs"),
        (b"SSH-2.0-OpenSSH\r\n", BadOutputError, "no HTTP"),
        (b"", BadOutputError, "no HTTP"),
        (http(200, "x" * 99)[:-50], BadOutputError, "no HTTP|no JSON"),
        (http(401, "Authentication failure"), BrokenPathError, "does not admit us"),
        (http(404, "gone"), BrokenPathError, "any more"),
        (
            http(500, '{"errors": [{"error": "Unable to contact slurm controller"}]}'),
            UnreachableError,
            "Unable to contact",
        ),
    ],
)
def test_every_failure_is_a_typed_error(
    server: Server, answer: bytes, error: type[Exception], said: str
) -> None:
    """And the next good answer is read."""
    server.answers["/jobs/"] = answer
    path = path_of(server)
    with pytest.raises(error, match=said):
        path.all_jobs()
    server.answers["/jobs/"] = listing(OLD)
    assert path.all_jobs().keys() == {"7"}


def test_silence_ends(server: Server) -> None:
    """Before an answer, and in the middle of one that promised more."""
    with pytest.raises(UnreachableError, match="no answer"):
        path_of(server, timeout_s=0.2).all_jobs()


def test_nobody_there(tmp_path: Path) -> None:
    """The sentence names the socket and the key to correct."""
    path = RestPath(SlurmTools(), tmp_path / "rest.sock")
    with pytest.raises(BrokenPathError, match=r"rest\.sock.*correct slurm\.rest_socket"):
        path.all_jobs()


def test_none_of_our_versions(server: Server) -> None:
    """Said in one sentence with those that there are."""
    server.answers = {"/ping/": http(404, "no such version")}
    with pytest.raises(BrokenPathError, match=r"v0\.0\.38 to v0\.0\.45"):
        path_of(server).all_jobs()
