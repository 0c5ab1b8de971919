"""Counts what jobs really did: a collector of their lines, and the check that nothing went wrong.

A counting job opens one connection and sends "JOB RESTART i TIME HOST" for i = 1..COUNT, then
"JOB RESTART end TIME HOST". The collector appends the time each line reached this kernel and the
number of the connection: "RECEIVED CONNECTION JOB RESTART i TIME HOST". The kernel's time, because
a collector that waits for a processor must not make a job look as if it had spoken later.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO

from backfill.lab.spec import CONTROLLER_ADDRESS, TALLY_PORT

FindingKind = Literal["gap", "duplicate", "two connections", "ended twice", "never ended", "garbage"]


# socket(7), SO_TIMESTAMPNS, which Python does not name; on TCP the time of the last byte returned.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")


@dataclass(frozen=True, slots=True)
class TallyFinding:
    """Something that must not happen to a counting job; `detail` is one sentence."""

    job: str
    kind: FindingKind
    detail: str


@dataclass(slots=True)
class _Run:
    """One run (job, restart) as its lines arrive; a requeued job starts from 1 as a new run."""

    last: int = 0
    ends: int = 0
    connections: dict[str, None] = field(default_factory=dict)


def check_tally(lines: Iterable[str]) -> list[TallyFinding]:
    """Everything wrong in a tally log, in order of appearance; an empty list means all is well.

    A job may be requeued: then its restart count rises and it counts from 1 again; the earlier run
    needs no end, but must not say another word.
    """
    findings: list[TallyFinding] = []
    runs: dict[tuple[str, int], _Run] = defaultdict(_Run)
    newest: dict[str, int] = {}
    for line in lines:
        words = line.split()
        if len(words) != 7 or not words[3].isdigit():
            findings.append(TallyFinding("?", "garbage", f"cannot read {line.strip()!r}"))
            continue
        _, connection, job, restart_text, item, _, host = words
        restart = int(restart_text)
        if restart < newest.get(job, 0):
            text = f"run {restart} still spoke ({item} from {host}) after run {newest[job]} began"
            findings.append(TallyFinding(job, "two connections", text))
        newest[job] = max(restart, newest.get(job, 0))
        findings += _check_line(job, runs[job, restart], connection, item)
    for job, restart in sorted(newest.items()):
        if not runs[job, restart].ends:
            text = f"run {restart} stopped at {runs[job, restart].last}"
            findings.append(TallyFinding(job, "never ended", text))
    return findings


def _check_line(job: str, run: _Run, connection: str, item: str) -> list[TallyFinding]:
    found: list[TallyFinding] = []
    if connection not in run.connections:
        run.connections[connection] = None
        if len(run.connections) > 1:
            found.append(TallyFinding(job, "two connections", f"a second one opened at item {item}"))
    if item == "end":
        run.ends += 1
        if run.ends > 1:
            found.append(TallyFinding(job, "ended twice", f"the end was sent {run.ends} times"))
    elif not item.isdigit():
        found.append(TallyFinding(job, "garbage", f"item {item!r} is no number"))
    elif int(item) <= run.last:
        found.append(TallyFinding(job, "duplicate", f"{item} came after {run.last}"))
    else:
        if int(item) != run.last + 1:
            found.append(TallyFinding(job, "gap", f"{item} came after {run.last}"))
        run.last = int(item)
    return found


class Collector:
    """Listens on one address and appends every received line to `log`. Single-threaded."""

    def __init__(self, address: tuple[str, int], log: TextIO) -> None:
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._server = socket.create_server(address, backlog=128)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._partial: dict[socket.socket, bytes] = {}
        self._numbers: dict[socket.socket, int] = {}
        self._count = 0

    @property
    def port(self) -> int:
        """The port that was bound, for those who asked for port 0."""
        port: int = self._server.getsockname()[1]
        return port

    def step(self, timeout_s: float | None = None) -> None:
        """Handle what has arrived, waiting at most `timeout_s` for something to arrive."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._server:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._receive(key.fileobj)

    def close(self) -> None:
        """Close every connection and the selector."""
        for client in (*self._partial, self._server):
            client.close()
        self._selector.close()

    def _accept(self) -> None:
        client, _ = self._server.accept()
        self._count += 1
        self._partial[client] = b""
        self._numbers[client] = self._count
        client.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._selector.register(client, selectors.EVENT_READ)

    def _receive(self, client: socket.socket) -> None:
        arrived_s = time.time()
        try:
            data, extra, _, _ = client.recvmsg(65536, socket.CMSG_SPACE(_TIMESPEC.size))
        except OSError:
            data, extra = b"", []
        if not data:
            self._selector.unregister(client)
            del self._partial[client], self._numbers[client]
            client.close()
            return
        for level, kind, value in extra:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                arrived_s = seconds + nanoseconds / 1e9
        *lines, self._partial[client] = (self._partial[client] + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            self._log.write(f"{arrived_s:.6f} {self._numbers[client]} {text}\n")
        self._log.flush()


def main(log: str) -> int:
    """Collect until killed."""
    with Path(log).open("a") as stream:
        collector = Collector((CONTROLLER_ADDRESS, TALLY_PORT), stream)
        while True:
            collector.step()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
