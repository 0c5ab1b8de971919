"""Waking a guest after a pause: one program run through the guest agent, its answer awaited."""

from __future__ import annotations

import base64
import time
from typing import Any

from backfill.drivers.libvirt.hypervisor import AgentSilentError, Ask
from backfill.ports import BadOutputError, DriverError, UnreachableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
JOBS_PROGRAM = "/usr/local/sbin/backfill-jobs"
_FIRST_POLL_S, _LONGEST_POLL_S = 0.005, 0.05


def wake(ask: Ask, name: str, now_s: float, limit_s: float) -> float:
    """Set the guest's clock and make slurmd report; returns the clock's correction in seconds.

    `now_s` is the time at which this is called; what passes until the guest is asked is added.
    A silent agent is asked again until `limit_s` is over: running the program twice does no harm.
    """
    began_s = time.monotonic()
    while True:
        moment_s = now_s + time.monotonic() - began_s
        try:
            output = _run(ask, name, [WAKE_PROGRAM, f"{moment_s:.6f}"], began_s + limit_s)
            return _number(output, name)
        except AgentSilentError:
            if time.monotonic() > began_s + limit_s:
                raise UnreachableError(
                    name, f"its guest agent did not answer within {limit_s:g} s",
                    "look at the instance's console",
                ) from None  # fmt: skip
            time.sleep(_LONGEST_POLL_S)


def job_processes(ask: Ask, name: str, limit_s: float) -> tuple[int, int]:
    """Count the processes of Slurm jobs in the guest: (going, stopped)."""
    try:
        output = _run(ask, name, [JOBS_PROGRAM], time.monotonic() + limit_s)
    except AgentSilentError:
        raise UnreachableError(name, f"its agent did not answer within {limit_s:g} s") from None
    words = output.split()
    if len(words) != 2 or not all(w.isdigit() for w in words):
        raise BadOutputError(name, f"{JOBS_PROGRAM} answered '{output[:80]}'")
    return int(words[0]), int(words[1])


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


def _number(output: str, name: str) -> float:
    try:
        return float(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None
