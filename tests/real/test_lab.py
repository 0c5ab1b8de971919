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
from backfill.lab.spec import HookPlace, LabError, LabSpec
from backfill.lab.waiting import wait_until
from tests.real.leftovers import namespaces, traces

pytestmark = pytest.mark.real
PATIENCE_S = 600.0  # for what takes seconds on a machine that is not busy


def gone(lab: Lab, spaces: frozenset[str]) -> bool:
    """Wait for the lab to have left nothing behind."""
    return wait_until(lambda: not traces(lab, spaces), PATIENCE_S)


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


def test_a_host_keeps_its_hardware_address(lab: Lab) -> None:
    """What joins its bridge with a lower one, as a guest's tap may, does not change it.

    Neighbours that had learnt the tap's sent into nothing once the guest had moved: moves hung.
    """
    shown = ["cat", "/sys/class/net/br0/address"]
    before = lab.run("bm1", shown, check=True).stdout
    low = "02:00:00:00:00:01"
    lab.run(
        "bm1", ["ip", "link", "add", "low", "address", low, "type", "veth", "peer", "name", "end"], check=True
    )
    try:
        lab.run("bm1", ["ip", "link", "set", "low", "master", "br0"], check=True)
        assert before > low
        assert lab.run("bm1", shown, check=True).stdout == before
    finally:
        lab.run("bm1", ["ip", "link", "delete", "low"], check=True)
    assert before != lab.run("bm2", shown, check=True).stdout


def test_services_restart(lab: Lab) -> None:
    """What was killed is seen to be dead at once, starts again, and the nodes are still there."""
    for service, machine in (("slurmctld", "ctl"), ("slurmd", "bm1"), ("libvirtd", "bm2")):
        lab.kill(f"{service}@{machine}")
        assert lab.status().machines[machine].services[service] == 0
        lab.start(f"{service}@{machine}")
    lab.restart("slurmd@bm2")
    lab.restart("libvirtd@bm1")
    for host in lab.hosts:
        assert lab.run("ctl", ["srun", "-w", host, "uname", "-n"]).stdout.strip() == host


def test_two_labs_side_by_side(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A second lab has the same addresses and does not disturb the first."""
    other = Lab.up(LabSpec(name=lab_name("other"), hosts=1, hypervisor="none"), tied=True)
    with namespaces(other) as spaces:
        assert other.run("ctl", ["srun", "uname", "-n"]).stdout.strip() == "bm1"
        assert lab.run("ctl", ["srun", "-w", "bm2", "uname", "-n"]).stdout.strip() == "bm2"
        with pytest.raises(LabError, match="is up already"):
            Lab.up(other.spec)
        other.down()
        assert gone(other, spaces), traces(other, spaces)
        other.down()
    assert other.status().phase == "down"


def test_supervisor_killed(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """SIGKILL of the supervisor takes every process, mount, namespace and group with it."""
    victim = Lab.up(LabSpec(name=lab_name("victim")), tied=True)
    with namespaces(victim) as spaces:
        assert traces(victim, spaces)
        os.kill(victim.status().supervisor_pid, signal.SIGKILL)
        assert gone(victim, spaces), traces(victim, spaces)


def test_groups_of_a_lab_that_died_with_its_watcher_are_swept(tmp_path: Path) -> None:
    """Empty old groups go at the next sweep; one with a process in it, or a young one, stays."""
    if cgroups.usable():
        assert cgroups.lab_directories(tmp_path)
        return
    made = cgroups.make(tmp_path / "dead", "bm1")
    ours = cgroups.group_name(tmp_path / "dead")
    try:
        cgroups.sweep_dead(name=ours)
        assert all(directory.exists() for directory in made)
        with subprocess.Popen(["sleep", "60"]) as inside:
            (made[0] / "cgroup.procs").write_text(str(inside.pid))
            cgroups.sweep_dead(older_than_s=0, name=ours)
            assert made[0].exists()
            assert not made[1].exists()
            inside.kill()
        cgroups.sweep_dead(older_than_s=0, name=ours)
        assert not made[0].exists()
    finally:
        assert cgroups.sweep(tmp_path / "dead") == []


def test_owner_killed(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A tied lab does not outlive the program that started it."""
    name = lab_name("tied")
    script = (
        "import sys; from backfill.lab.cluster import Lab; from backfill.lab.spec import LabSpec;"
        f"Lab.up(LabSpec(name={name!r}, hosts=1, hypervisor='none'), tied=True);"
        "sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.read(2) == b"up"
        tied = Lab.attach(name)
        with namespaces(tied) as spaces:
            owner.kill()
            assert gone(tied, spaces), traces(tied, spaces)


def test_bad_configuration_is_one_sentence(lab: Lab, lab_name: Callable[[str], str]) -> None:
    """A slurm.conf that slurmctld refuses ends the start with the reason and leaves nothing."""
    spec = LabSpec(name=lab_name("bad"), hosts=1, hypervisor="none", extra_conf=("Nonsense=1",))
    with pytest.raises(LabError, match="slurmctld did not come up"):
        Lab.up(spec, tied=True)
    assert traces(Lab(spec)) == []


@pytest.mark.parametrize("place", ["slurmctld", "host"])
def test_hook_that_reaches_nobody_lets_jobs_run(
    place: HookPlace, lab: Lab, lab_name: Callable[[str], str]
) -> None:
    """With the lab's own hook in place and no daemon, a job runs and the hook says so."""
    spec = LabSpec(name=lab_name(place), hosts=1, hypervisor="none", hooks=place)
    hooked = Lab.up(spec, tied=True)
    assert hooked.run("ctl", ["srun", "uname", "-n"]).stdout.strip() == "bm1"
    assert "the job goes on" in (hooked.dir / "hook/hook.log").read_text()
    hooked.down()
