"""A word with a guest: one program run through its agent, the answer awaited and read."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libvirt
import libvirt_qemu

from backfill.core.readiness import GuestReport, Stated, figure
from backfill.drivers.libvirt.errors import AGENT_COMMAND_TIMEOUT
from backfill.drivers.libvirt.guest.report import read_report
from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
PROVE_PROGRAM = "/usr/local/sbin/backfill-prove"
JOBS_PROGRAM = "/usr/local/sbin/backfill-jobs"
HOOK_PROGRAM = "/usr/local/sbin/backfill-devices"
# What a guest's programs print goes into reports and sentences, and so into the journal.
_MOST_OUTPUT = 65_536
_FIRST_POLL_S, _LONGEST_POLL_S = 0.005, 0.05
_AGENT_WAIT_S = 2
_SILENT = (libvirt.VIR_ERR_AGENT_UNRESPONSIVE, libvirt.VIR_ERR_AGENT_UNSYNCED, AGENT_COMMAND_TIMEOUT)
Ask = Callable[[str, dict[str, object]], Any]


def wake(ask: Ask, name: str, now_s: float, limit_s: float) -> float:
    """Set the guest's clock and make slurmd report; returns the clock's correction in seconds.

    `now_s` is the time at which this is called; what passes until the guest is asked is added.
    """
    began_s = time.monotonic()

    def program() -> list[str]:
        return [WAKE_PROGRAM, f"{now_s + time.monotonic() - began_s:.6f}"]

    output = _ask_until(ask, name, program, limit_s)
    try:
        return figure(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request to a guest to prove itself; the credential comes from the controller's munge."""

    now_s: float
    credential: str
    register: bool
    time_server: str = ""
    mounts: tuple[str, ...] = ()  # a path, with `:ro` where it need not be writable
    salt: bool = False

    def arguments(self, later_s: float) -> list[str]:
        """The program's arguments, `later_s` after the request was made."""
        return [
            f"{self.now_s + later_s:.6f}",
            *([f"server={self.time_server}"] if self.time_server else []),
            *([f"credential={self.credential}"] if self.credential else []),
            *(f"mount={mount}" for mount in self.mounts),
            *(["salt"] if self.salt else []),
            *(["register"] if self.register else []),
        ]


def prove(ask: Ask, name: str, request: ProofRequest, limit_s: float) -> tuple[GuestReport, str]:
    """Let the guest set its clock and prove itself; returns its report and its credential."""
    began_s = time.monotonic()
    asked_s = began_s

    def program() -> list[str]:
        nonlocal asked_s
        asked_s = time.monotonic()
        return [PROVE_PROGRAM, *request.arguments(asked_s - began_s)]

    output = _ask_until(ask, name, program, limit_s)
    heard_s = time.monotonic()
    # Between asking and hearing the guest read its clock once more: that bounds its offset, too.
    window = (request.now_s + asked_s - began_s, request.now_s + heard_s - began_s)
    return read_report(name, output, window)


# What Salt's module `backfill_look` does, without a minion that makes all its loaders for it.
_LOOK = """
[ "$(sha256sum </etc/backfill/stated)" = "$0  -" ] ||
    { echo "its states come to something else now than when it was made"; exit; }
while [ $# -gt 0 ]; do
    [ "$({ printf %s "$2"; cat "$1"; } | sha256sum)" = "$3  -" ] || { echo "$1 differs"; exit; }
    shift 3
done
/usr/local/sbin/backfill-stated || :
"""


def differs(ask: Ask, name: str, stated: Stated, limit_s: float) -> str:
    """The first thing in the guest that is not as its states say; empty when all is."""
    seals = [word for seal in stated.seals for word in seal]
    told = _ask_until(ask, name, lambda: ["/bin/sh", "-c", _LOOK, stated.listed, *seals], limit_s)
    return "" if told.startswith("ok ") else told or "it cannot be seen"


def hook(ask: Ask, name: str, when: str, limit_s: float) -> None:
    """Let the image's program for devices do its part; an image without one has nothing to do."""
    script = 'test ! -x "$0" || exec "$0" "$1"'
    _ask_until(ask, name, lambda: ["/bin/sh", "-c", script, HOOK_PROGRAM, when], limit_s)


def job_processes(ask: Ask, name: str, limit_s: float) -> tuple[int, int]:
    """Count the processes of Slurm jobs in the guest: (going, stopped)."""
    output = _ask_until(ask, name, lambda: [JOBS_PROGRAM], limit_s)
    words = output.split()
    if len(words) != 2 or not all(w.isdecimal() for w in words):
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
                    name,
                    f"its guest agent did not answer within {limit_s:g} s",
                    "look at the instance's console",
                ) from None
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
        said = (complaint or output)[:500]
        raise DriverError(name, f"{program} failed in the guest: {said}")
    if len(output) > _MOST_OUTPUT:
        raise BadOutputError(name, f"{program} answered {len(output)} characters")
    return output


class AgentSilentError(Exception):
    """The guest agent did not answer this time; it may be starting, or the guest is busy."""


def agent_of(domain: Any) -> Ask:
    """A function that asks the agent in the domain's guest."""

    def ask(command: str, arguments: dict[str, object]) -> Any:
        request = {"execute": command, "arguments": arguments}
        try:
            answer = libvirt_qemu.qemuAgentCommand(domain, json.dumps(request), _AGENT_WAIT_S, 0)
        except libvirt.libvirtError as error:
            if error.get_error_code() in _SILENT:
                raise AgentSilentError from error
            raise
        return json.loads(answer)["return"]

    return ask
