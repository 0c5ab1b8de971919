"""What a flood of the web service costs the daemon's hooks, beside a flood of a server that only refuses.

A daemon with a simulated cluster runs in this process, `backfill web` in one of its own (as low in
priority as its unit has it), and the clients in others: good requests, half-open connections, large
bodies, slow readers. Meanwhile one thread calls as a hook does. Prints one line of JSON last; seconds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median, quantiles

from tests.bench.rig import result
from tests.component.living_daemon import living, parked
from tests.component.web_service import CY, Names, with_roles

CLIENTS = int(os.environ.get("BACKFILL_CLIENTS", "500"))
_LENGTH_S = float(os.environ.get("BACKFILL_SECONDS", "20"))
_CLIENT = """
import selectors, socket, sys, time
port, clients = int(sys.argv[1]), int(sys.argv[2])
head = b"Host: x\\r\\nAuthorization: Bearer " + sys.argv[3].encode() + b"\\r\\n"
kinds = [b"GET /api/v1/status HTTP/1.1\\r\\n" + head + b"\\r\\n", b"GET /api/v1/hosts HTTP/1.1\\r\\n" + head,
         b"POST /api/v1/poke HTTP/1.1\\r\\n" + head + b"Content-Length: 9999999\\r\\n\\r\\n" + b"x" * 65536,
         b"GET /metrics HTTP/1.1\\r\\n" + head + b"\\r\\n"]
chosen, number = selectors.DefaultSelector(), 0
def begin():
    global number
    sock = socket.socket(); sock.setblocking(False); sock.connect_ex(("127.0.0.1", port))
    number += 1
    chosen.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, kinds[number % 4])
for _ in range(clients): begin()
while True:
    for key, mask in chosen.select(1.0):
        sock = key.fileobj
        try:
            if mask & selectors.EVENT_WRITE:
                sock.send(key.data); chosen.modify(sock, selectors.EVENT_READ, key.data)
            elif not sock.recv(512):  # a slow reader
                raise OSError
        except OSError:
            chosen.unregister(sock); sock.close(); begin()
    time.sleep(0.005)
"""
_REFUSER = """
import socket
server = socket.create_server(("127.0.0.1", 0), backlog=128)
print(server.getsockname()[1], flush=True)
while True:
    client, _ = server.accept()
    try: client.sendall(b"HTTP/1.1 503 Busy\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    except OSError: pass
    client.close()
"""


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _hooks(path: Path) -> list[float]:
    """How long hooks of a job that is none of ours waited for their answer, for a while."""
    took_s = []
    until_s = time.monotonic() + _LENGTH_S
    while time.monotonic() < until_s:
        began_s = time.perf_counter()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"backfill1 allocated job=999999 nodes=other\n")
            sock.recv(200)
        took_s.append(time.perf_counter() - began_s)
        time.sleep(0.02)
    return took_s


def _flooded(path: Path, port: int) -> list[float]:
    with flooding(port, CY):
        return _hooks(path)


def flooding(port: int, token: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Clients who show this token: whole requests, half-open ones, large bodies, slow readers."""
    return running(sys.executable, "-c", _CLIENT, str(port), str(CLIENTS), token)


@contextmanager
def refuser() -> Iterator[int]:
    """A server that only refuses, as low in priority as the service; its port."""
    with running("nice", "-n", "10", sys.executable, "-c", _REFUSER) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def awaited(port: int) -> None:
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the web service did not begin to listen")


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> int:
    """Measure calm, against the refuser, and against the service."""
    sys.setswitchinterval(0.001)  # as the daemon's
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        living(Path(name), with_roles(), tokens=Names()) as daemon,
    ):
        parked(daemon)
        calm = _hooks(daemon.socket)
        with refuser() as port:
            refused = _flooded(daemon.socket, port)
        port = free_port()
        listen = ("--listen", f"127.0.0.1:{port}", "--socket", str(daemon.socket))
        with running("nice", "-n", "10", sys.executable, "-m", "backfill", "web", *listen) as web:
            awaited(port)
            threading.Event().wait(1.0)  # let its start be over
            flooded = _flooded(daemon.socket, port)
            most_mb, lives = memory_mb(web.pid), web.poll() is None
    figures: dict[str, object] = {"clients": CLIENTS, "web_memory_mb": round(most_mb, 1), "web_lives": lives}
    for what, took_s in (("calm", calm), ("refuser", refused), ("web", flooded)):
        figures[f"hook_median_{what}_s"] = round(median(took_s), 5)
        figures[f"hook_p95_{what}_s"] = round(quantiles(took_s, n=20)[18], 5)
    figures["median_ratio_to_refuser"] = round(median(flooded) / median(refused), 3)
    result(**figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
