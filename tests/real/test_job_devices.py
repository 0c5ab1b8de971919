"""Memory that the machines of a job share, on real guests: there when it begins, theirs, gone with them."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# A lab's hosts have the CPUs of its machine, however many they are said to have.
OWN: dict[str, Any] = {
    "own_machines": {"enabled": True, "start_within_s": 600, "inside": ["batch"]},
    "limits": {"max_per_host": 4},
    "placement": {"cpu_overcommit": 3, "order": "spread"},
}
_PROGRAM = Path(__file__).parent / "region.c"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("job-devices") as rig:
        rig.start(**OWN)
        yield rig


def script(rig: DaemonRig, tmp_path: Path, size_mb: int) -> str:
    """A job's script that brings the program along, and lets each rank run it as the job's user."""
    binary = tmp_path / "region"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-o", str(binary), str(_PROGRAM)]
    subprocess.run(command, check=True)
    encoded = base64.encodebytes(binary.read_bytes()).decode()
    path = Path(rig.lab.shared, "region.sh")
    path.write_text(
        "#!/bin/sh\nset -e\nexec 2>/tmp/said.$SLURM_JOB_ID\n"
        # What went wrong is told: the guest goes with the job.
        "trap 'scontrol update JobId=$SLURM_JOB_ID Comment=\"$(tail -c 200 /tmp/said.$SLURM_JOB_ID)\"' EXIT\n"
        f"base64 -d >/tmp/region.$SLURM_JOB_ID <<'END'\n{encoded}END\n"
        "chmod +x /tmp/region.$SLURM_JOB_ID\n"
        "sbcast -f /tmp/region.$SLURM_JOB_ID /tmp/region\n"
        f"srun --mpi=none /tmp/region {size_mb}\n"
    )
    return str(path)


def test_two_machines_of_a_job_talk_through_memory_that_they_share(rig: DaemonRig, tmp_path: Path) -> None:
    """Together on one host though the policy spreads, with two regions of the sizes that it asks for."""
    asks = "--comment=backfill-vm:cpus=1,mem=288,ivshmem=16+32,place=together"
    job = rig.submit("-p", "htc", "-N2", "--ntasks-per-node=1", asks, script(rig, tmp_path, 32))
    rig.until(lambda: rig.state(job) in ("RUNNING", "COMPLETED", "FAILED"), what="its begin")
    rig.until(lambda: rig.state(job) not in ("RUNNING", "COMPLETING"), what="its end")
    assert (rig.state(job), rig.show(job)["ExitCode"]) == ("COMPLETED", "0:0"), rig.show(job)
    hosts = [host for host, name in made(rig, job)]
    assert len(hosts) == 2
    assert len(set(hosts)) == 1
    rig.until(lambda: not rig.nodes(), what="the end of its machines")
    rig.until(lambda: not regions(rig, hosts[0]), what="the end of their memory")


def test_machines_within_an_allocation_share_memory(rig: DaemonRig) -> None:
    """Two on the job's node; the regions are there before the job knows of its machines."""
    line = "sleep 3600"
    asks = "--comment=backfill-vm:per_node=2,cpus=1,mem=288,ivshmem=16"
    job = rig.submit("-p", "batch", "-w", "bm1", "--exclusive", asks, "--wrap", line)
    rig.until(lambda: "at=" in rig.ctl("scontrol", "show", "job", job), what="the machines of the job")
    for host, name in made(rig, job):
        assert host == "bm1"
        assert "<shmem" in rig.virsh(host, "dumpxml", name)
        seen = rig.out_of_guest(host, name, "stat -Lc '%u %s' /run/backfill/regions/1").split()
        assert f"({seen[0]})" in rig.show(job)["UserId"]
        assert int(seen[1]) == 16 << 20
    assert len(regions(rig, "bm1")) == 1
    (host, first), (_, second) = made(rig, job)
    address, name = rig.out_of_guest(host, first, f"getent hosts {second}").split()
    assert (address, name) == (rig.nodes()[second]["address"].split("/")[0], second)
    rig.cancel(job)
    rig.until(lambda: not rig.nodes(), what="the end of its machines")
    rig.until(lambda: not regions(rig, "bm1"), what="the end of their memory")


def made(rig: DaemonRig, job: str) -> list[tuple[str, str]]:
    """Host and name of each machine that was made for the job."""
    nodes = (record.body.get("node") for record in rig.journal("phase"))
    theirs = [node for node in nodes if isinstance(node, dict) and node.get("job") == job]
    return sorted({(str(node["host"]), str(node["name"])) for node in theirs})


def regions(rig: DaemonRig, host: str) -> list[str]:
    """Files of shared memory on the host that are ours."""
    listed = rig.lab.run(host, ["ls", "/dev/shm"]).stdout.split()
    return [name for name in listed if name.startswith("backfill-")]
