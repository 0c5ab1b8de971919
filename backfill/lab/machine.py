"""The first process of a machine: private mounts, network, services; then a reaping control loop.

Runs as process 1 of fresh namespaces. Standard input is a pipe held by the supervisor: the line
"go" says that the network card is plugged in, its end means that the supervisor is dead.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import stat
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill.lab import cgroups, control
from backfill.lab.layout import ROOT_MOUNT, MachinePlan, kvm_group, user_ids
from backfill.lab.mounts import MS_REC, bind, mount, show_to_later
from backfill.lab.services import Services
from backfill.lab.spec import SLURM_USER, LabError, hardware_address

GUEST_SHARES = 2


def mount_all(plan: MachinePlan) -> None:
    """Give the machine its own /sys, /run, shared memory, control groups and private directories."""
    mount("sysfs", "/sys", "sysfs")
    # libvirt keeps there what guests share, by names that two labs may both give.
    mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")  # noqa: S108 - it is this machine's alone
    if plan.cgroups:
        _mount_cgroups()
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    _bind_all(plan, "" if plan.root == "/" else _mount_root(plan))
    for directory in ("munge", "slurm", "slurmctld", "lock", "libvirt"):
        Path("/run", directory).mkdir(mode=0o755, exist_ok=True)
    owner = pwd.getpwnam("munge")
    home = Path(plan.lab_dir, "machines", plan.name)
    for path in ("/run/munge", home / "munge-lib", home / "munge-log"):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    slurm = user_ids(Path(plan.lab_dir, "etc"), SLURM_USER)
    os.chown("/run/slurmctld", *slurm)
    if all(service.name != "slurmd" for service in plan.services):
        os.chown("/run/slurm", *slurm)  # slurmd's own is root's: with Slurm's own keys 26.05 insists on that
    if plan.bridge:
        _open_kvm(kvm_group(Path(plan.lab_dir, "etc")))
    if any(service.usr for service in plan.services):
        show_to_later()


def _open_kvm(group: int) -> None:
    """Make a device file of the machine's own with the rights that udev gives it on a host.

    Where libvirt sees KVM that QEMU's user may not open, it probes QEMU anew for every guest.
    """
    device, ours = Path("/dev/kvm"), "/run/kvm"
    if device.exists():
        os.mknod(ours, stat.S_IFCHR | 0o660, device.stat().st_rdev)
        os.chown(ours, 0, group)
        Path(ours).chmod(0o660)
        bind(ours, str(device))


def _mount_root(plan: MachinePlan) -> str:
    """Lay a private writable copy of the other release's root over the cached one.

    What an earlier one at this place carries stays in it: whoever runs there sees no change.
    """
    own = Path("/run/over", Path(plan.root).name)
    for directory in (Path(ROOT_MOUNT), own / "upper", own / "work"):
        directory.mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir={plan.root},upperdir={own}/upper,workdir={own}/work"
    mount("overlay", ROOT_MOUNT, "overlay", options=layers)
    for shared in ("/proc", "/dev", "/sys", plan.lab_dir):
        bind(shared, ROOT_MOUNT + shared, MS_REC)
    bind("/run", ROOT_MOUNT + "/run")
    return ROOT_MOUNT


def _bind_all(plan: MachinePlan, root: str) -> None:
    """Show the machine's own files and the lab's, in its root too where it has one of its own."""
    for source, target in plan.binds:
        bind(source, root + target)
        if root and not target.startswith("/var/spool"):
            bind(source, target)


def _mount_cgroups() -> None:
    mount("tmpfs", "/sys/fs/cgroup", "tmpfs", options="mode=755")
    for controller in cgroups.CONTROLLERS:
        place = Path("/sys/fs/cgroup", controller)
        place.mkdir()
        mount("cgroup", str(place), "cgroup", options=controller)
    _put_guests_last(Path("/sys/fs/cgroup/cpu/machine"))


def _put_guests_last(guests: Path) -> None:
    """All guests live below this group: the host's own jobs always come first.

    A small weight alone lets a guest finish its slice (2.8 ms) before a process that wakes gets the
    processor, at each step of a start; an idle group gives it up at once (Linux 5.15).
    """
    guests.mkdir(exist_ok=True)
    idle = guests / "cpu.idle"
    if idle.exists():
        idle.write_text("1")
    else:
        (guests / "cpu.shares").write_text(str(GUEST_SHARES))


def configure_network(address: str, bridge: bool) -> None:
    """Bring up lo and the address; a host carries it on the bridge that its guests join."""
    commands = ["link set lo up"]
    card = "eth0"
    if bridge:
        card = "br0"
        kept = f"address {hardware_address(address)}"
        commands += [
            f"link add br0 {kept} type bridge forward_delay 0 stp_state 0",
            "link set eth0 master br0 up",
        ]
    if address:
        commands += [f"link set {card} up", f"addr add {address} brd + dev {card}"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


class Control:
    """Answers requests, one at a time: status, start, stop, restart, kill, upgrade."""

    def __init__(self, services: Services, plan: MachinePlan) -> None:
        self.services = services
        self._plan = plan
        self.state: dict[str, Any] = {"booted": False, "failure": ""}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what the request asks; a LabError becomes an answer with the key `error`."""
        name = request.get("service", "")
        try:
            match request.get("op"):
                case "status":
                    return {**self.state, "services": self.services.status()}
                case "start":
                    self.services.start(name, wait=True)
                case "stop":
                    self.services.stop(name)
                case "restart":
                    self.services.stop(name)
                    self.services.start(name, wait=True)
                case "kill":
                    self.services.kill(name, int(request["signal"]))
                case "upgrade":
                    self._upgrade(name, request)
                case other:
                    return {"error": f"unknown request {other!r}"}
        except (LabError, OSError) as error:
            return {"error": str(error)}
        return {}

    def _upgrade(self, name: str, request: dict[str, Any]) -> None:
        """Start a service anew out of another root or /usr; what it has started goes on as it is."""
        self.services.stop(name)
        if "usr" in request:
            show_to_later()
            self.services.give_usr(name, request["usr"])
        else:
            self._plan = replace(self._plan, root=request["root"])
            self.services.root = "/"
            if self._plan.root != "/":
                _bind_all(self._plan, _mount_root(self._plan))
                self.services.root = ROOT_MOUNT
        self.services.start(name, wait=True)


def loop(control_point: Control, server: socket.socket, wakeup: int) -> None:
    """Serve until the supervisor's pipe ends."""
    while True:
        watched: list[socket.socket | int] = [server, wakeup, 0]
        readable, _, _ = select.select(watched, [], [])
        if 0 in readable and not os.read(0, 64):
            return
        if wakeup in readable:
            os.read(wakeup, 4096)
        control_point.services.reap()
        if server in readable:
            control.serve(server.accept()[0], control_point.answer)


def main(plan_file: str) -> int:
    """Run the machine until its supervisor dies or closes the pipe."""
    plan = MachinePlan.read(Path(plan_file))
    socket.sethostname(plan.name)
    wakeup, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    lab_dir = Path(plan.lab_dir)
    root = "/" if plan.root == "/" else ROOT_MOUNT
    services = Services(plan.services, root, lab_dir / "machines" / plan.name / "log")
    control_point = Control(services, plan)
    server = control.listen(lab_dir / "run" / f"{plan.name}.sock")
    try:
        mount_all(plan)
        if os.read(0, 64) != b"go\n":
            return 1
        configure_network(plan.address, plan.bridge)
        services.boot()
        control_point.state["booted"] = True
    except (LabError, OSError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        control_point.state["failure"] = str(error)
    loop(control_point, server, wakeup)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
