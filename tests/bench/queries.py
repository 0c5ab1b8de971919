"""What a flood of questions costs a daemon: its journal's appends and its hooks, with and without.

Clients in processes of their own ask `events` and `explain` over the daemon's socket as fast as
they are answered, of a journal with BACKFILL_RECORDS records, while one thread appends as the
daemon does and one calls as a hook does. Prints one line of JSON last; seconds, and ratios to calm.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.records import encode
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.engine.connection_limiter import Turns
from backfill.engine.listener import Listener
from backfill.engine.messages import HookCall, Message
from backfill.engine.stories import Stories
from backfill.ports.errors import DriverError
from backfill.ports.storage import Record
from tests.bench.rig import result

RECORDS = int(os.environ.get("BACKFILL_RECORDS", "300000"))
CLIENTS = int(os.environ.get("BACKFILL_CLIENTS", "8"))
_LENGTH_S = 10.0
_CLIENT = """
import json, socket, sys
asked = [{"ask": "events", "limit": 1}, {"ask": "events", "after": 1, "limit": 1000},
         {"ask": "explain", "subject": "7"}]
number = 0
while True:
    number += 1
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(sys.argv[1])
        sock.sendall(json.dumps(asked[number % 3]).encode() + b"\\n")
        while sock.recv(1 << 20): pass
    print(number, flush=True)
"""


def _filled(path: Path) -> SqliteJournal:
    journal = SqliteJournal(path)
    job = Job("7", 7, "htc", JobState.RUNNING, user="ada", name="counting", nodes=("vn1",))
    body = encode(ch.JobSeen(job, 1.0))
    for start in range(0, RECORDS, 10_000):
        some = range(start, min(start + 10_000, RECORDS))
        journal.append(Record(float(n), "change", "7" if n % 9 else "8", body) for n in some)
    return journal


def _repeated(work: Callable[[], None], stop: threading.Event, took_s: list[float]) -> None:
    while not stop.wait(0.005):
        began_s = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - began_s)


def _hook(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"backfill1 allocated job=7 nodes=bm1\n")
        sock.recv(100)


def _measured(journal: SqliteJournal, path: Path) -> dict[str, list[float]]:
    """How long appends and hooks took, for a while."""
    record = Record(1.0, "change", "x", {"t": "Tick", "now_s": 1.0})
    stop, took_s = threading.Event(), {"append": list[float](), "hook": list[float]()}
    work = {"append": lambda: journal.append([record]), "hook": lambda: _hook(path)}
    threads = [threading.Thread(target=_repeated, args=(work[n], stop, took_s[n])) for n in work]
    for thread in threads:
        thread.start()
    time.sleep(_LENGTH_S)
    stop.set()
    for thread in threads:
        thread.join()
    return took_s


@contextmanager
def _flood(path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    argv = [sys.executable, "-c", _CLIENT, str(path)]
    clients = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    try:
        yield clients
    finally:
        for client in clients:
            client.kill()


def main() -> int:
    """Measure calm, then flooded."""
    sys.setswitchinterval(0.001)  # as the daemon's
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        path = Path(name, "sock")
        journal = _filled(Path(name, "journal.db"))
        stories, turns = Stories(journal), Turns()

        def answer(body: dict[str, object], uid: int) -> dict[str, object]:
            # The last ones ask when all is over.
            with suppress(DriverError), turns.taken(60.0):
                if body["ask"] == "explain":
                    return {"story": stories.story(str(body["subject"]))}
                return stories.events(body)
            return {}

        inbox: SimpleQueue[Message] = SimpleQueue()
        listener = Listener(inbox, answer, 60.0)
        listener.listen_unix(path)

        def serve() -> None:
            while True:
                message = inbox.get()
                if isinstance(message, HookCall):
                    message.reply("ok free")

        threading.Thread(target=serve, daemon=True).start()
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        calm = _measured(journal, path)
        with _flood(path) as clients:
            flooded = _measured(journal, path)
        answers = sum(len((c.stdout.read() if c.stdout else "").splitlines()) for c in clients)
        grown_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
        listener.close()
        journal.close()
    figures: dict[str, object] = {
        "records": RECORDS,
        "clients": CLIENTS,
        "answers_per_s": answers / _LENGTH_S,
        "memory_grew_mb": grown_mb,
    }
    for what in calm:
        one, other = quantiles(calm[what], n=100)[98], quantiles(flooded[what], n=100)[98]
        figures |= {
            f"{what}_median_calm_s": median(calm[what]),
            f"{what}_p99_calm_s": one,
            f"{what}_median_flooded_s": median(flooded[what]),
            f"{what}_p99_flooded_s": other,
            f"{what}_p99_ratio": other / one,
            f"{what}_longest_flooded_s": max(flooded[what]),
        }
    result(**{k: round(v, 5) if isinstance(v, float) else v for k, v in figures.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
