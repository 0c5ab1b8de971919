"""The line to the process in which Salt runs: one JSON request there, one JSON answer back."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from backfill.drivers.salt.results import problem_in
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

_log = logging.getLogger(__name__)
_INSIDE = Path(__file__).with_name("inside.py")
_START_S = 60.0

Answer = dict[str, Any]


class SaltLink:
    """Starts the process with the first request, and again after it died. Safe from many threads.

    `on_event(minion, problem)` is called from the reading thread: a hint, nothing more. `problem`:
    why states that it ran by itself did not succeed; mostly empty.
    """

    def __init__(self, python: str, config: str, on_event: Callable[[str, str], None] | None = None) -> None:
        self._argv = [python, str(_INSIDE), config]
        self._on_event = on_event
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, SimpleQueue[Answer]] = {}
        self._numbers = itertools.count(1)

    def ask(self, verb: str, patience_s: float, **arguments: object) -> Answer:
        """Return the answer to one request. UnreachableError when none comes in time."""
        number, reply = next(self._numbers), SimpleQueue[Answer]()
        self._waiting[number] = reply
        try:
            with self._lock:
                process = self._started()
                assert process.stdin is not None
                process.stdin.write(json.dumps({"number": number, "verb": verb, **arguments}) + "\n")
                process.stdin.flush()
            answer = reply.get(timeout=patience_s)
        except Empty:
            raise UnreachableError(
                "salt",
                f"'{verb}' was not answered within {patience_s:g} s",
                "see that the master runs, and its log",
            ) from None
        except (OSError, ValueError) as error:  # its end, or our end of the line, is closed
            raise UnreachableError("salt", f"its process cannot be asked: {error}") from error
        finally:
            del self._waiting[number]
        if "error" in answer:
            raise DriverError("salt", f"'{verb}' failed: {answer['error']}", "see the master's log")
        return answer

    def warm(self) -> None:
        """Start the process beside the caller, so that the first request need not wait for it."""

        def work() -> None:
            # What is wrong is told to whoever asks for something.
            with contextlib.suppress(DriverError), self._lock:
                self._started()

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """End the process: it goes when its input ends."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        try:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise DriverError(
                "salt",
                f"{self._argv[0]} cannot be run: {error.strerror}",
                "set salt.python to the interpreter that has Salt",
            ) from error
        greeting = SimpleQueue[str]()
        threading.Thread(target=self._read, args=(process, greeting), daemon=True).start()
        try:
            refused = greeting.get(timeout=_START_S)
        except Empty:
            refused = f"it said nothing for {_START_S:g} s"
        if refused:
            process.kill()
            if refused.startswith("PermissionError"):
                raise RefusedError(
                    "salt",
                    refused.partition("] ")[2] or refused,
                    "run this as root, or as the user of Salt's master",
                )
            raise DriverError(
                "salt",
                f"{self._argv[0]} did not start Salt: {refused}",
                "see the section salt of the policy file",
            )
        self._process = process
        return process

    def _read(self, process: subprocess.Popen[str], greeting: SimpleQueue[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    self._take(json.loads(line), greeting)
                except Exception as error:  # noqa: BLE001  a minion's word, or a hint, must not end the line
                    # The line itself may have a key in it.
                    _log.warning("what Salt's process says cannot be used: %s", error)
        process.wait()  # whoever asks next sees that it is dead
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        greeting.put("it ended at once")
        if self._process is not process:
            return
        for reply in list(self._waiting.values()):
            reply.put({"error": "Salt's process ended"})

    def _take(self, line: Answer, greeting: SimpleQueue[str]) -> None:
        if "ready" in line:
            greeting.put("")
        elif "refused" in line:
            greeting.put(line["refused"])
        elif "event" in line:
            if self._on_event is not None:
                problem = problem_in(line["return"]) or "it failed" if line["failed"] else ""
                self._on_event(line["id"], problem)
        elif (reply := self._waiting.get(line["number"])) is not None:
            reply.put(line)
