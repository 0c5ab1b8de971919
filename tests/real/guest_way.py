"""Plays ssh for guests of the test cloud: guest_way.py URI ADDRESS PROGRAM [WORD…], by their agent.

A site's own way into its guests is the policy file's openstack.guest.command. Exit status 255, as
of ssh: the guest cannot be reached.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

import libvirt
import libvirt_qemu

NO_WAY_IN = 255


def ask(domain: libvirt.virDomain, command: str, **arguments: Any) -> dict[str, Any]:
    """One question to the guest's agent."""
    request = json.dumps({"execute": command, "arguments": arguments})
    answer = json.loads(libvirt_qemu.qemuAgentCommand(domain, request, 5, 0))["return"]
    return dict(answer)


def run(uri: str, address: str, program: str, *words: str) -> int:
    """Run it in the guest that has this address; its output and exit status are ours."""
    connection = libvirt.open(uri)
    domains = [
        d
        for d in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_RUNNING)
        if f'address="{address}"' in d.XMLDesc().replace("'", '"')
    ]
    if not domains:
        sys.stderr.write(f"no guest has the address {address}\n")
        return NO_WAY_IN
    try:
        given = base64.b64encode(sys.stdin.buffer.read()).decode()
        started = ask(
            domains[0],
            "guest-exec",
            path=program,
            arg=list(words),
            **{"capture-output": True, "input-data": given},
        )
        while not (done := ask(domains[0], "guest-exec-status", pid=started["pid"]))["exited"]:
            time.sleep(0.02)
    except libvirt.libvirtError as error:
        sys.stderr.write(f"{error}\n")
        return NO_WAY_IN
    sys.stdout.write(base64.b64decode(done.get("out-data", "")).decode())
    sys.stderr.write(base64.b64decode(done.get("err-data", "")).decode())
    return int(done["exitcode"])


if __name__ == "__main__":
    raise SystemExit(run(*sys.argv[1:]))
