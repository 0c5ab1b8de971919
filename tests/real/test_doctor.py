"""`backfill doctor` in a real cluster: nothing is found in a sound one, and each planted fault is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from backfill.lab import image
from backfill.lab.cluster import Lab
from backfill.lab.layout import user_ids
from backfill.lab.policyfile import policy
from backfill.lab.spec import SLURM_USER, LabSpec
from backfill.lab.waiting import wait_until
from tests.real.jobs_rig import LIMIT_S

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
# Of the machine on which the tests run, whose labs are below /tmp.
_NOT_OURS = {"links"}
PATIENT = {"boot_within_s": 600}


class Ward:
    """A lab, a policy file and a doctor."""

    def __init__(self, lab: Lab, guest: image.GuestImage, folder: Path) -> None:
        self.lab, self._guest, self.folder = lab, guest, folder
        self.own = lab.dir / "policy.yaml"
        self.key = lab.dir / "key"
        self.key.write_bytes(lab.munge_key.read_bytes())
        self.key.chmod(0o444)

    def write(self, **changes: Any) -> Path:
        """Write the policy file; with `libvirt` and others one level deeper than usual."""
        body = policy(self.lab, self._guest, scale=PATIENT)
        body["daemon"].pop("listen")  # below 1024, where only root may listen
        body["libvirt"]["surroundings"]["munge_key"] = str(self.key)
        _put(body, changes)
        self.own.write_text(yaml.safe_dump(body, sort_keys=False))
        return self.own

    def image(self, **changes: str) -> dict[str, Any]:
        """Return a change of the image's entry."""
        return {"libvirt": {"images": {"default": changes}}}

    def ask(self, *argv: str) -> tuple[int, set[str]]:
        """Let the doctor look; its status, and the codes of what it found."""
        command = [sys.executable, "-m", "backfill", "doctor", "--config", str(self.own), "--json", *argv]
        done = self.lab.run("ctl", command, env={"PYTHONPATH": str(ROOT)}, timeout_s=LIMIT_S)
        assert done.stdout.startswith("{"), done.stderr
        told = json.loads(done.stdout)
        found = [finding for findings in told["checks"].values() for finding in findings]
        assert all(finding["what"] and finding["why"] for finding in found)
        self.told = done.stdout
        return done.returncode, {finding["code"] for finding in found} - _NOT_OURS

    def finds(self, *codes: str, argv: tuple[str, ...] = ()) -> None:
        """All of these are found."""
        status, found = self.ask(*argv)
        assert set(codes) <= found, self.told
        assert status == 1 or not set(codes) - {"partition-closed", "lease"}, self.told

    def run(self, machine: str, script: str) -> None:
        """Run a shell script there that has to work."""
        done = self.lab.run(machine, ["sh", "-euc", script], timeout_s=LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def restart_with(self, conf: str) -> None:
        """Start slurmctld with this slurm.conf, and wait for the hosts."""
        self.lab.slurm_conf.write_text(conf)
        self.lab.restart("slurmctld")
        self.hosts_are_idle()

    def hosts_are_idle(self) -> None:
        """Wait until Slurm shows every host as idle."""
        argv = ["sinfo", "-h", "-p", "batch", "-o", "%T"]
        assert wait_until(lambda: self.lab.run("ctl", argv).stdout.split() == ["idle"], LIMIT_S)

    @contextmanager
    def over(self, machine: str, path: Path, script: str = "") -> Iterator[None]:
        """Another directory there in the place of this one, filled by a script that runs in it."""
        kept = f"mkdir -p /run/kept; cp -a {path}/. /run/kept/ 2>/dev/null || true; " if script else ""
        self.run(machine, f"{kept}mount -t tmpfs none {path}; cd {path}; {script or ':'}")
        try:
            yield
        finally:
            self.run(machine, f"umount {path}; rm -rf /run/kept")


def _put(body: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(body.get(key), dict):
            _put(body[key], value)
        else:
            body[key] = value


@pytest.fixture(scope="module")
def ward(lab_name: Callable[[str], str], open_path: Path) -> Iterator[Ward]:
    guest = image.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_LAB_ROOT", str(open_path))
        lab = Lab.up(LabSpec(name=lab_name("doc"), hooks="slurmctld"), tied=True)
        yield Ward(lab, guest, Path(guest.disk).parent)
        lab.down()


@pytest.fixture(autouse=True)
def sound(ward: Ward) -> Iterator[None]:
    """Before and after each test all is well, and the doctor says so."""
    ward.write()
    yield
    ward.write()
    assert ward.ask() == (0, set()), ward.told


def test_a_guest_lives_its_whole_life(ward: Ward) -> None:
    """It is paused and suspended, comes back from both, and nothing is left of it."""
    assert ward.ask("--boot") == (0, set()), ward.told
    for host in ward.lab.hosts:
        assert ward.lab.run(host, ["virsh", "-q", "list", "--all"], check=True).stdout.strip() == ""
    shown = ward.lab.run("ctl", ["sinfo", "-Nh", "-o", "%N"], check=True).stdout.split()
    assert set(shown) == set(ward.lab.hosts)
    assert [path.name for path in ward.lab.shared.iterdir()] == []


@pytest.mark.gate
def test_a_guest_of_slurm_users_lives_as_well(ward: Ward) -> None:
    """With a directory of its own, and the one of the socket that the lab's hook asks."""
    home, run = ward.lab.dir / "slurm", ward.lab.daemon_socket.parent
    owner = run.stat()
    home.mkdir()
    for folder in (home, run):
        shutil.chown(folder, *user_ids(ward.lab.dir / "etc", SLURM_USER))
    ward.write(daemon={"state_dir": str(home / "state")})
    try:
        assert ward.ask("--boot", "--user", SLURM_USER) == (0, set()), ward.told
    finally:
        shutil.rmtree(home)
        os.chown(run, owner.st_uid, owner.st_gid)
    assert [path.name for path in ward.lab.shared.iterdir()] == []


@pytest.mark.gate
def test_a_guest_that_does_not_boot_is_told_with_its_console(ward: Ward) -> None:
    ward.write(
        scale={"boot_within_s": 5}, **ward.image(cmdline="rdinit=/nonsense root=/dev/nonsense console=ttyS0")
    )
    status, found = ward.ask("--boot")
    assert (status, found) == (1, {"guest"}), ward.told
    assert "the boot and the proof" in ward.told
    assert ward.lab.run("bm1", ["virsh", "-q", "list", "--all"], check=True).stdout.strip() == ""


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("policy-mistake", {"nonsense": 1}),
        ("policy-conflict", {"cluster": "another"}),
        ("policy-conflict", {"priorities": {"low": ["htcc"]}}),
        ("munge-key-unreadable", {"libvirt": {"surroundings": {"munge_key": "/nonsense"}}}),
        ("munge-key-other", {"libvirt": {"surroundings": {"munge_key": "/etc/hostname"}}}),
        ("image-missing", {"libvirt": {"images": {"default": {"disk": "/nonsense"}}}}),
        ("image-damaged", {"libvirt": {"images": {"default": {"kernel": "/bin/sh"}}}}),
        ("image-damaged", {"libvirt": {"images": {"default": {"disk_format": "qcow2"}}}}),
        ("image-changed", {"libvirt": {"images": {"default": {"sha256": "0" * 64}}}}),
        ("directory", {"libvirt": {"directory": "/nonsense"}}),
        ("bridge", {"libvirt": {"bridge": "br9"}}),
        ("machine", {"libvirt": {"hardware": {"machine": "q99"}}}),
        ("cpu-model", {"libvirt": {"hardware": {"cpu_model": "abacus"}}}),
        ("address-outside", {"instances": {"addresses": "10.99.1.1/24"}}),
        ("controller-silent", {"libvirt": {"surroundings": {"conf_server": "10.77.0.1:6999"}}}),
        ("listen", {"daemon": {"listen": "10.77.0.99:6833"}}),
    ],
    ids=str,
)
def test_faults_of_the_policy_file(ward: Ward, code: str, changes: dict[str, Any]) -> None:
    ward.write(**changes)
    ward.finds(code)


def test_what_the_daemons_user_may_not(ward: Ward) -> None:
    """All is open to root, who runs the command, and closed to SlurmUser, as whom it looks."""
    ward.own.chmod(0o600)
    ward.finds("policy-unreadable", argv=("--user", "slurm"))
    ward.own.chmod(0o644)
    ward.write(libvirt={"surroundings": {"munge_key": str(ward.lab.munge_key)}})
    ward.finds("munge-key-unreadable", "state-dir", "socket", argv=("--user", "slurm"))
    ward.finds("not-allowed", argv=("--user", "ada"))


def test_faults_of_slurms_settings(ward: Ward) -> None:
    """All at once: each has a code of its own."""
    before = ward.lab.slurm_conf.read_text()
    text = before.replace("SlurmctldParameters=enable_configless\n", "").replace(
        "TreeWidth=65533", "TreeWidth=2"
    )
    text = text.replace("ReturnToService=2", "ReturnToService=1").replace("JobRequeue=1", "JobRequeue=0")
    text = text.replace("PrologEpilogTimeout=10", "PrologEpilogTimeout=3")
    text = text.replace("Feature=backfill", "Feature=other")
    text = text.replace("ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup")
    cgroup_conf = ward.lab.slurm_conf.with_name("cgroup.conf")
    first_version = cgroup_conf.read_text()  # which needs no systemd
    try:
        ward.restart_with(text)
        cgroup_conf.write_text("CgroupPlugin=cgroup/v2\n")
        ward.finds(
            *("not-configless", "tree-width", "return-to-service", "no-requeue", "prolog-timeout"),
            *("partition-empty", "guest-cgroups"),
        )
        cgroup_conf.write_text(first_version)
        ward.restart_with(before.replace("PrologSlurmctld=", "#"))
        ward.finds("hook-missing")
    finally:
        cgroup_conf.write_text(first_version)
        ward.restart_with(before)


def test_a_closed_partition_and_a_dead_host(ward: Ward) -> None:
    ward.run("ctl", "scontrol update PartitionName=htc State=DOWN")
    ward.run("ctl", "scontrol update NodeName=bm2 State=DOWN Reason=broken")
    try:
        ward.finds("partition-closed", "host-node")
    finally:
        ward.run("ctl", "scontrol update PartitionName=htc State=UP")
        ward.run("ctl", "scontrol update NodeName=bm2 State=RESUME")
    ward.hosts_are_idle()  # it is silent until slurmctld has heard it again


def test_services_that_do_not_run(ward: Ward) -> None:
    for service, codes in (
        ("slurmctld", ("slurm-silent",)),
        ("munged@ctl", ("munge", "slurm-silent")),
        ("libvirtd@bm2", ("host-silent",)),
    ):
        ward.lab.stop(service)
        try:
            ward.finds(*codes)
        finally:
            ward.lab.start(service)
        ward.hosts_are_idle()


def test_a_hook_that_is_gone(ward: Ward) -> None:
    hook = ward.lab.hook_path
    away = hook.with_name("away")
    hook.rename(away)
    try:
        ward.finds("hook-broken")
    finally:
        away.rename(hook)


def test_what_one_host_sees_otherwise(ward: Ward) -> None:
    """Its copy of slurm.conf, its directory and its images are not those of the controller."""
    changed = "cp /run/kept/* .; echo JobRequeue=0 >>slurm.conf"
    with (
        ward.over("bm2", Path("/etc/slurm"), changed),
        ward.over("bm2", ward.lab.shared),
        ward.over("bm2", ward.folder),
    ):
        ward.finds("conf-differs", "directory-not-shared", "image-not-on-host")


def test_a_way_that_is_closed_to_qemu(ward: Ward) -> None:
    closed = ward.lab.shared / "closed"
    (closed / "in").mkdir(parents=True)
    closed.chmod(0o700)
    try:
        ward.write(libvirt={"directory": str(closed / "in")})
        ward.finds("directory-closed")
    finally:
        (closed / "in").rmdir()
        closed.rmdir()


def test_names_and_addresses_of_others(ward: Ward) -> None:
    document = "<domain type='qemu'><name>vn3</name><memory>1</memory><os><type>hvm</type></os></domain>"
    ward.run("bm1", f'echo "{document}" >/run/vn3.xml; virsh -q define /run/vn3.xml')
    ward.run("ctl", "ip addr add 10.77.1.5/16 dev eth0")
    try:
        ward.finds("foreign-guest", "address-taken")
    finally:
        ward.run("bm1", "virsh -q undefine vn3")
        ward.run("ctl", "ip addr del 10.77.1.5/16 dev eth0")


def test_a_directory_without_room(ward: Ward) -> None:
    ward.run("ctl", f"mount -t tmpfs -o size=1m none {ward.lab.shared}")
    try:
        ward.finds("directory-full")
    finally:
        ward.run("ctl", f"umount {ward.lab.shared}")
    assert os.listdir(ward.lab.shared) == []
