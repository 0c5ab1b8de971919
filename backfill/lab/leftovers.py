"""What a lab has left on this machine: nothing, once it is down; tests and the demo prove it."""

from __future__ import annotations

import os
from pathlib import Path

from backfill.lab import cgroups
from backfill.lab.cluster import Lab

NAMESPACES = ("net", "mnt", "pid", "uts", "ipc", "cgroup")


def namespaces(lab: Lab) -> frozenset[str]:
    """The namespaces of the lab's machines (such as "net:[4026532262]"); ask while it is up."""
    pids = [machine.pid for machine in lab.status().machines.values()]
    theirs = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in NAMESPACES}
    return frozenset(theirs - {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES})


def traces(lab: Lab, spaces: frozenset[str] = frozenset()) -> list[str]:
    """Every process, mount, control group, and namespace out of `spaces` that is still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        held = sorted(spaces & _links(process))
        found += [f"{name} held by process {process.name}" for name in held]
        if _names_lab(process, lab):
            found.append(f"process {process.name}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(lab.dir) in line]
    tops = cgroups.lab_directories(lab.dir)
    found += [f"control group {top}" for top in tops if top.exists()]
    return found


def _links(process: Path) -> set[str]:
    """The namespaces that a process is in or has open; it may end while we look."""
    found = set()
    for link in (*process.glob("ns/*"), *process.glob("fd/*")):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def _names_lab(process: Path, lab: Lab) -> bool:
    try:
        told = (process / "cmdline").read_text() + (process / "cgroup").read_text()
    except OSError:
        return False
    return str(lab.dir) in told or cgroups.group_name(lab.dir) in told
