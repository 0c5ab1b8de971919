"""The lab's specification, addresses and generated configuration, without any machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backfill.config.model import DaemonSettings
from backfill.lab import control, guestroot, image
from backfill.lab.cluster import Lab
from backfill.lab.slurmconf import cgroup_conf, slurm_conf
from backfill.lab.spec import LabError, LabSpec, host_address, lab_root
from backfill.lab.waiting import lock_for_life, lock_holder, wait_until


def test_spec_survives_json() -> None:
    """What the supervisor reads is what the caller asked for."""
    spec = LabSpec(hosts=3, extra_conf=("KillWait=1",), roots=(("ctl", "/srv/trixie"),))
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.root_of("ctl") == "/srv/trixie"
    assert spec.root_of("bm1") == "/"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "../x", "lab name"),
        ("hosts", 0, "between 1 and"),
        ("hosts", 101, "between 1 and"),
        ("cpus", 0, "at least 1"),
        ("hooks", "everywhere", "use none, slurmctld or host"),
        ("hypervisor", "debian-11", "use none, debian-12 or debian-13"),
        ("hypervisor", "debian-12,debian-13,debian-13", "one for each host"),
        ("hypervisor", "none,debian-12", "one for each host"),
        ("hook", "/no/such/hook", "executable"),
        ("hook", "relative/hook", "absolute"),
    ],
)
def test_bad_spec_is_refused(field: str, value: object, told: str) -> None:
    """Nonsense is one sentence before anything is started."""
    with pytest.raises(LabError, match=told):
        LabSpec(**{field: value})  # type: ignore[arg-type]


def test_what_a_site_cannot_have_is_refused() -> None:
    """Whole machines get nothing of ours from the lab, and only they can do without slurm.conf."""
    with pytest.raises(LabError, match="install them in it"):
        LabSpec(site=True, salt=True)
    with pytest.raises(LabError, match="systemd boots on control groups of version 2"):
        LabSpec(site=True, slurm_version="26.05")
    with pytest.raises(LabError, match="only the hosts of a site"):
        LabSpec(configless=True)


def test_hosts_may_have_unlike_hypervisors() -> None:
    """One name is all hosts', several are one host's each; no other machine has one."""
    spec = LabSpec(hypervisor="debian-12,debian-13")
    assert [spec.hypervisor_of(m) for m in ("bm1", "bm2", "ctl")] == ["debian-12", "debian-13", ""]
    assert LabSpec(hypervisor="debian-13").hypervisor_of("bm2") == "debian-13"
    assert LabSpec(hypervisor="none").hypervisor_of("bm1") == ""


def test_addresses() -> None:
    """Controller, hosts and virtual nodes each have their range; other names have no address."""
    assert host_address("ctl") == "10.77.0.1"
    assert host_address("bm2") == "10.77.0.12"
    assert host_address("vn250") == "10.77.1.250"
    for name in ("vn0", "vn251", "bm0", "bm01", "switch", "n1"):
        with pytest.raises(LabError, match="no machine of a lab"):
            host_address(name)


def test_slurm_conf_describes_the_hosts() -> None:
    """Hosts, the partition for virtual nodes, and the caller's lines last."""
    text = slurm_conf(LabSpec(hosts=2, cpus=4, memory_mb=3000, extra_conf=("KillWait=9",)))
    assert "NodeName=bm2 NodeAddr=10.77.0.12 CPUs=4 RealMemory=3000 State=UNKNOWN" in text
    assert "PartitionName=htc Nodes=virtual" in text
    assert text.endswith("KillWait=9\n")
    assert "Prolog" not in text.replace("PrologEpilogTimeout", "")


@pytest.mark.parametrize(
    ("place", "expected"),
    [("slurmctld", ["PrologSlurmctld=/h", "EpilogSlurmctld=/h"]), ("host", ["Prolog=/h", "Epilog=/h"])],
)
def test_hook_is_called_where_wanted(place: str, expected: list[str]) -> None:
    """The built hook serves both ends of a job, on the controller or on the host."""
    text = slurm_conf(LabSpec(hooks=place), built_hook="/h")  # type: ignore[arg-type]
    assert [line for line in text.splitlines() if line.endswith("/h")] == expected


def test_newer_slurm_has_other_lines() -> None:
    """Plugins that later releases dropped are not named to them."""
    old, new = LabSpec(), LabSpec(slurm_version="24.11")
    assert "SwitchType" in slurm_conf(old)
    assert "SwitchType" not in slurm_conf(new)
    assert cgroup_conf(old) == "CgroupPlugin=cgroup/v1\n"
    assert cgroup_conf(new) == "CgroupPlugin=disabled\n"


def test_labs_do_not_lie_among_the_daemons_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd gives all of StateDirectory to the daemon's user, and a purge of the package removes it."""
    monkeypatch.delenv("BACKFILL_LAB_ROOT", raising=False)
    assert not lab_root().is_relative_to(DaemonSettings().state_dir)


def test_absent_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab that never was is down, can be taken down again, and cannot be attached to."""
    monkeypatch.setenv("BACKFILL_LAB_ROOT", str(tmp_path))
    lab = Lab(LabSpec(name="never"))
    assert lab.status().phase == "down"
    assert lab.status().machines == {}
    with pytest.raises(LabError, match="not up"):
        Lab.attach("never")
    with pytest.raises(LabError, match="no running machine"):
        lab.command("ctl", ["true"])


def test_lock_lives_as_long_as_its_holder(tmp_path: Path) -> None:
    """Looking at the lock names the holder and takes nothing away; its death frees it."""
    path = tmp_path / "lock"
    assert lock_holder(path) == 0
    ready, told = os.pipe()
    stay, leave = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(leave)
        lock_for_life(path)
        os.write(told, b"1")
        os.read(stay, 1)
        os._exit(0)
    os.read(ready, 1)
    assert lock_holder(path) == child
    assert lock_holder(path) == child
    with pytest.raises(BlockingIOError):
        lock_for_life(path)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert lock_holder(path) == 0
    for handle in (ready, told, stay, leave):
        os.close(handle)


def test_socket_in_a_deep_directory(tmp_path: Path) -> None:
    """A path longer than a unix socket address works, and a dead end is one sentence."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with control.listen(deep / "bm1.sock"):
        assert (deep / "bm1.sock").exists()
    with pytest.raises(LabError, match="machine bm1 does not answer"):
        control.ask(deep / "bm1.sock", {"op": "status"})


def test_wait_until_gives_up() -> None:
    """A condition that never holds costs the time given, and one that holds costs none."""
    assert wait_until(lambda: True, 0)
    assert not wait_until(lambda: False, 0)


def test_image_is_named_by_its_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another package or another guest program makes another image."""
    first = image.Recipe().name
    assert first == image.Recipe().name
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "chrony"))
    assert image.Recipe().name != first
    monkeypatch.undo()
    for path in guestroot.GUEST_FILES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(guestroot, "GUEST_FILES", tmp_path)
    assert image.Recipe().name == first
    (tmp_path / "wake.c").write_text("int main(void) { return 0; }")
    assert image.Recipe().name != first


def test_image_asks_for_its_tools_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Headers are missing, or programs: it says which packages, and nothing is made."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(guestroot, "can_compile", lambda: False)
    with pytest.raises(LabError, match=r"without libc6-dev libmunge-dev: apt-get install libc6-dev"):
        image.build()
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(LabError, match="without mmdebstrap e2fsprogs cpio gcc tar: apt-get install"):
        image.build()
    assert not (tmp_path / "cache").exists()
