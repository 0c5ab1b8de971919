"""Devices of jobs in a real cluster: there at the first command, whichever hook holds the start."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backfill.lab.policyfile import policy
from tests.real.daemon_rig import REQUEUE, SUSPEND, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# Looks at once how many regions (1af4:1110) the guest shows, says so, and goes on until it is told.
_LOOK_AT_ONCE = """#!/bin/bash
count=$(grep -l 0x1110 /sys/bus/pci/devices/*/device 2>/dev/null | wc -l)
trap 'exit 0' USR1
scontrol update JobId=$SLURM_JOB_ID Comment="regions:$count"
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module", params=["slurmctld", "host"])
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    """`host`: slurmctld calls nobody, so the guest's own slurmd holds the job."""
    with daemon_lab(f"dev-{request.param}", hooks=request.param) as rig:
        yield rig


@pytest.mark.parametrize("board", ["q35", "pc"])
def test_a_job_has_its_region_while_it_runs(rig: DaemonRig, board: str) -> None:
    """There at its first command, and again after it was on disk; gone when the job has ended."""
    rig.restart(scale={"idle_s": 0})  # what is there has other hardware and other features
    rig.until(lambda: not rig.nodes(), what="the removal of all instances")
    hardware = policy(rig.lab, rig.image)["libvirt"]["hardware"]
    rig.restart(
        libvirt={"hardware": {**hardware, "machine": board}},
        devices={"entries": [{"name": "shm16", "region_mb": 16, "sharing": "anyone"}]},
        ladder=[SUSPEND, REQUEUE],
        limits={"max_instances": 1},
    )
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
    rig.becomes(name, "parked")
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
