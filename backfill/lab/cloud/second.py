"""A second compute host with real guests, in namespaces of its own, so that guests can move.

Nova's part of it is in the one process of all of Nova; here are its libvirtd and its network. Run
as a program, it becomes that libvirtd.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from backfill.lab.layout import write_libvirt
from backfill.lab.mounts import bind
from backfill.lab.service import Service
from backfill.lab.spec import CLOUD_ADDRESS, LIBVIRT_PORT, hardware_address

HOST, ZONE = "c4", "guests2"
URI = f"qemu+tcp://{HOST}/system"  # as Nova and the other host reach its libvirtd
SERVICE = f"libvirtd-{HOST}"
_BRIDGE = "br-cloud"  # Nova takes a bridge of the same name on all hosts
ADDRESS = "10.77.251.4"
_FIRST, _CLOUD = "c3", CLOUD_ADDRESS


def prepare(root: Path) -> None:
    """Inside the cloud's namespaces: names of both hosts, a network, and a cable between them."""
    home = root / HOST
    home.mkdir()
    write_libvirt(home, cgroups=False, user="root")
    hosts = root / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{_CLOUD} {socket.gethostname()} {_FIRST}\n{ADDRESS} {HOST}\n")
    bind(str(hosts), "/etc/hosts")
    inside = (
        "link set lo up",
        f"link add {_BRIDGE} address {hardware_address(ADDRESS)} type bridge forward_delay 0 stp_state 0",
        f"link set eth0 master {_BRIDGE} up",
        f"link set {_BRIDGE} up",
        f"addr add {ADDRESS}/16 dev {_BRIDGE}",
    )
    for options, commands in (
        (
            (),
            (
                f"netns add {HOST}",
                f"link add {HOST} type veth peer name eth0 netns {HOST}",
                f"link set {HOST} master {_BRIDGE} up",
                f"addr add {_CLOUD}/16 dev {_BRIDGE}",
            ),
        ),
        (("-n", HOST), inside),
    ):
        for command in commands:
            subprocess.run(["ip", *options, *command.split()], check=True)


def libvirtd(root: Path) -> Service:
    """In its network, with mounts and a host name of its own."""
    return Service(
        SERVICE,
        (
            "ip",
            "netns",
            "exec",
            HOST,
            "unshare",
            "--mount",
            "--uts",
            "--propagation",
            "private",
            "--",
            sys.executable,
            "-m",
            __name__,
            str(root / HOST),
        ),
        ready=f"tcp:{ADDRESS}:{LIBVIRT_PORT}",
        warm=("virsh", "-q", "-c", URI, "domcapabilities", "--virttype", "qemu"),
        chroot=False,
        nice=10,
    )


def main(home: str) -> None:
    """Take a place of one's own for everything that libvirtd writes, and become it."""
    socket.sethostname(HOST)
    for part, target in (("etc", "/etc"), ("lib", "/var/lib"), ("log", "/var/log"), ("cache", "/var/cache")):
        bind(f"{home}/libvirt-{part}", f"{target}/libvirt")
    for name in ("libvirt", "lock"):
        private = Path(home, f"run-{name}")
        private.mkdir()
        bind(str(private), f"/run/{name}")
    pid_file = f"{home}/libvirtd.pid"
    argv = ("/usr/sbin/libvirtd", "--listen", "--pid-file", pid_file)
    os.execv(argv[0], argv)  # noqa: S606 - an argument list of our own, no shell wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
