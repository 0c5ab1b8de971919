"""Clusters of one shape, for a suite that takes whatever it finds: of bare nodes, and of virtual ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from backfill.drivers.slurm.conf.managed import EMPTY, render
from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.extras import exported
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import LabSpec
from tests.real.daemon_rig import DaemonRig, lab_name

NODES, CPUS, MEMORY_MB = 4, 2, 512
HOSTS = 2
# The suite of 24.11 asks, at the end of a file, for every job of it.
_CONF = ("MinJobAge=86400",)
# What it sets down has to stay down, so that it knows which node a reservation gets.
_STAYS_DOWN = "ReturnToService=1"
# All nodes are virtual, as at a site whose hypervisors are no nodes of Slurm.
_POLICY: dict[str, Any] = {
    "priorities": {"low": ["htc"], "high": []},
    "answer_within_s": 5,
    "placement": {"cpu_overcommit": 4},
    "instances": {"names": f"vn[1-{NODES}]", "flavour": {"cpus": CPUS, "memory_mb": MEMORY_MB}},
    "scale": {"warm": NODES, "idle_s": 86_400, "boot_within_s": 600},
    "limits": {"max_instances": NODES, "max_per_host": NODES // HOSTS, "keep_memory_mb": 0},
    # Four emulated guests boot at once: nothing is to be learnt here from how long each check takes.
    "readiness": {
        "clock_offset_s": 10,
        "clock_within_s": 600,
        "munge_within_s": 600,
        "address_within_s": 600,
        "files_within_s": 600,
    },
}


@contextmanager
def bare(release: str) -> Iterator[tuple[Lab, str]]:
    """Hosts that are nodes, all in the default partition; with a directory that all of them share."""
    with _lab("bare", release, hosts=NODES, cpus=CPUS, memory_mb=MEMORY_MB, hypervisor="none") as lab:
        _rewrite(lab, lambda line: None if line.startswith(("NodeSet=", "PartitionName=htc")) else line)
        lab.run("ctl", ["scontrol", "reconfigure"], check=True)
        yield lab, str(lab.shared)


@contextmanager
def virtual(release: str, registration: str = "dynamic") -> Iterator[tuple[Lab, str]]:
    """The same of instances alone, to which a file server brings /home."""
    guest = image.build(recipe=image.Recipe(release))
    with _lab("virtual", release, hosts=HOSTS, files=True) as lab:
        for host in lab.hosts:
            lab.stop(f"slurmd@{host}")
        _rewrite(lab, _virtual_alone)
        for root in ("", "/run/root") if lab.spec.roots else ("",):  # tools of another release see their own
            lab.run("ctl", ["mount", "--bind", str(exported(lab.dir) / "home"), f"{root}/home"], check=True)
        rig = DaemonRig(lab, guest)
        hosts = [
            {"name": host, "provider": "libvirt", "uri": lab.libvirt_uri(host), "node": None}
            for host in lab.hosts
        ]
        policy = {**_POLICY, "hosts": hosts, "slurm": {"registration": registration}}
        if registration != "dynamic":
            _include(rig, policy)
        rig.start(**policy)
        rig.until(lambda: _at_rest(rig), what="all virtual nodes idle")
        yield lab, "/home"
        rig.stop()


def lines(release: str) -> AbstractContextManager[tuple[Lab, str]]:
    """The virtual ones with lines in slurm.conf, as a bare node has one."""
    return virtual(release, "conf")


def _include(rig: DaemonRig, policy: dict[str, Any]) -> None:
    """Bring the file with our nodes' lines into slurm.conf, before there is a daemon."""
    write_policy(rig.lab, rig.image, **policy)
    rig.lab.slurm_conf.with_name("backfill.conf").write_text(render(EMPTY))
    with rig.lab.slurm_conf.open("a") as conf:
        conf.write("Include backfill.conf\n")
    rig.with_policy("slurm", "apply")


@contextmanager
def _lab(name: str, release: str, **shape: Any) -> Iterator[Lab]:
    spec = LabSpec(name=lab_name(name), tally=False, slurm_version=release, extra_conf=_CONF, **shape)
    lab = Lab.up(roots.equip(spec), tied=True)
    try:
        yield lab
    finally:
        lab.down()
    shutil.rmtree(lab.dir)  # one that failed keeps its logs


def _at_rest(rig: DaemonRig) -> bool:
    states = rig.node_states()
    ready = [node for node in rig.nodes().values() if node["phase"] == "ready"]
    return len(ready) == NODES and set(states.values()) <= {"IDLE", "IDLE+DYNAMIC_NORM"}


def _virtual_alone(line: str) -> str | None:
    if line.startswith(("NodeName=", "PartitionName=batch")):
        return None
    return f"{line} Default=YES" if line.startswith("PartitionName=htc") else line


def _rewrite(lab: Lab, change: Callable[[str], str | None]) -> None:
    """Change each line of slurm.conf, leaving out those for which None is returned, and start slurmctld."""
    lines = [change(line) for line in lab.slurm_conf.read_text().splitlines()]
    lines = [_STAYS_DOWN if line and line.startswith("ReturnToService=") else line for line in lines]
    lab.slurm_conf.write_text("".join(f"{line}\n" for line in lines if line is not None))
    lab.restart("slurmctld")
