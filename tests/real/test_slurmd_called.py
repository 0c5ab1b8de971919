"""A slurmd that is called again while it starts itself anew, as newer ones do at each call: it lives."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator

import pytest

from backfill.lab import roots
from tests.real.daemon_rig import PAUSE, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# So many calls in a row reach a slurmd in every state of its start.
_CALLS = 60
_STARTS = "grep -c 'slurmd started' /var/log/slurm/slurmd.log"


@pytest.fixture(scope="module", params=roots.SUITES)
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("called", slurm_version=request.param) as rig:
        yield rig


def test_it_outlives_calls_in_a_row(rig: DaemonRig) -> None:
    """Its node answers Slurm afterwards, and its job goes on."""
    rig.restart(ladder=[PAUSE], limits={"max_instances": 1})
    low = rig.low()
    name, host = rig.where(low)
    for _ in range(_CALLS):
        in_guest(rig, host, name, f"/usr/local/sbin/backfill-wake {time.time():.6f}")
    rig.until(lambda: int(in_guest(rig, host, name, _STARTS)) > 2, what="a slurmd that has started anew")
    process = "cat /proc/$(cat /run/slurmd.pid)/comm"
    rig.until(lambda: "slurmd" in in_guest(rig, host, name, process), what="a slurmd in the guest")
    rig.until(lambda: "*" not in rig.ctl("sinfo", "-h", "-n", name, "-o", "%t"), what="its node's answer")
    rig.counting(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(high)
    rig.becomes(name, "ready")
    rig.counting(low)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def in_guest(rig: DaemonRig, host: str, name: str, script: str) -> str:
    """Run a line of shell in the guest, by its agent; what it wrote."""

    def ask(command: str, **arguments: object) -> dict[str, object]:
        text = json.dumps({"execute": command, "arguments": arguments})
        told = rig.lab.run(host, ["virsh", "-q", "qemu-agent-command", name, text], check=True)
        answer: dict[str, object] = json.loads(told.stdout)["return"]
        return answer

    begun = ask("guest-exec", path="/bin/sh", arg=["-c", script], **{"capture-output": True})
    while not (status := ask("guest-exec-status", pid=begun["pid"]))["exited"]:
        pass
    return base64.b64decode(str(status.get("out-data", ""))).decode()
