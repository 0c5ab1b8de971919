"""The lab on one machine: a real cluster while it is up, nothing at all once it is gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.lab import cgroups
from backfill.lab.cluster import Lab
from backfill.lab.spec import LabError, LabSpec
from backfill.lab.waiting import wait_until

pytestmark = pytest.mark.real

JOBS = Path(__file__).parents[2] / "backfill/lab/jobs"
NAMESPACES = ("net", "mnt", "pid", "uts", "ipc", "cgroup")


def namespaces(lab: Lab) -> set[str]:
    """The namespaces of the lab's machines that are not this process's own."""
    pids = [machine.pid for machine in lab.status().machines.values()]
    found = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in NAMESPACES}
    return found - {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}


def links(pattern: str) -> set[str]:
    """Where the links in /proc that match `pattern` lead; processes may end meanwhile."""
    found = set()
    for link in Path("/proc").glob(pattern):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def leftovers(lab: Lab, spaces: set[str]) -> list[str]:
    """Everything on this machine that still belongs to the lab."""
    found = [f"namespace {name}" for name in spaces & (links("*/ns/*") | links("*/fd/*"))]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_text() + (process / "cgroup").read_text()
        except OSError:
            continue
        if str(lab.dir) in told or f"backfill-lab-{lab.spec.name}" in told:
            found.append(f"process {process.name}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if str(lab.dir) in line]
    found += [str(top) for top in cgroups.lab_directories(lab.spec.name) if top.exists()]
    return found


def gone(lab: Lab, spaces: set[str]) -> bool:
    """Wait for the lab to have left nothing behind."""
    return wait_until(lambda: not leftovers(lab, spaces), 15)


def test_hosts_are_idle_and_run_jobs(lab: Lab) -> None:
    """Both hosts are idle in Slurm and a job runs on each, under the host's own name."""
    shown = lab.run("ctl", ["sinfo", "--noheader", "-N", "-p", "batch", "-o", "%n %T"]).stdout
    assert shown.split("\n")[:2] == ["bm1 idle", "bm2 idle"]
    for host in lab.hosts:
        assert lab.run("ctl", ["srun", "-w", host, "uname", "-n"]).stdout.strip() == host


def test_hypervisors_are_two_different_hosts(lab: Lab) -> None:
    """libvirt answers over the lab's network on each host, and migration has two ends."""
    identities = set()
    for host in lab.hosts:
        argv = ["virsh", "-c", lab.libvirt_uri(host), "capabilities"]
        found = re.search(r"<uuid>(.*)</uuid>", lab.run("ctl", argv).stdout)
        assert found
        identities.add(found[1])
    assert len(identities) == 2


def test_machines_reach_nothing_outside(lab: Lab) -> None:
    """A machine has no way out: only the lab's own network is there."""
    routes = lab.run("ctl", ["ip", "route"]).stdout.splitlines()
    assert [line.split()[0] for line in routes] == ["10.77.0.0/16"]


def test_services_restart(lab: Lab) -> None:
    """A killed slurmctld is seen to be dead, starts again, and the nodes are still there."""
    lab.kill("slurmctld")
    assert wait_until(lambda: lab.status().machines["ctl"].services["slurmctld"] == 0, 5)
    lab.start("slurmctld")
    lab.restart("slurmd@bm2")
    lab.restart("libvirtd@bm1")
    for host in lab.hosts:
        assert lab.run("ctl", ["srun", "-w", host, "uname", "-n"]).stdout.strip() == host


def test_two_labs_side_by_side(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A second lab has the same addresses and does not disturb the first."""
    other = Lab.up(LabSpec(name=lab_name("other"), hosts=1, hypervisor=False), tied=True)
    spaces = namespaces(other)
    assert other.run("ctl", ["srun", "uname", "-n"]).stdout.strip() == "bm1"
    assert lab.run("ctl", ["srun", "-w", "bm2", "uname", "-n"]).stdout.strip() == "bm2"
    with pytest.raises(LabError, match="is up already"):
        Lab.up(other.spec)
    other.down()
    assert gone(other, spaces), leftovers(other, spaces)
    other.down()
    assert other.status().phase == "down"


def test_supervisor_killed(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """SIGKILL of the supervisor takes every process, mount, namespace and group with it."""
    victim = Lab.up(LabSpec(name=lab_name("victim")), tied=True)
    spaces = namespaces(victim)
    assert leftovers(victim, spaces)
    os.kill(victim.status().supervisor_pid, signal.SIGKILL)
    assert gone(victim, spaces), leftovers(victim, spaces)


def test_owner_killed(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A tied lab does not outlive the program that started it."""
    name = lab_name("tied")
    script = (
        "import sys; from backfill.lab.cluster import Lab; from backfill.lab.spec import LabSpec;"
        f"Lab.up(LabSpec(name={name!r}, hosts=1, hypervisor=False), tied=True);"
        "sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.read(2) == b"up"
        tied = Lab.attach(name)
        spaces = namespaces(tied)
        owner.kill()
    assert gone(tied, spaces), leftovers(tied, spaces)


def test_bad_configuration_is_one_sentence(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A slurm.conf that slurmctld refuses ends the start with the reason and leaves nothing."""
    spec = LabSpec(name=lab_name("bad"), hosts=1, hypervisor=False, extra_conf=("Nonsense=1",))
    with pytest.raises(LabError, match="slurmctld did not come up"):
        Lab.up(spec, tied=True)
    assert leftovers(Lab(spec), set()) == []
