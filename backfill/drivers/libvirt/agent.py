"""Waking a guest after a pause: one program run through the guest agent, its answer awaited."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

from backfill.drivers.libvirt.asking import AgentSilentError, Ask
from backfill.ports import BadOutputError, DriverError, UnreachableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
JOBS_PROGRAM = "/usr/local/sbin/backfill-jobs"
_FIRST_POLL_S, _LONGEST_POLL_S = 0.005, 0.05


def wake(ask: Ask, name: str, now_s: float, limit_s: float) -> float:
    """Set the guest's clock and make slurmd report; returns the clock's correction in seconds.

    `now_s` is the time at which this is called; what passes until the guest is asked is added.
    """
    began_s = time.monotonic()

    def program() -> list[str]:
        return [WAKE_PROGRAM, f"{now_s + time.monotonic() - began_s:.6f}"]

    output = _ask_until(ask, name, program, limit_s)
    try:
        return float(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None


def job_processes(ask: Ask, name: str, limit_s: float) -> tuple[int, int]:
    """Count the processes of Slurm jobs in the guest: (going, stopped)."""
    output = _ask_until(ask, name, lambda: [JOBS_PROGRAM], limit_s)
    words = output.split()
    if len(words) != 2 or not all(w.isdigit() for w in words):
        raise BadOutputError(name, f"{JOBS_PROGRAM} answered '{output[:80]}'")
    return int(words[0]), int(words[1])


def _ask_until(ask: Ask, name: str, program: Callable[[], list[str]], limit_s: float) -> str:
    """Run the program, again while the agent is silent: running it twice does no harm."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return _run(ask, name, program(), deadline_s)
        except AgentSilentError:
            if time.monotonic() > deadline_s:
                raise UnreachableError(
                    name, f"its guest agent did not answer within {limit_s:g} s",
                    "look at the instance's console",
                ) from None  # fmt: skip
            time.sleep(_LONGEST_POLL_S)


def _run(ask: Ask, name: str, argv: list[str], deadline_s: float) -> str:
    """Run a program in the guest and return what it wrote; AgentSilentError after the deadline."""
    started = ask("guest-exec", {"path": argv[0], "arg": argv[1:], "capture-output": True})
    poll_s = _FIRST_POLL_S
    while True:
        status = ask("guest-exec-status", {"pid": started["pid"]})
        if status["exited"]:
            return _output(status, name, argv[0])
        if time.monotonic() > deadline_s:
            raise AgentSilentError
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, _LONGEST_POLL_S)


def _output(status: dict[str, Any], name: str, program: str) -> str:
    output = base64.b64decode(status.get("out-data", "")).decode(errors="replace").strip()
    complaint = base64.b64decode(status.get("err-data", "")).decode(errors="replace").strip()
    if status.get("exitcode") != 0:
        raise DriverError(name, f"{program} failed in the guest: {complaint or output}")
    return output
