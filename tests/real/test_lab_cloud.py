"""The test cloud comes up from nothing, and nothing of it is left after its end or crash."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from backfill.lab.cloud.handle import CloudHandle
from backfill.lab.spec import LabError
from backfill.lab.waiting import wait_until
from tests.real.cloud_rig import running_cloud
from tests.real.leftovers import held_open, holders

pytestmark = [pytest.mark.real, pytest.mark.gate]


def test_services_answer_in_a_network_of_their_own() -> None:
    """Every service has a process; Keystone answers inside and nowhere else."""
    cloud = running_cloud()
    status = cloud.status()
    assert status.phase == "up"
    assert set(status.services) == {"mariadb", "keystone", "placement", "glance", "cinder", "neutron", "nova"}
    assert all(status.services.values())
    probe = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/5000"]
    subprocess.run(cloud.command(probe), check=True, timeout=300)
    own, theirs = os.readlink("/proc/self/ns/net"), os.readlink(f"/proc/{cloud.pid}/ns/net")
    assert own != theirs
    with pytest.raises(LabError, match="is up already"):
        cloud.up()


def test_nothing_is_left_after_a_crash() -> None:
    """SIGKILL to its first process ends all; down removes the files; twice is fine."""
    cloud = CloudHandle(f"test-crash-{os.getpid()}")
    cloud.down()
    cloud.up(tied=True)
    kinds = ("net", "mnt", "pid")
    with held_open([f"/proc/{cloud.pid}/ns/{kind}" for kind in kinds]) as spaces:
        assert len(spaces) == len(kinds)
        assert holders(spaces)
        os.kill(cloud.pid, signal.SIGKILL)
        assert wait_until(lambda: not holders(spaces), 180), holders(spaces)
    assert cloud.status().phase == "down"
    for _ in range(2):
        cloud.down()
    assert {entry.name for entry in cloud.dir.iterdir()} <= {"lock", "up.lock"}
    with pytest.raises(LabError, match="backfill lab cloud up"):
        cloud.command(["true"])
