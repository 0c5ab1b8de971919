"""A guest made by hand in the lab: it joins by itself, obeys, and its jobs outlive a pause."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.lab import image, kvm
from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec, host_address
from backfill.lab.tally import check_tally
from backfill.lab.waiting import wait_until
from tests.real.leftovers import namespaces, traces

pytestmark = pytest.mark.real

JOBS = Path(__file__).parents[2] / "backfill/lab/jobs"
GUEST_MB = 256
PATIENCE_S = 600.0  # for what takes seconds on a machine that is not busy
ROUNDED_S = 0.001


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest made by hand: `name` is its domain and its Slurm node; `console` is a file."""

    lab: Lab
    host: str
    name: str
    console: Path

    def virsh(self, *argv: str) -> str:
        """Run virsh on the guest's host."""
        return self.lab.run(self.host, ["virsh", "-q", *argv], check=True).stdout

    def node_state(self) -> str:
        """What Slurm says about the node; empty while it does not know it."""
        argv = ["sinfo", "--noheader", "-N", "-n", self.name, "-o", "%T"]
        words = self.lab.run("ctl", argv).stdout.split()
        return words[0] if words else ""


def boot_guest(lab: Lab, host: str, number: int) -> Guest:
    """Start guest vn<number> on `host` and return at once."""
    name = f"vn{number}"
    built = image.build()
    seed, disk, console = (lab.shared / f"{name}.{kind}" for kind in ("seed", "qcow2", "console"))
    identity = (
        f"NODE_NAME={name}\nADDRESS={host_address(name)}/16\nGATEWAY=\n"
        f"CONTROLLER={host_address('ctl')}\nCONF_SERVER={host_address('ctl')}:6817\n"
        "SLURMD_OPTIONS='-Z --conf \"Feature=backfill CPUs=1 RealMemory=200\"'\n"
    )
    with tarfile.open(seed, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in (
            ("etc/backfill/identity", identity.encode()),
            ("etc/munge/munge.key", lab.munge_key.read_bytes()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o400
            tar.addfile(entry, io.BytesIO(content))
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", built.disk_format, "-b", built.disk, str(disk)],
        check=True,
    )
    definition = lab.shared / f"{name}.xml"
    definition.write_text(
        f"""<domain type='{lab.domain_type}'><name>{name}</name>
<memory unit='MiB'>{GUEST_MB}</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{built.kernel}</kernel>
<initrd>{built.initrd}</initrd><cmdline>{built.cmdline_under(lab.domain_type)}</cmdline></os>
<features><acpi/><apic/></features>
<cpu mode='maximum'/><clock offset='utc'/><on_reboot>destroy</on_reboot>
<devices><controller type='usb' model='none'/>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{disk}'/>
<target dev='vda' bus='virtio'/></disk>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{seed}'/>
<target dev='vdb' bus='virtio'/><readonly/></disk>
<interface type='bridge'><mac address='52:54:00:77:00:{number:02x}'/><source bridge='br0'/>
<model type='virtio'/><rom enabled='no'/></interface>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<memballoon model='none'/><serial type='file'><source path='{console}'/></serial>
</devices></domain>"""
    )
    guest = Guest(lab, host, name, console)
    guest.virsh("create", str(definition))
    return guest


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    """One guest, vn1 on bm1, registered and idle."""
    booted = boot_guest(lab, "bm1", 1)
    assert wait_until(lambda: booted.node_state() == "idle", PATIENCE_S), booted.console.read_text()
    return booted


def test_probe_boot_tells_life_from_death(lab: Lab) -> None:
    """The probe sees a kernel that boots, sees one that cannot, and its verdict is kept."""
    assert lab.domain_type in ("kvm", "qemu")
    assert kvm.boots_under("tcg", 60)
    assert not kvm.boots_under("no-such-accelerator")
    assert lab.status().domain_type == lab.domain_type


def test_guest_joins_and_runs_a_job(lab: Lab, guest: Guest) -> None:
    """A guest booted by hand registers by itself and runs a job; its console told every step."""
    argv = ["srun", "-p", "htc", "-w", guest.name, "uname", "-n"]
    assert lab.run("ctl", argv).stdout.strip() == guest.name
    steps = re.findall(r"BACKFILL-(\w+) ", guest.console.read_text())
    assert steps == ["STEP"] * 7 + ["READY"]


def test_guests_have_the_lowest_weight(lab: Lab, guest: Guest) -> None:
    """Guests get the least of their host's processor, by control group or else by niceness."""
    if lab.status().cgroups == "cpu weight per guest":
        assert "cpu_shares" in guest.virsh("schedinfo", guest.name)
        script = "cd /sys/fs/cgroup/cpu/machine; grep -H . cpu.idle || grep -H . cpu.shares"
        told = lab.run("bm1", ["sh", "-c", script]).stdout.strip()
        assert told in ("cpu.idle:1", "cpu.shares:2")
        assert not lab.run("bm2", ["sh", "-c", "ls -d /sys/fs/cgroup/cpu/machine/qemu*"]).stdout
    else:
        script = f"ps -o ni= -p $(cat /run/libvirt/qemu/{guest.name}.pid)"
        assert int(lab.run("bm1", ["sh", "-c", script]).stdout) == 19


def test_counter_survives_a_pause(lab: Lab, guest: Guest) -> None:
    """A counting job's connection outlives a pause of its guest: no gap, no second connection."""
    argv = [
        "sbatch",
        "-p",
        "htc",
        "-w",
        guest.name,
        "-o",
        "/dev/null",
        str(JOBS / "counter.sh"),
        "40",
        "0.05",
    ]
    assert lab.run("ctl", argv).returncode == 0
    assert wait_until(lambda: len(tally(lab)) >= 10, PATIENCE_S)
    guest.virsh("suspend", guest.name)
    stopped = tally(lab)
    assert not wait_until(lambda: len(tally(lab)) > len(stopped) + 2, 0.5)
    guest.virsh("resume", guest.name)
    assert wait_until(lambda: len(tally(lab)) >= 41, PATIENCE_S)
    assert check_tally(tally(lab)) == []


def tally(lab: Lab) -> list[str]:
    """The lines that jobs have sent so far."""
    return lab.tally_log.read_text().splitlines()


def test_wake_sets_the_clock(lab: Lab, guest: Guest) -> None:
    """backfill-wake corrects the clock by what it prints, and slurmd stays in service."""
    run_there = ["srun", "-p", "htc", "-w", guest.name]
    wake = "/usr/local/sbin/backfill-wake"
    known_s = time.time()
    lab.run("ctl", [*run_there, wake, f"{known_s:.6f}"], timeout_s=PATIENCE_S, check=True)
    given_s = time.time()
    ahead = lab.run("ctl", [*run_there, wake, f"{given_s + 30:.6f}"], timeout_s=PATIENCE_S)
    # Each time grew old on its way to the guest, by no more than its way took: after the first one
    # the clock was behind by that much, and the second one arrived late by that much.
    first_s, second_s = given_s - known_s, time.time() - given_s
    assert 30 - second_s - ROUNDED_S <= float(ahead.stdout) <= 30 + first_s + ROUNDED_S
    given_s = time.time()
    lab.run("ctl", [*run_there, wake, f"{given_s:.6f}"], timeout_s=PATIENCE_S, check=True)
    clock = lab.run("ctl", [*run_there, "date", "+%s.%N"], timeout_s=PATIENCE_S)
    assert given_s - ROUNDED_S <= float(clock.stdout) <= time.time() + ROUNDED_S


def test_wake_refuses_nonsense(lab: Lab, guest: Guest) -> None:
    """A time that is no time leaves the clock alone and says what is wanted."""
    argv = ["srun", "-p", "htc", "-w", guest.name, "/usr/local/sbin/backfill-wake", "noon"]
    refused = lab.run("ctl", argv, timeout_s=PATIENCE_S)
    assert refused.returncode == 2
    assert "give the time as seconds" in refused.stderr


def test_guest_powers_off(lab: Lab) -> None:
    """A guest that is asked to shut down does, and its host stays."""
    second = boot_guest(lab, "bm2", 2)
    assert wait_until(lambda: "READY" in second.console.read_text(), PATIENCE_S)
    # Until libvirt hears the agent, it would press the power button, which nothing listens to.
    ping = ["virsh", "qemu-agent-command", second.name, '{"execute": "guest-ping"}']
    assert wait_until(lambda: "return" in lab.run("bm2", ping).stdout, PATIENCE_S)
    second.virsh("shutdown", second.name)
    assert wait_until(lambda: second.name not in second.virsh("list", "--name"), PATIENCE_S)


def test_supervisor_killed_under_a_running_job(lab_name: Callable[[str], str]) -> None:
    """SIGKILL of the supervisor ends guest, job and client too, and nothing of them stays."""
    victim = Lab.up(LabSpec(name=lab_name("busy"), hosts=1), tied=True)
    booted = boot_guest(victim, "bm1", 1)
    assert wait_until(lambda: booted.node_state() == "idle", PATIENCE_S), booted.console.read_text()
    argv = ["srun", "-p", "htc", "-w", booted.name, "sleep", "600"]
    with victim.popen("ctl", argv, stderr=subprocess.DEVNULL) as job:
        assert wait_until(lambda: booted.node_state() == "allocated", PATIENCE_S)
        with namespaces(victim) as spaces:
            os.kill(victim.status().supervisor_pid, signal.SIGKILL)
            assert job.wait(PATIENCE_S) != 0
            assert wait_until(lambda: not traces(victim, spaces), PATIENCE_S), traces(victim, spaces)
