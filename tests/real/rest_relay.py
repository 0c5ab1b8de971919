"""Passes connections from one socket on to another; run inside a machine of a lab.

slurmrestd asks the kernel who calls, and admits only callers whose process it can see.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    """One direction until its end."""
    with source.makefile("rb", 0) as reader, target.makefile("wb", 0) as writer:
        shutil.copyfileobj(reader, writer)
    target.shutdown(socket.SHUT_WR)


def serve(outer: str, inner: str) -> None:
    """For ever; the caller kills us."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(outer + ".new")
    server.listen()
    os.rename(outer + ".new", outer)
    while True:
        client, _ = server.accept()
        target = socket.socket(socket.AF_UNIX)
        target.connect(inner)
        threading.Thread(target=pump, args=(client, target), daemon=True).start()
        threading.Thread(target=pump, args=(target, client), daemon=True).start()


if __name__ == "__main__":
    serve(*sys.argv[1:])
