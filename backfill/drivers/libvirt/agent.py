"""Waking a guest after a pause: one program run through the guest agent, its answer awaited."""

from __future__ import annotations

import base64
import time
from typing import Any

from backfill.drivers.libvirt.hypervisor import AgentSilentError, Ask
from backfill.ports import BadOutputError, DriverError, UnreachableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
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
            return _run(ask, name, f"{moment_s:.6f}", began_s + limit_s)
        except AgentSilentError:
            if time.monotonic() > began_s + limit_s:
                raise UnreachableError(
                    name, f"its guest agent did not answer within {limit_s:g} s",
                    "look at the instance's console",
                ) from None  # fmt: skip
            time.sleep(_LONGEST_POLL_S)


def _run(ask: Ask, name: str, moment: str, deadline_s: float) -> float:
    started = ask("guest-exec", {"path": WAKE_PROGRAM, "arg": [moment], "capture-output": True})
    poll_s = _FIRST_POLL_S
    while True:
        status = ask("guest-exec-status", {"pid": started["pid"]})
        if status["exited"]:
            return _correction(status, name)
        if time.monotonic() > deadline_s:
            raise AgentSilentError
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, _LONGEST_POLL_S)


def _correction(status: dict[str, Any], name: str) -> float:
    output = base64.b64decode(status.get("out-data", "")).decode(errors="replace").strip()
    complaint = base64.b64decode(status.get("err-data", "")).decode(errors="replace").strip()
    if status.get("exitcode") != 0:
        raise DriverError(name, f"{WAKE_PROGRAM} failed in the guest: {complaint or output}")
    try:
        return float(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None
