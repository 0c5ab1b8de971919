"""A virtual function through daemon and Slurm: a job asks for it, has it while it runs, and gives it back.

It runs inside the machine of `sriov_machine`: its cluster, its daemon and the guest that is the job's
node are emulated once more, so that all takes a hundred times as long. No limit here is about time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from backfill.lab.policyfile import policy
from backfill.lab.waiting import wait_until
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, rig_in_lab
from tests.real.jobs_rig import LIMIT_S

pytestmark = pytest.mark.inside
# Less than the whole machine's limit: whoever waits in vain says what he sees.
_SLOW_S = 2400.0
_LOOK_EVERY_S = 15.0
_DRIVERS = Path("/sys/bus/pci/devices")
_FUNCTIONS = ("0000:01:10.0", "0000:01:10.2")
# What a guest sees of the card: its functions (8086:10ca).
_LOOK_AT_ONCE = """#!/bin/bash
count=$(grep -l 0x10ca /sys/bus/pci/devices/*/device 2>/dev/null | wc -l)
trap 'exit 0' USR1
scontrol update JobId=$SLURM_JOB_ID Comment="functions:$count"
while :; do sleep 1; done
"""
# As `backfill slurm apply` makes a feature known before any node has it.
_KNOWN = "NodeName=backfill-features CPUs=1 RealMemory=208 Feature=backfill,vf State=FUTURE"
# A batch script that has not begun after the usual 10 s would be requeued.
_PATIENT = ("MessageTimeout=100", "BatchStartTimeout=1200", _KNOWN)
_Answer = TypeVar("_Answer")


class SlowRig(DaemonRig):
    """As ever, but all takes a hundred times as long."""

    def until(self, holds: Callable[[], _Answer], limit_s: float = LIMIT_S, what: str = "") -> _Answer:
        """Look seldom: the machine has one processor, and each look takes a second of it from the guest."""
        if answer := wait_until(holds, max(limit_s, _SLOW_S), _LOOK_EVERY_S):
            return answer
        raise AssertionError(f"{what or 'it'}: not within {_SLOW_S:g} s\n{self.picture()}")


@pytest.fixture(scope="module")
def bed() -> Iterator[SlowRig]:
    spec: dict[str, Any] = {"hosts": 1, "hook_timeout_ms": 600_000, "hook_limit_s": 1200}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backfill.lab.cluster.UP_TIMEOUT_S", 900.0)
        patch.setattr("backfill.lab.supervisor.BOOT_TIMEOUT_S", 800.0)
        with rig_in_lab(SlowRig, "sriov-job", extra_conf=_PATIENT, **spec) as rig:
            yield rig


def rules(rig: SlowRig) -> dict[str, Any]:
    """One instance, functions for jobs that ask for them, and patience with all."""
    within = dict.fromkeys(("clock_within_s", "munge_within_s", "files_within_s", "address_within_s"), 2400)
    hardware = policy(rig.lab, rig.image)["libvirt"]["hardware"]
    patient = {"connect_s": 120, "call_s": 300, "start_s": 600, "agent_s": 300, "keepalive_s": 60}
    return {
        # The disk that others boot from lies on a file system without direct access.
        "libvirt": {"hardware": {**hardware, "disk_cache": "writeback"}, "limits": patient},
        "devices": {"entries": [{"name": "vf", "functions": 1, "sharing": "anyone"}]},
        "daemon": {"poll_s": 5, "host_poll_s": 10},
        "liveness": {"down_after_s": 2400},
        "readiness": {"clock_offset_s": 30, "retry_s": 5, **within},
        "scale": {"idle_s": 86_400, "boot_within_s": 2400},
        "limits": {"max_instances": 1, "keep_memory_mb": 0},
        "ladder": [PAUSE, REQUEUE],
        "comeback": {"within_s": 2400},
        "answer_within_s": 500,
    }


def driver_of(address: str) -> str:
    """Who has it: the machine itself, or guests."""
    return (_DRIVERS / address / "driver").resolve().name


def lent() -> int:
    return [driver_of(address) for address in _FUNCTIONS].count("vfio-pci")


def test_a_job_has_its_function_while_it_runs(rig: SlowRig) -> None:
    """There at its first command and while it stands still for another job; the host's own afterwards."""
    rig.restart(**rules(rig))
    assert lent() == 0
    script = Path(rig.lab.shared, "function.sh")
    script.write_text(_LOOK_AT_ONCE)
    job = rig.submit("-p", "htc", "-C", "vf", str(script))
    rig.until(lambda: rig.show(job).get("Comment"), what="its first command")
    assert rig.show(job)["Comment"] == "functions:1"
    name, host = rig.where(job)
    assert lent() == 1
    assert "<hostdev" in rig.virsh(host, "dumpxml", name)

    high = rig.high(host)
    rig.becomes(name, "parked")
    assert rig.instances()[name] == (host, "paused")
    assert lent() == 1
    rig.release(high)
    rig.becomes(name, "ready")

    rig.until(partial(told_to_end, rig, job), what="its end")
    assert rig.show(job)["Restarts"] == "0"
    rig.until(lambda: lent() == 0, what="the function's return")
    assert name in rig.instances(), rig.picture()
    assert "<hostdev" not in rig.virsh(host, "dumpxml", name)


def told_to_end(rig: SlowRig, job: str) -> bool:
    if rig.state(job) == "COMPLETED":
        return True
    rig.ctl("scancel", "--batch", "--signal=USR1", job, check=False)
    return False
