"""How a guest's agent and its emulator are asked: a request in, its answer or an error out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import libvirt
import libvirt_qemu

from backfill.drivers.libvirt.disks import Monitor, MonitorError
from backfill.drivers.libvirt.errors import AGENT_COMMAND_TIMEOUT

_AGENT_WAIT_S = 2
_SILENT = (libvirt.VIR_ERR_AGENT_UNRESPONSIVE, libvirt.VIR_ERR_AGENT_UNSYNCED, AGENT_COMMAND_TIMEOUT)
Ask = Callable[[str, dict[str, object]], Any]


class AgentSilentError(Exception):
    """The guest agent did not answer this time; it may be starting, or the guest is busy."""


def monitor_of(domain: Any) -> Monitor:
    """A function that gives the domain's emulator an order."""

    def ask(command: str, arguments: dict[str, object]) -> Any:
        request = {"execute": command, "arguments": arguments}
        answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, json.dumps(request), 0))
        if "error" in answer:
            raise MonitorError(answer["error"]["class"], answer["error"]["desc"])
        return answer["return"]

    return ask


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
