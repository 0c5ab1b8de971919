"""What instances bring along by themselves: a parent made ahead, and the devices of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.policyfile import policy
from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab

pytestmark = pytest.mark.real

# Looks at once how many regions (1af4:1110) the guest shows, says so, and goes on until it is told.
_LOOK_AT_ONCE = """#!/bin/bash
count=$(grep -l 0x1110 /sys/bus/pci/devices/*/device 2>/dev/null | wc -l)
trap 'exit 0' USR1
scontrol update JobId=$SLURM_JOB_ID Comment="regions:$count"
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("instances") as rig:
        yield rig


def parents(rig: DaemonRig, host: str) -> list[dict[str, Any]]:
    """What the daemon has seen there."""
    seen = next(h for h in rig.ask("hosts")["hosts"] if h["name"] == host)
    return list(seen["parents"])


def made(rig: DaemonRig, host: str) -> bool:
    return any(parent["made"] for parent in parents(rig, host))


@pytest.mark.soak
def test_a_parent_is_made_ahead_given_up_for_a_job_and_cloned(rig: DaemonRig) -> None:
    """Whoever gets the host finds nothing of it running; later the first instance is a clone."""
    images = policy(rig.lab, rig.image)["libvirt"]["images"]
    images["default"]["warm_parents"] = 1
    rig.restart(
        libvirt={"images": images}, cloning={"method": "instant"},
        ladder=[PAUSE, REQUEUE], limits={"max_instances": 1},
    )  # fmt: skip
    host = rig.lab.hosts[0]
    rig.until(lambda: parents(rig, host), what="a parent, made or in the making")
    high = rig.high(host)
    assert rig.virsh(host, "list", "--name") == ""
    rig.release(high)
    rig.until(lambda: all(made(rig, h) for h in rig.lab.hosts), 300, "a parent on each host")
    assert rig.domains() == {host: [] for host in rig.lab.hosts}
    low = rig.low()
    name, there = rig.where(low)
    assert "/.parents/" in rig.virsh(there, "dumpxml", name)
    rig.finish(low)


@pytest.mark.soak
def test_a_job_has_its_region_while_it_runs(rig: DaemonRig) -> None:
    """There at its first command, and again after it was on disk; gone when the job has ended."""
    rig.restart(scale={"idle_s": 0})  # what is there has other hardware and other features
    rig.until(lambda: not rig.nodes(), what="the removal of all instances")
    hardware = policy(rig.lab, rig.image)["libvirt"]["hardware"]
    rig.restart(
        libvirt={"hardware": {**hardware, "machine": "pc"}},
        devices={"entries": [{"name": "shm16", "region_mb": 16}]},
        ladder=[SUSPEND, REQUEUE], limits={"max_instances": 1},
    )  # fmt: skip
    rig.finish(rig.low())  # slurmctld knows a feature when a node has it
    script = Path(rig.lab.shared, "region.sh")
    script.write_text(_LOOK_AT_ONCE)
    job = rig.submit("-p", "htc", "-C", "shm16", str(script))
    rig.until(lambda: rig.show(job).get("Comment"), what="its first command")
    assert rig.show(job)["Comment"] == "regions:1"
    name, host = rig.where(job)
    rig.kill()
    rig.start(**rig.changes)
    assert "<shmem" in rig.virsh(host, "dumpxml", name)
    high = rig.high(host)
    rig.becomes(name, "displaced")
    rig.until(lambda: rig.instances().get(name) == (host, "suspended"), what="its memory on disk")
    rig.release(high)
    rig.becomes(name, "ready")
    assert "<shmem" in rig.virsh(host, "dumpxml", name)
    rig.until(partial(_told_to_end, rig, job), what="its end")
    rig.until(lambda: "<shmem" not in rig.virsh(host, "dumpxml", name), what="its return")
    assert rig.show(job)["Restarts"] == "0"


def _told_to_end(rig: DaemonRig, job: str) -> bool:
    if rig.state(job) == "COMPLETED":
        return True
    rig.ctl("scancel", "--batch", "--signal=USR1", job, check=False)
    return False
