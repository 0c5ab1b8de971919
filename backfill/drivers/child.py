"""A process that answers one JSON line per request; ended and started anew whenever it fails."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

_CHUNK = 1 << 20


@dataclass
class Child:
    """Safe from several threads, one request at a time. `timeout_s` bounds each.

    `subject` is what errors are about. Its first line must come by itself; `greeting` is that.
    `broken` is raised when it cannot be started, or ends.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    subject: str
    timeout_s: float
    broken: type[UnreachableError] = UnreachableError
    greeting: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _complaints: IO[bytes] | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request.

        `broken` when it cannot be started or ends, UnreachableError when it is silent,
        BadOutputError when it answers something else than a JSON object.
        """
        deadline_s = time.monotonic() + self.timeout_s
        if not self._turn.acquire(timeout=self.timeout_s):
            raise UnreachableError(self.subject, f"busy for more than {self.timeout_s:g} s")
        try:
            return self._ask(request, deadline_s)
        except DriverError:
            self._end()
            raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._turn:
            self._end()

    def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        if self._process is None:
            self._start()
            self.greeting = self._line(deadline_s)
            if "error" in self.greeting:
                raise self.broken(self.subject, str(self.greeting["error"].get("said")))
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return self._line(deadline_s)

    def _start(self) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by _end
        self._buffer.clear()
        try:
            self._process = subprocess.Popen(
                [*self.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=dict(self.env),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise self.broken(self.subject, f"cannot start {self.argv[0]} ({error.strerror})") from error

    def _line(self, deadline_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        out = process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                raise UnreachableError(self.subject, f"no answer within {self.timeout_s:g} s")
            chunk = os.read(out, _CHUNK)
            if not chunk:
                raise self._ended()
            self._buffer += chunk
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise BadOutputError(self.subject, f"cannot read its answer {line[:80]!r}") from error
        if not isinstance(answer, dict):
            raise BadOutputError(self.subject, f"cannot read its answer {line[:80]!r}")
        return answer

    def _ended(self) -> UnreachableError:
        process, complaints = self._process, self._complaints
        assert process is not None
        assert complaints is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        size = complaints.seek(0, os.SEEK_END)
        complaints.seek(max(0, size - 2000))
        lines = complaints.read().decode("utf-8", "replace").strip().splitlines()
        said = f": {lines[-1].strip()}" if lines else ""
        return self.broken(self.subject, f"it ended ({_how(process.returncode)}){said}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent is lost anyway
                        pipe.close()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None


def _how(status: int | None) -> str:
    if status is None:
        return "its pipe is closed"
    return signal.Signals(-status).name if status < 0 else f"status {status}"
