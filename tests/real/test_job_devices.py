"""Memory that the machines of a job share, on real guests: there when it begins, theirs, gone with them."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import backfill
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# A lab's hosts have the CPUs of its machine, however many they are said to have.
OWN: dict[str, Any] = {
    "own_machines": {"enabled": True, "start_within_s": 600, "inside": ["batch"]},
    "limits": {"max_per_host": 4},
    "placement": {"cpu_overcommit": 3, "order": "spread"},
}
_ROOT = Path(backfill.__file__).parents[1]
_PROGRAM = Path(__file__).parent / "region.c"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("job-devices", cpus=4) as rig:
        rig.start(**OWN)
        yield rig


def program(tmp_path: Path) -> str:
    """Two ranks that talk through a region, as text that a script can bring along."""
    binary = tmp_path / "region"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-o", str(binary), str(_PROGRAM)]
    subprocess.run(command, check=True)
    return base64.encodebytes(binary.read_bytes()).decode()


def ended_well(rig: DaemonRig, job: str) -> None:
    """Wait for the end of a job, and say what it said if it was no good one."""
    assert (rig.ended(job), rig.show(job)["ExitCode"]) == ("COMPLETED", "0:0"), rig.show(job)


def test_two_machines_of_a_job_talk_through_memory_that_they_share(rig: DaemonRig, tmp_path: Path) -> None:
    """Together on one host though the policy spreads, with two regions of the sizes that it asks for."""
    path = Path(rig.lab.shared, "region.sh")
    path.write_text(
        "#!/bin/sh\nset -e\nexec 2>/tmp/said.$SLURM_JOB_ID\n"
        # What went wrong is told: the guest goes with the job.
        "trap 'scontrol update JobId=$SLURM_JOB_ID Comment=\"$(tail -c 200 /tmp/said.$SLURM_JOB_ID)\"' EXIT\n"
        f"base64 -d >/tmp/region.$SLURM_JOB_ID <<'END'\n{program(tmp_path)}END\n"
        "chmod +x /tmp/region.$SLURM_JOB_ID\n"
        "sbcast -f /tmp/region.$SLURM_JOB_ID /tmp/region\n"
        "for number in 1 2; do srun --mpi=none /tmp/region $((16 * number)) $number; done\n"
    )
    asks = "--comment=backfill-vm:cpus=1,mem=288,ivshmem=16+32,place=together"
    job = rig.submit("-p", "htc", "-N2", "--ntasks-per-node=1", asks, str(path))
    ended_well(rig, job)
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


# Slurm-V's EACJ: in one allocation two programs at a time over the same machines, each with its region.
_AT_ONCE = """
run() {
    RUN -np 2 --per-machine 1 --mpi none sh -c 'at=/tmp/region.$SLURM_JOB_ID.$SLURM_PROCID
        echo "$0" | base64 -d >$at && chmod +x $at && exec $at "$1" "$2"' "$program" "$1" "$2"
}
"""


def bare_script(rig: DaemonRig, name: str, encoded: str, lines: str) -> str:
    """A script on bare metal that runs the program in the machines of its job."""
    run = f"PYTHONPATH={_ROOT} /usr/bin/python3 -B -m backfill run"
    path = Path(rig.lab.shared, name)
    text = f"#!/bin/sh\nprogram=$(cat <<'END'\n{encoded}END\n)\n{_AT_ONCE.replace('RUN', run)}{lines}\n"
    path.write_text(text)
    return str(path)


def test_two_programs_at_a_time_have_a_region_each(rig: DaemonRig, tmp_path: Path) -> None:
    """Over the same two machines of one allocation (EACJ)."""
    lines = "run 16 1 & first=$!\nrun 32 2 & second=$!\nwait $first && wait $second"
    path = bare_script(rig, "eacj.sh", program(tmp_path), lines)
    asks = "--comment=backfill-vm:per_node=2,cpus=2,mem=288,ivshmem=16+32"
    said = str(rig.lab.shared / "jobs" / "eacj.said")
    job = rig.submit("-p", "batch", "-w", "bm1", "--exclusive", asks, "-o", said, path)
    ended_well(rig, job)
    rig.until(lambda: not rig.nodes(), what="the end of its machines")


def test_two_jobs_that_share_a_host_have_regions_of_their_own(rig: DaemonRig, tmp_path: Path) -> None:
    """Each in its part of the host, at the same time (SACJ); one after the other would be EASJ."""
    path = bare_script(rig, "sacj.sh", program(tmp_path), "run 16 1 || exit 1\nsleep 3600 & wait")
    asks = "--comment=backfill-vm:per_node=2,cpus=1,mem=288,ivshmem=16"
    jobs = [rig.submit("-p", "batch", "-w", "bm1", "-n2", asks, path) for _ in range(2)]
    rig.until(lambda: len(regions(rig, "bm1")) == 2, what="a region for each job")
    assert {rig.state(job) for job in jobs} == {"RUNNING"}
    for job in jobs:
        rig.until(partial(inner_over, rig, job), what=f"the program of {job}")
        assert rig.state(job) == "RUNNING"
        rig.cancel(job)
    rig.until(lambda: not rig.nodes(), what="the end of their machines")
    rig.until(lambda: not regions(rig, "bm1"), what="the end of their memory")


def inner_over(rig: DaemonRig, job: str) -> bool:
    """Whether the program in the machines of a job has ended well."""
    shown = rig.ctl("scontrol", "show", "job", check=False)
    found = [one for one in shown.split("\n\n") if f"JobName=in-{job}" in one]
    return any("JobState=COMPLETED" in one and "ExitCode=0:0" in one for one in found)


def made(rig: DaemonRig, job: str) -> list[tuple[str, str]]:
    """Host and name of each machine that was made for the job."""
    nodes = (record.body.get("node") for record in rig.journal("phase"))
    theirs = [node for node in nodes if isinstance(node, dict) and node.get("job") == job]
    return sorted({(str(node["host"]), str(node["name"])) for node in theirs})


def regions(rig: DaemonRig, host: str) -> list[str]:
    """Files of shared memory on the host that are ours."""
    listed = rig.lab.run(host, ["ls", "/dev/shm"]).stdout.split()
    return [name for name in listed if name.startswith("backfill-")]
