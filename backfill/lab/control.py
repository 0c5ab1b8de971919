"""Asks a machine or the supervisor over its unix socket: one JSON line there, one JSON line back."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backfill.lab.spec import LabError


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Name `path` so that it fits into a unix socket address (108 bytes) however deep it lies."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen(path: Path) -> socket.socket:
    """Open a listening unix socket at `path`."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    path.unlink(missing_ok=True)
    with short_path(path) as name:
        server.bind(name)
    server.listen(64)
    return server


def ask(path: Path, request: dict[str, Any], timeout_s: float = 240.0) -> dict[str, Any]:
    """Send `request` and return the answer; LabError if the machine is gone or refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_s)
            with short_path(path) as name:
                client.connect(name)
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile() as answers:
                line = answers.readline()
    except OSError as error:
        raise LabError(f"machine {path.stem} does not answer: {error}") from error
    if not line:
        raise LabError(f"machine {path.stem} ended while it was asked")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise LabError(f"{path.stem}: {answer['error']}")
    return answer


def serve(client: socket.socket, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read one request from `client` and answer it; a client that leaves early is ignored."""
    try:
        client.settimeout(30)
        with client, client.makefile("rwb") as stream:
            told = answer(json.loads(stream.readline() or b"{}"))
            stream.write(json.dumps(told).encode() + b"\n")
    except (OSError, ValueError):
        return
