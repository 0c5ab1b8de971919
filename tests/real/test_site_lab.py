"""The lab of whole machines: a site like any other while it is up, nothing at all once it is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill.lab import roots
from backfill.lab.cluster import Lab
from backfill.lab.spec import JOB_USER, LabError, LabSpec
from backfill.lab.waiting import wait_until
from tests.real.leftovers import namespaces, traces

pytestmark = [pytest.mark.real, pytest.mark.gate]
PATIENCE_S = 600.0
# Releases of Slurm with the way in which hosts get slurm.conf; CI boots the first.
_SITES = [
    (roots.INSTALLED, False),
    pytest.param((roots.INSTALLED, True), marks=pytest.mark.soak),
    pytest.param(("24.11", False), marks=pytest.mark.soak),
    pytest.param(("24.11", True), marks=pytest.mark.soak),
]


@pytest.fixture(scope="module")
def elsewhere(open_path: Path) -> Iterator[None]:
    """All labs of this file are in a directory that every user can enter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_LAB_ROOT", str(open_path))
        yield


@pytest.fixture(scope="module", params=_SITES, ids=str)
def site(
    request: pytest.FixtureRequest, lab_name: Callable[[str], str], elsewhere: None
) -> Iterator[tuple[Lab, frozenset[str]]]:
    """A site with two hosts, and its namespaces."""
    release, configless = request.param
    spec = LabSpec(name=lab_name("site"), site=True, slurm_version=release, configless=configless)
    made = Lab.up(roots.equip(spec), tied=True)
    with namespaces(made) as spaces:
        yield made, spaces
    made.down()


def test_machines_are_whole(site: tuple[Lab, frozenset[str]]) -> None:
    """systemd is process 1 of each and has nothing to complain of; each has its own services."""
    lab, _ = site
    for machine in ("ctl", *lab.hosts):
        assert lab.run(machine, ["cat", "/proc/1/comm"]).stdout == "systemd\n"
        assert lab.run(machine, ["systemctl", "is-system-running"]).stdout == "running\n"
    services = {name: set(found.services) for name, found in lab.status().machines.items()}
    assert services["ctl"] == {"munge", "mariadb", "slurmdbd", "slurmctld"}
    assert services["bm1"] == services["bm2"] == {"munge", "slurmd", "libvirtd"}
    assert lab.run("ctl", ["ps", "-o", "user=", "-C", "slurmctld"]).stdout.split()[:1] == ["slurm"]


def test_a_users_job_is_tracked_and_charged(site: tuple[Lab, frozenset[str]]) -> None:
    """It runs at home on both hosts, in a control group of Slurm's, and is booked to its account."""
    lab, _ = site
    argv = ["srun", "-N2", "--chdir=/home/ada", "sh", "-c", "hostname; pwd; id -un; cat /proc/self/cgroup"]
    words = lab.run("ctl", argv, user=JOB_USER, check=True).stdout.split()
    assert {"bm1", "bm2"} <= set(words)
    assert words.count("/home/ada") == words.count(JOB_USER) == 2
    assert sum("freezer:" in word and "/uid_2001/job_" in word for word in words) == 2

    def booked() -> list[str]:
        shown = ["sacct", "-aXn", "-P", "--format=user,account,state,nodelist"]
        return lab.run("ctl", shown, check=True).stdout.splitlines()

    assert wait_until(lambda: "ada|physics|COMPLETED|bm[1-2]" in booked(), PATIENCE_S), booked()


def test_hypervisors_answer_each_other(site: tuple[Lab, frozenset[str]]) -> None:
    """libvirt answers over the site's network, by the hosts' names."""
    lab, _ = site
    for here, there in (("bm1", "bm2"), ("bm2", "bm1")):
        argv = ["virsh", "-c", f"qemu+tcp://{there}/system", "hostname"]
        assert lab.run(here, argv, check=True).stdout.strip() == there


def test_services_restart(site: tuple[Lab, frozenset[str]]) -> None:
    """What was killed or stopped is seen to be down, and starts again."""
    lab, _ = site
    lab.stop("slurmd@bm1")
    assert lab.status().machines["bm1"].services["slurmd"] == 0
    lab.start("slurmd@bm1")
    lab.restart("slurmctld")
    assert all(lab.status().machines["ctl"].services.values())
    with pytest.raises(LabError, match="nonsense"):
        lab.start("nonsense@bm1")


def test_machines_boot_anew(site: tuple[Lab, frozenset[str]]) -> None:
    """After a loss of power, and by systemd's own order: with their files, and without what was in memory."""
    lab, _ = site
    for machine, orderly in (("bm1", False), ("ctl", True)):
        before = lab.run(machine, ["cat", "/etc/machine-id"]).stdout
        lab.run(machine, ["sh", "-c", "echo kept >/var/tmp/kept; echo gone >/run/gone"], check=True)
        lab.reboot(machine, orderly=orderly)
        assert lab.run(machine, ["cat", "/etc/machine-id", "/var/tmp/kept"]).stdout == f"{before}kept\n"
        assert lab.run(machine, ["test", "-e", "/run/gone"]).returncode == 1
        assert all(lab.status().machines[machine].services.values())
    assert lab.run("ctl", ["srun", "-N2", "true"], user=JOB_USER).returncode == 0


def test_down_leaves_nothing(site: tuple[Lab, frozenset[str]]) -> None:
    """No process, mount, namespace or control group of it is there any more."""
    lab, spaces = site
    assert traces(lab, spaces)
    lab.down()
    assert traces(lab, spaces) == []
    assert lab.status().phase == "down"


def test_owner_killed(lab_name: Callable[[str], str], elsewhere: None) -> None:
    """SIGKILL of the program that started it takes the whole site with it."""
    name = lab_name("tied")
    script = (
        "import sys; from backfill.lab import roots; from backfill.lab.cluster import Lab;"
        "from backfill.lab.spec import LabSpec;"
        f"Lab.up(roots.equip(LabSpec(name={name!r}, hosts=1, site=True)), tied=True);"
        "sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.read(2) == b"up"
        tied = Lab.attach(name)
        with namespaces(tied) as spaces:
            owner.kill()
            assert wait_until(lambda: not traces(tied, spaces), PATIENCE_S), traces(tied, spaces)


def test_failed_boot_leaves_nothing(lab_name: Callable[[str], str], elsewhere: None) -> None:
    """A slurm.conf that Slurm refuses ends the start with Slurm's words."""
    wrong = ("Nonsense=1",)
    spec = roots.equip(LabSpec(name=lab_name("bad"), hosts=1, site=True, extra_conf=wrong))
    with pytest.raises(LabError, match=r"ctl: site-accounts\.service did not come up: .*configuration file"):
        Lab.up(spec, tied=True)
    assert traces(Lab(spec)) == []
