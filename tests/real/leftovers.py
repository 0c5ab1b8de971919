"""What a lab has left on this machine: nothing, once it is down."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backfill.lab import cgroups
from backfill.lab.cluster import Lab

NAMESPACES = ("net", "mnt", "pid", "uts", "ipc", "cgroup")


@contextmanager
def namespaces(lab: Lab) -> Iterator[frozenset[str]]:
    """The namespaces of the lab's machines (such as "net:[4026532262]"); ask while it is up.

    They are held open inside: the kernel gives the number of one that is gone to the next that is
    made, which may be another lab's.
    """
    pids = [machine.pid for machine in lab.status().machines.values()]
    places = [f"/proc/{pid}/ns/{kind}" for pid in pids for kind in NAMESPACES]
    with held_open(places) as theirs:
        yield theirs


@contextmanager
def held_open(places: list[str]) -> Iterator[frozenset[str]]:
    """Inside, the numbers of these namespaces belong to nobody else; without those of our own."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    handles: list[int] = []
    try:
        for place in places:
            handles.append(os.open(place, os.O_RDONLY))  # noqa: PERF401  closed one by one
        yield frozenset(os.readlink(f"/proc/self/fd/{handle}") for handle in handles) - own
    finally:
        for handle in handles:
            os.close(handle)


def holders(spaces: frozenset[str]) -> list[str]:
    """Who is in one of `spaces` or has it open, but for ourselves."""
    others = [p for p in Path("/proc").glob("[0-9]*") if int(p.name) != os.getpid()]
    return [
        f"{name} held by process {process.name}"
        for process in others
        for name in sorted(spaces & _links(process))
    ]


def traces(lab: Lab, spaces: frozenset[str] = frozenset()) -> list[str]:
    """Every process, mount, control group, and namespace out of `spaces` that is still there."""
    found = holders(spaces) if spaces else []
    found += [f"process {p.name}" for p in Path("/proc").glob("[0-9]*") if _names_lab(p, lab)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if _directory(lab).search(line)]
    tops = cgroups.lab_directories(lab.dir)
    found += [f"control group {top}" for top in tops if top.exists()]
    return found


def _directory(lab: Lab) -> re.Pattern[str]:
    """The lab's directory, and not that of a lab whose name only begins alike."""
    return re.compile(re.escape(str(lab.dir)) + r"(?![\w.-])")


def _links(process: Path) -> set[str]:
    """The namespaces that a process is in or has open; it may end while we look."""
    found = set()
    for folder in (process / "ns", process / "fd"):
        try:
            links = os.listdir(folder)
        except OSError:
            continue
        for link in links:
            with suppress(OSError):
                found.add(os.readlink(folder / link))
    return found


def _names_lab(process: Path, lab: Lab) -> bool:
    try:
        told = (process / "cmdline").read_text() + (process / "cgroup").read_text()
    except OSError:
        return False
    return bool(_directory(lab).search(told)) or cgroups.group_name(lab.dir) in told
