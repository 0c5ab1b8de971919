"""Awaiting conditions with a deadline, and locks that last as long as their holder lives."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Answer = TypeVar("_Answer")
POLL_S = 0.02
# A look takes at most a tenth of the time, unless it takes longer than this between two of them:
# who looks by a command, or through another server, would otherwise slow down what it waits for.
_PAUSES, _LONGEST_PAUSE_S = 9, 0.5
_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, pid


def wait_until(holds: Callable[[], _Answer], timeout_s: float, poll_s: float = POLL_S) -> _Answer:
    """Poll `holds` until its answer is true or the time is over; returns its last answer.

    `poll_s` lies between two looks at least, and more where a look is expensive.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        answer = holds()
        now_s = time.monotonic()
        if answer or now_s > deadline_s:
            return answer
        time.sleep(max(poll_s, min(_PAUSES * (now_s - began_s), _LONGEST_PAUSE_S)))


def accepts(place: str) -> bool:
    """Return True if `tcp:HOST:PORT` or `unix:PATH` accepts a connection, or `file:PATH` has something in it.

    Of several places, with blanks between them, all have to; an empty one always does.
    """
    return all(map(_accepts, place.split()))


def _accepts(place: str) -> bool:
    kind, _, where = place.partition(":")
    try:
        if kind == "tcp":
            host, _, port = where.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
        elif kind == "file":
            return Path(where).stat().st_size > 0
        else:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(where)
    except OSError:
        return False
    return True


def lock_for_life(path: Path) -> int:
    """Lock `path` until this process ends and return the handle, which must stay open.

    Children do not inherit the lock. Raises BlockingIOError when another process has it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def lock_holder(path: Path) -> int:
    """Return the pid of the process that holds the lock on `path`, 0 when nobody does. Only looks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, question))
    finally:
        os.close(handle)
    return 0 if kind == fcntl.F_UNLCK else int(pid)
