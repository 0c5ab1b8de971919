"""What a real demo needs from this machine, and a lab with a daemon in it while it runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import backfill
from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import LabError, LabSpec
from backfill.lab.waiting import wait_until
from backfill.sim.scenarios.scenario import Scenario
from backfill.ui.client import AskError, Client
from backfill.ui.lab_commands import next_steps

NAME = "demo"
_FIRST_PICTURE_S = 90.0
_STOP_S = 15.0
_TOOLS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "munged",
    "libvirtd",
    "virsh",
    "qemu-system-x86_64",
    "qemu-img",
    "unshare",
    "nsenter",
    "setpriv",
    "ip",
)
_TO_BUILD = ("mmdebstrap", "mke2fs", "cpio", "gcc", "tar")
_NAMESPACES = ("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "true")
# What every lab has, whatever a scenario would like.
_LOW, _HIGH = "htc", "batch"


def missing(recipe: image.Recipe) -> str:
    """Say in a few words what this machine lacks for the real demo, or return an empty text."""
    if os.geteuid() != 0:
        return "root is missing"
    tools = list(_TOOLS) if image.find(recipe) else [*_TOOLS, *_TO_BUILD]
    absent = [tool for tool in tools if shutil.which(tool, path=SLURM_TOOLS_PATH) is None]
    if absent:
        return f"{', '.join(absent)} missing (scripts/setup.sh installs what is needed)"
    if importlib.util.find_spec("libvirt") is None:
        return "the Python module libvirt is missing (scripts/setup.sh installs it)"
    if subprocess.run(_NAMESPACES, capture_output=True, check=False).returncode:
        return "the right to make namespaces is missing (try a virtual machine of its own)"
    return ""


def unfit(scenario: Scenario) -> str:
    """Say why a lab cannot be the scenario's cluster, or return an empty text."""
    names = scenario.host_names
    if names != tuple(f"bm{i}" for i in range(1, len(names) + 1)):
        return "the hosts of a lab are called bm1, bm2 and so on, in this order"
    if len({(group.cpus, group.memory_mb) for group in scenario.hosts}) > 1:
        return "the hosts of a lab are all equal"
    if scenario.reservations:
        return "a lab has no reservations"
    if scenario.faults:
        return "mishaps happen in simulated time only"
    used = {entry.partition for entry in scenario.jobs}
    priorities = scenario.policies.priorities
    if not used <= {_LOW, _HIGH} or _LOW in priorities.high or _HIGH in priorities.low:
        return f"a lab has the partitions {_LOW} (low priority) and {_HIGH} (high) only"
    return ""


@contextmanager
def demo_lab(
    scenario: Scenario, tell: Callable[[str], None], *, keep: bool, release: str = roots.INSTALLED
) -> Iterator[Lab]:
    """A lab of this Slurm release with a daemon that obeys the scenario's policy. Raises LabError.

    At the end the daemon is stopped and, unless it is to be kept, nothing of the lab is left.
    """
    if Lab(LabSpec(name=NAME)).status().supervisor_pid:
        raise LabError(f"the lab of a demo is up already; end it: backfill lab down --name {NAME}")
    guest = image.build(tell, image.Recipe(release))
    group = scenario.hosts[0]
    spec = LabSpec(
        name=NAME,
        hosts=len(scenario.host_names),
        cpus=group.cpus,
        memory_mb=group.memory_mb,
        hooks="slurmctld",
        slurm_version=release,
    )
    lab = Lab.up(roots.equip(spec, tell), progress=tell, tied=not keep)
    try:
        # The journal of an earlier demo would be this daemon's memory.
        shutil.rmtree(lab.dir / "daemon", ignore_errors=True)
        policy = write_policy(lab, guest, **scenario.policy_keys)
        with _daemon(lab, policy):
            tell(f"lab {spec.name}: the daemon works with {policy}")
            yield lab
    finally:
        if not keep:
            lab.down()


def kept() -> list[str]:
    """What one can do with the lab of a demo that was left running."""
    lab = Lab.attach(NAME)
    return next_steps(lab, lab.dir / "policy.yaml")


@contextmanager
def _daemon(lab: Lab, policy: Path) -> Iterator[None]:
    argv = [sys.executable, "-m", "backfill", "daemon", "--config", str(policy)]
    root = str(Path(backfill.__file__).parents[1])
    log = lab.dir / "daemon.log"
    with log.open("w") as out:
        process = lab.popen("ctl", argv, stdout=out, stderr=out, env={"PYTHONPATH": root})
    try:
        wait_until(lambda: _sees_all(lab) or process.poll() is not None, _FIRST_PICTURE_S)
        if process.poll() is not None or not _sees_all(lab):
            said = log.read_text().strip().splitlines()
            raise LabError(f"the daemon did not start: {said[-1] if said else 'it said nothing'}")
        yield
    finally:
        _stop(lab, process)


def _sees_all(lab: Lab) -> bool:
    """Whether the daemon has read Slurm and every host once."""
    try:
        sources = Client(str(lab.daemon_socket)).ask("status")["sources"]
    except AskError:
        return False
    return all(sources.get(name, {}).get("seen_s") for name in ("slurm", *lab.hosts))


def _stop(lab: Lab, process: subprocess.Popen[str]) -> None:
    """Ask the daemon itself: a signal to `process` would only end what brought it into the lab."""
    lock = lab.dir / "daemon/daemon.lock"
    if process.poll() is None and lock.exists():
        lab.run("ctl", ["kill", f"-{signal.SIGTERM.value}", lock.read_text().strip()])
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)
