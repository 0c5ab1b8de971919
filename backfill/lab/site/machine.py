"""Becomes one machine of a site: its mounts and network, and then systemd as its first process.

Runs as process 1 of fresh namespaces, like `backfill.lab.machine`. Standard input is a pipe held by the
supervisor: the line "go" says that the network card is plugged in, its end means that the supervisor
is dead. Later than that the parent-death signal ends systemd, and the kernel all that it has started.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import sys
from pathlib import Path
from typing import NoReturn

from backfill.lab import cgroups
from backfill.lab.machine import configure_network
from backfill.lab.mounts import bind, mount
from backfill.lab.site.files import SitePlan

# systemd tells the end of its boot to this socket (sd_notify(3)).
NOTIFY = "/run/host/notify"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_OWN_DEVICES = ("kvm", "fuse", "net/tun", "vhost-net")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_MNT_DETACH = 2
# systemd from 256 on boots on control groups of version 1 only where it is told to.
_KERNEL_WORDS = "systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
_PIVOT_ROOT = 155  # x86-64; the C library has no function for it


def mount_all(plan: SitePlan) -> str:
    """Lay the machine's files over the cached root, with all that a kernel has mounted at a boot."""
    home, root = plan.home, str(plan.home / "root")
    mount(
        "overlay", root, "overlay", options=f"lowerdir={plan.root},upperdir={home}/upper,workdir={home}/work"
    )
    mount("proc", f"{root}/proc", "proc")
    mount("sysfs", f"{root}/sys", "sysfs")
    mount("tmpfs", f"{root}/run", "tmpfs", options="mode=755")
    mount("tmpfs", f"{root}/tmp", "tmpfs", options="mode=1777")  # noqa: S108  the machine's own
    _make_devices(Path(root, "dev"))
    _mount_groups(Path(root, "sys/fs/cgroup"))
    for source, target in plan.binds:
        bind(source, root + target)
    bind(f"{plan.lab_dir}/run/{plan.name}.notify", root + NOTIFY)
    return root


def _make_devices(dev: Path) -> None:
    mount("tmpfs", str(dev), "tmpfs", options="mode=755")
    old = os.umask(0)
    for name in (*_DEVICES, *_OWN_DEVICES):
        theirs = Path("/dev", name)
        if theirs.exists():
            (dev / name).parent.mkdir(mode=0o755, exist_ok=True)
            os.mknod(dev / name, stat.S_IFCHR | 0o666, theirs.stat().st_rdev)
    os.umask(old)
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    for name, kind, options in (
        ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620,gid=5"),
        ("shm", "tmpfs", "mode=1777"),
        ("mqueue", "mqueue", ""),
    ):
        (dev / name).mkdir()
        mount(kind, str(dev / name), kind, options=options)


def _mount_groups(top: Path) -> None:
    """Mount every hierarchy, its root being this machine's own group, as systemd mounts them by itself."""
    mount("tmpfs", str(top), "tmpfs", options="mode=755")
    for name in cgroups.hierarchies():
        (top / name).mkdir()
        kind = "cgroup2" if name == cgroups.UNIFIED else "cgroup"
        options = {cgroups.UNIFIED: "", cgroups.SYSTEMD: "none,name=systemd"}.get(name, name)
        mount(kind, str(top / name), kind, options=options)


def enter(root: str) -> None:
    """Make `root` the machine's root; what was outside is out of its reach."""
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    # Both names the same: the old root lies over the new one until it is unmounted (pivot_root(2)).
    if libc.syscall(_PIVOT_ROOT, b".", b".") or libc.umount2(b".", _MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), root)
    os.chdir("/")


def main(plan_file: str) -> None:
    """Become the machine; return only where the supervisor is gone."""
    plan = SitePlan.read(Path(plan_file))
    socket.sethostname(plan.name)
    root = mount_all(plan) if plan.root else ""
    Path(plan.lab_dir, "run", f"{plan.name}.sock").touch()
    plugged = os.read(0, 64) == b"go\n"
    if plugged and not root:
        os.read(0, 64)  # nothing comes but the end: the switch holds its cables by being there
    elif plugged:
        configure_network(plan.address, plan.bridge)
        enter(root)
        become_systemd()


def become_systemd() -> NoReturn:
    """Go on as the machine's own init, which takes us for a container's."""
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "container": "backfill-lab",
        "NOTIFY_SOCKET": NOTIFY,
        "SYSTEMD_PROC_CMDLINE": _KERNEL_WORDS,
    }
    os.execve("/sbin/init", ["/sbin/init"], environment)  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1])
