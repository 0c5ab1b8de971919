"""A real cluster in the lab as the tests of the Slurm driver need it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from backfill.core.model.cluster import NodeBase
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.job_pins import inside_pin
from backfill.drivers.slurm.reading.paths import ReadPath
from backfill.drivers.slurm.registration import Registration
from backfill.lab import roots
from backfill.lab.cluster import Lab
from backfill.lab.layout import ROOT_MOUNT
from backfill.lab.spec import CONTROLLER_ADDRESS, JOB_USER, LabSpec, host_address
from backfill.lab.waiting import wait_until
from backfill.ports.errors import BusyError
from backfill.ports.workload import NodeSpec, PilotSpec, WorkloadManager
from tests.contract.workload_pilots import pilot
from tests.contract.workload_rig import EVERYTHING
from tests.real.repair import revive

LIMIT_S = 600.0  # only a test that fails waits so long
_TAKEN_UP_S = 1.5  # so long after an answer slurmctld has acted on it
EXTRA_CONF = (
    # The partition that has every node, bare-metal or added.
    "PartitionName=any Nodes=ALL PriorityTier=5 OverSubscribe=FORCE:4",
    # A node that responds again may get no job before the next backfill cycle, usually 30 s.
    "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1",
)
_SILENT = ("--output=/dev/null",)
# A job that goes on until the file of its id appears, whatever its run.
_SCRIPT = """#!/bin/sh
trap 'exit 1' TERM
while [ ! -e {done}/$SLURM_JOB_ID ]; do sleep 0.05 & wait $!; done
"""
# What a guest does: its own network, its own directories, then slurmd without a slurm.conf.
_SLURMD = """
set -e
echo $$ > {pidfile}.new && mv {pidfile}.new {pidfile}
hostname {name}
mount -t tmpfs none /var/spool && mkdir -p /var/spool/slurmd /var/spool/munge
mount --bind /run/munge /var/spool/munge
mount -t tmpfs none /run && mkdir -p /run/munge /run/slurm
mount --bind /var/spool/munge /run/munge
mount -t tmpfs none /etc/slurm
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up; ip addr add {address}/16 dev eth0; ip link set eth0 up
exec slurmd -D -N {name} {options} -b --conf-server {controller}
"""


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Poll until `holds`; fail the test when that takes too long."""
    assert wait_until(holds, limit_s), f"not within {limit_s:g} s"


def commands_of(lab: Lab, timeout_s: float = 10.0) -> SlurmTools:
    """Slurm's tools, running on the lab's controller."""
    # Slurm's clocks are those of this machine, so only the namespaces differ.
    pid = lab.status().machines["ctl"].pid
    prefix = ("nsenter", "-t", str(pid), "-m", "-u", "-n", "-p", "-i", "--")
    return SlurmTools(prefix=prefix, bin_dir=lab.tools, timeout_s=timeout_s)


def manager_of(
    lab: Lab, timeout_s: float = 10.0, registration: Registration | None = None, path: ReadPath | None = None
) -> SlurmManager:
    """The driver under test, its tools running on the lab's controller."""
    return SlurmManager(commands_of(lab, timeout_s), registration=registration, path=path)


@contextmanager
def slurm_lab(name: str, hosts: int = 2, release: str = roots.INSTALLED, **options: object) -> Iterator[Lab]:
    """A lab without hypervisors that ends with the test run, in whatever way that ends."""
    extra = (*EXTRA_CONF, *options.pop("extra_conf", ()))  # type: ignore[misc]  # always a tuple
    spec = LabSpec(
        name=f"{name}-{os.getpid()}",
        hosts=hosts,
        cpus=4,
        hypervisor="none",
        tally=False,
        slurm_version=release,
        extra_conf=extra,
        **options,  # type: ignore[arg-type]  # LabSpec checks them
    )
    lab = Lab.up(roots.equip(spec), tied=True)
    try:
        yield lab
    finally:
        lab.down()
    shutil.rmtree(lab.dir)  # a lab that failed keeps its logs


@dataclass
class RealRig:
    """The contract's rig on a lab; `reset` gives back an idle cluster."""

    lab: Lab
    manager: WorkloadManager
    abilities: frozenset[str] = EVERYTHING
    fresh_base: NodeBase = NodeBase.FUTURE
    slurmd_options: str = "-Z"
    _slurmds: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, lab: Lab, manager: WorkloadManager | None = None) -> RealRig:
        """A rig whose done-files and scripts live in the lab's shared directory."""
        rig = cls(lab, manager or manager_of(lab))
        rig.done.mkdir(exist_ok=True)
        rig.done.chmod(0o1777)  # jobs, which are an ordinary user's, write there
        script = lab.shared / "job.sh"
        script.write_text(_SCRIPT.format(done=rig.done))
        script.chmod(0o755)
        return rig

    @property
    def hosts(self) -> tuple[str, str]:
        return (self.lab.hosts[0], self.lab.hosts[1])

    @property
    def done(self) -> Path:
        return self.lab.shared / "done"

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds)

    def ctl(self, *argv: str) -> str:
        """Run a command on the controller; its output."""
        return self.lab.run("ctl", argv, check=True).stdout.strip()

    def user(self, *argv: str) -> str:
        """The same as an ordinary user of the cluster."""
        return self.lab.run("ctl", argv, check=True, user=JOB_USER).stdout.strip()

    def submit(
        self,
        node: str,
        *,
        name: str = "job",
        requeue: bool = True,
        hold: bool = False,
        tasks: int = 0,
        cpus: int = 1,
        within: str = "",
    ) -> str:
        return self.user(
            "sbatch",
            "--parsable",
            "-p",
            "any",
            "-o",
            "/dev/null",
            "-D",
            "/tmp",
            "-w",
            node,
            "-n",
            str(cpus),
            "-J",
            name,
            "--requeue" if requeue else "--no-requeue",
            *(["-H"] if hold else []),
            *([f"--reservation={inside_pin(within)}"] if within else []),
            *([f"--array=1-{tasks}"] if tasks else []),
            str(self.lab.shared / "job.sh"),
        )

    def pilot(self, slot: int) -> PilotSpec:
        # Of the lab's users this machine, on which the driver runs, knows this one as well.
        return replace(pilot(slot, "nobody", "any", str(self.lab.shared / "job.sh")), options=_SILENT)

    def finish(self, job_id: str) -> None:
        (self.done / job_id).touch()

    def ask_for_machines(self, job_id: str, word: str) -> None:
        self.user("scontrol", "update", f"JobId={job_id}", f"Comment={word}")

    def comment_as_site(self, job_id: str, text: str) -> None:
        self.ctl("scontrol", "update", f"JobId={job_id}", f"AdminComment={text}")

    def release_as_owner(self, job_id: str) -> None:
        self.lab.run("ctl", ["scontrol", "release", job_id], user=JOB_USER)

    def register(self, spec: NodeSpec) -> None:
        pidfile = self.lab.shared / f"{spec.name}.pid"
        script = _SLURMD.format(
            pidfile=pidfile,
            name=spec.name,
            address=spec.address,
            controller=CONTROLLER_ADDRESS,
            options=self.slurmd_options,
        )
        host = self.hosts[0]
        inside = ("chroot", ROOT_MOUNT) if self.lab.spec.roots else ()
        self._slurmds[spec.name] = self.lab.popen(
            host,
            [*inside, "unshare", "--net", "--uts", "--mount", "sh", "-c", script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(pidfile.exists)
        number = int(spec.name.removeprefix("vn"))
        # A bridge takes the lowest address of its ports, so this one has the highest there is.
        wires = (
            f"ip link add {spec.name} address fe:ff:ff:ff:ff:{number:02x} type veth "
            f"peer name eth0 netns {pidfile.read_text().strip()}"
            f" && ip link set {spec.name} master br0 up"
        )
        self.lab.run(host, ["sh", "-c", wires], check=True)
        pidfile.unlink()

    @contextmanager
    def silent(self, node: str) -> Iterator[None]:
        try:
            self._stop_unheard(node)
            yield
        finally:
            self._signal(node, signal.SIGCONT)

    def _stop_unheard(self, node: str) -> None:
        """Stop its slurmd while slurmctld waits for no answer and has acted on all that it got.

        An answer that slurmctld takes up later (it does so at the next full second) would show the
        node alive, and return it to service, long after it was stopped. To look before the stop is
        not enough: on a busy machine a ping begins, and is answered, between the look and the stop.
        """
        stopped_s = 0.0  # 0: it is going

        def settled() -> bool:
            nonlocal stopped_s
            if not self._nothing_under_way():
                self._signal(node, signal.SIGCONT)
                stopped_s = 0.0
            elif not stopped_s:
                self._signal(node, signal.SIGSTOP)
                stopped_s = time.monotonic()
            return stopped_s > 0 and time.monotonic() > stopped_s + _TAKEN_UP_S

        until(settled)

    def _nothing_under_way(self) -> bool:
        """Whether slurmctld waits for no node's answer and has nothing to send to any."""
        said = self.ctl("sdiag")
        found = re.findall(r"^Agent (?:count|queue size): +(\d+)$", said, re.MULTILINE)
        assert len(found) == 2, said
        return set(found) == {"0"}

    def _signal(self, node: str, number: signal.Signals) -> None:
        if node in self._slurmds:
            self._slurmds[node].send_signal(number)
        else:
            self.lab.kill(f"slurmd@{node}", number)

    @contextmanager
    def drained_by_admin(self, node: str, reason: str) -> Iterator[None]:
        self.ctl("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        try:
            yield
        finally:
            self.ctl("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")

    @contextmanager
    def cut(self) -> Iterator[WorkloadManager]:
        self.lab.kill("slurmctld", signal.SIGSTOP)
        try:
            yield manager_of(self.lab, timeout_s=0.3)
        finally:
            self.lab.kill("slurmctld", signal.SIGCONT)

    def remember(self, job_id: str) -> None:
        """Wait until slurmctld has written the job down: killed before, it would forget it."""
        self._write_down("job_state", f"JobId={job_id}")

    def remember_node(self, name: str) -> None:
        """The same of a node: killed before, it would be FUTURE again."""
        self._write_down("node_state", f"NodeName={name}")

    def _write_down(self, file: str, subject: str) -> None:
        asked_s = time.time()
        self.ctl("scontrol", "update", subject, "Comment=write it down")
        saved = self.lab.dir / "machines/ctl/spool/slurmctld" / file
        until(lambda: written_s(saved) > asked_s)

    def stop_slurmds(self) -> None:
        """End what `register` has started."""
        for process in self._slurmds.values():
            process.kill()
            process.wait()
        self._slurmds.clear()

    def reset(self) -> None:
        """End all jobs, remove added nodes, and bring every bare-metal node back to IDLE."""
        revive(self.lab)
        for job in self.manager.observe().jobs.values():
            if job.state.value in ("PENDING", "RUNNING", "SUSPENDED"):
                self.manager.cancel_job(job.id)
        until(lambda: not any(j.holds_nodes for j in self.manager.observe().jobs.values()))
        self.stop_slurmds()
        for node in self.manager.observe().nodes.values():
            if node.name not in self.lab.hosts:
                until(partial(self._deleted, node.name))
            elif node.base.value == "DOWN" or node.drained:
                # Refused for a node that has just come back by itself.
                self.lab.run("ctl", ["scontrol", "update", f"NodeName={node.name}", "State=RESUME"])
        until(self._idle)

    def _deleted(self, name: str) -> bool:
        try:
            self.manager.delete_node(name)
        except BusyError:
            return False
        return True

    def _idle(self) -> bool:
        nodes = self.manager.observe().nodes.values()
        return all(n.responding and n.base.value == "IDLE" and not n.flags for n in nodes)


def written_s(path: Path) -> float:
    """When the file was written, epoch seconds; 0 for one that is absent, as between two of slurmctld's."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def address_of(name: str) -> str:
    """The address of a machine of the lab."""
    return host_address(name)
