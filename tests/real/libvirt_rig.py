"""A lab with two libvirt hosts for the tests, entered by its network only: paths stay the same."""

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvirt

from backfill.drivers.libvirt.guest.agent import AgentSilentError, Ask
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import Hardware, ImageFiles, LibvirtConfig, LibvirtLimits, Surroundings
from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.spec import HYPERVISORS, LabSpec
from backfill.lab.waiting import wait_until
from tests.contract.hiding import hidden
from tests.contract.instance_rig import BALLOON, CLUSTER, DEVICES, EVERYTHING, NETWORK

IMAGE = "tiny"
READY = "BACKFILL-READY"
COUNT = "COUNT "
_JOB = "JOB-"
PATIENCE_S = 600.0  # for what takes seconds on a machine that is not busy
_POLL_S = 0.005  # some of what is waited for lasts only some hundredths of a second
_CLONE_NEWNET = 0x40000000
_STRANGER = """
<domain type='{kind}'><name>{name}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os>
<metadata><instance xmlns='urn:backfill:instance:1' cluster='other' node='{name}' generation='1'
 cpus='1' memory_mb='32' created_s='1.0'/></metadata>
<devices><memballoon model='none'/></devices></domain>
"""


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put the calling thread, and the threads that it starts, into the network of process `pid`."""
    setns = ctypes.CDLL(None, use_errno=True).setns
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if setns(other, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the lab's network")
        yield
    finally:
        setns(own, _CLONE_NEWNET)
        os.close(own)
        os.close(other)


@contextmanager
def running_lab(name: str, hypervisor: str = HYPERVISORS[0], **spec: Any) -> Iterator[Lab]:
    """A lab of two hosts that ends with us; inside, connections are made from its controller."""
    image.build()
    wanted = LabSpec(f"{name}-{os.getpid()}", hosts=2, hypervisor=hypervisor, tally=False, **spec)
    lab = Lab.up(roots.equip(wanted), tied=True)
    try:
        with network_of(lab.status().machines["ctl"].pid):
            yield lab
    finally:
        lab.down()
    shutil.rmtree(lab.dir)  # a lab that failed keeps its logs


class LibvirtRig:
    """The real driver on a lab's two hosts."""

    image = IMAGE
    # Plugging needs a board without PCI Express and balloons other guests: tests of their own.
    abilities = EVERYTHING - {DEVICES, BALLOON}

    def __init__(self, lab: Lab, **changes: Any) -> None:
        self.lab = lab
        self.events: list[tuple[str, str]] = []
        guest = image.build()
        self.config = LibvirtConfig(
            **{
                "cluster": CLUSTER,
                "uris": {host: lab.libvirt_uri(host) for host in lab.hosts},
                "directory": str(lab.shared / "instances"),
                "bridge": "br0",
                "networks": {NETWORK: "br0"},
                "surroundings": Surroundings("10.77.0.1", "10.77.0.1:6817", str(lab.munge_key)),
                "images": {
                    IMAGE: ImageFiles(
                        guest.kernel,
                        guest.initrd,
                        guest.disk,
                        guest.cmdline_under(lab.domain_type),
                        guest.disk_format,
                    )
                },
                "nodes": {host: host for host in lab.hosts},
                "hardware": Hardware(domain_type=lab.domain_type),
                "limits": LibvirtLimits(connect_s=10, call_s=60, keepalive_s=2, keepalive_count=4),
                **changes,
            }
        )
        self.provider = LibvirtProvider(self.config, lambda *event: self.events.append(event))

    # --- the contract's Rig ----------------------------------------------------------------

    def until(self, holds: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        assert wait_until(holds, limit_s, _POLL_S), f"not within {limit_s:g} s"

    def booted(self, name: str) -> None:
        self.until(lambda: READY in self.console_text(name))

    @contextmanager
    def unreachable(self, host: str) -> Iterator[None]:
        self.lab.stop(f"libvirtd@{host}")
        try:
            yield
        finally:
            self.lab.start(f"libvirtd@{host}")

    @contextmanager
    def hidden(self, host: str, name: str) -> Iterator[str]:
        with hidden(self.provider._pool.store_on(host).memory(name)) as path:
            yield path

    @contextmanager
    def stranger(self, host: str, name: str) -> Iterator[None]:
        connection = libvirt.open(self.lab.libvirt_uri(host))
        document = _STRANGER.format(name=name, kind=self.lab.domain_type)
        domain = connection.createXML(document, libvirt.VIR_DOMAIN_START_PAUSED)
        try:
            yield
            assert domain.isActive()
        finally:
            domain.destroy()
            connection.close()

    def start_job(self, host: str, name: str, job: str) -> None:
        """Let a job's program count that has left its slurmstepd: its environment tells whose it is."""
        user = "setpriv --reuid=2001 --regid=2001 --clear-groups"
        count = f"n=0; while :; do n=$((n+1)); echo {_JOB}{job} $n; sleep 0.1; done"
        script = f"SLURM_JOB_ID={job} {user} sh -c '{count}' >/dev/console 2>&1 </dev/null &"
        self.in_guest(host, name, script)

    def progress(self, name: str, job: str) -> int:
        """How far it has counted."""
        lines = self.console_text(name).replace("\r", "").split("\n")[:-1]
        return sum(line.startswith(f"{_JOB}{job} ") for line in lines)

    def use_memory(self, host: str, name: str, memory_mb: int) -> None:
        script = f"head -c {memory_mb}M /dev/zero | tail | wc -c"  # without a line's end it keeps all
        assert int(self.in_guest(host, name, script)) == memory_mb << 20

    # --- beyond the contract ---------------------------------------------------------------

    def console_text(self, name: str) -> str:
        """All that the guest wrote, whichever host it was on."""
        stores = self.provider._pool.stores
        paths = [Path(store.files(name).console) for store in stores]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def start_counter(self, host: str, name: str) -> None:
        """Let a program in the guest count on the console, ten times a second."""
        script = (
            "(n=0; while :; do n=$((n+1)); echo COUNT $n; sleep 0.1; done) >/dev/console 2>&1 </dev/null &"
        )
        self.in_guest(host, name, script)
        self.goes_on(name)

    def counts(self, name: str) -> list[int]:
        """The numbers on the console, in order; a half-written last line is left out."""
        lines = self.console_text(name).replace("\r", "").split("\n")[:-1]
        return [int(line[len(COUNT) :]) for line in lines if line.startswith(COUNT)]

    def last_counts(self, name: str) -> list[int]:
        """The numbers of a guest that stands still, when all of them have reached the file."""
        found: list[list[int]] = [[]]

        def still() -> bool:
            found.append(self.counts(name))
            time.sleep(0.4)  # the time in which a running guest would have counted
            return self.counts(name) == found[-1]

        self.until(still)
        return found[-1]

    def goes_on(self, name: str, more: int = 3) -> None:
        """Wait for new numbers; all numbers so far must be 1, 2, 3 … without gap or repetition."""
        before = len(self.counts(name))
        self.until(lambda: len(self.counts(name)) >= before + more)
        counts = self.counts(name)
        assert counts == list(range(1, len(counts) + 1))

    def in_guest(self, host: str, name: str, script: str) -> str:
        """Run a shell script through the guest agent and return what it wrote."""

        def work(ask: Ask) -> str:
            deadline_s = time.monotonic() + PATIENCE_S
            arguments = {"path": "/bin/sh", "arg": ["-c", script], "capture-output": True}
            started = None
            while True:
                try:
                    started = started or ask("guest-exec", arguments)
                    status = ask("guest-exec-status", {"pid": started["pid"]})
                    if status["exited"]:
                        return base64.b64decode(status.get("out-data", "")).decode()
                except AgentSilentError:
                    assert time.monotonic() < deadline_s
                time.sleep(0.01)

        return self.provider._pool.on(host).with_agent(name, work, PATIENCE_S)

    def qemu_pid(self, host: str, name: str) -> int:
        """The emulator's process as seen from outside the lab."""
        inner = self.lab.run(host, ["cat", f"/run/libvirt/qemu/{name}.pid"], check=True).stdout
        machine = self.lab.status().machines[host].pid
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                same = os.stat(status.parent / "ns/pid").st_ino == _pid_namespace(machine)
            except (OSError, ValueError):
                continue
            if same and fields.get("NSpid", "").split()[-1:] == [inner.strip()]:
                return int(status.parent.name)
        raise AssertionError(f"{name} has no emulator on {host}")

    def kill_libvirtd(self, host: str) -> None:
        """SIGKILL, as a crash would; it is gone then."""
        self.lab.kill(f"libvirtd@{host}", signal.SIGKILL)

    def revive_libvirtd(self, host: str) -> None:
        """Start it again and wait until the driver is connected."""
        self.lab.start(f"libvirtd@{host}")
        self.until(lambda: self.provider.observe(host).host.reachable)

    def emulators(self, host: str, name: str) -> list[str]:
        """Command lines of the instance's emulators on the host, known to its libvirtd or not."""
        listed = self.lab.run(host, ["ps", "-eo", "args"], check=True).stdout.splitlines()
        return [line for line in listed if f"guest={name}," in line]

    @contextmanager
    def full_disk(self, host: str, name: str) -> Iterator[None]:
        """Inside, the host can write only 8 MB into the instance's folder."""
        folder = str(self.provider._pool.store_on(host).home(name))
        self.lab.run(host, ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
        try:
            yield
        finally:
            self.lab.run(host, ["umount", folder], check=True)

    def revive_all(self) -> None:
        """See to it that libvirtd runs on every host."""
        machines = self.lab.status().machines
        dead = [host for host in self.lab.hosts if not machines[host].services["libvirtd"]]
        for host in dead:
            self.revive_libvirtd(host)

    def end(self) -> None:
        """Leave the lab as it was."""
        self.revive_all()
        for host in self.lab.hosts:
            for name in self.provider.observe(host).instances:
                self.provider.delete(host, name)
        self.provider.close()


def _pid_namespace(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/pid").st_ino
